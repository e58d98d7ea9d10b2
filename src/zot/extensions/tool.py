"""A tool that an extension has registered, as the agent sees it."""

from __future__ import annotations

from typing import Any

from zot.extensions.supervisor import Extension
from zot.messages import TextBlock, ToolSpec
from zot.tools.base import FailedWith, Output, ToolContext
from zot.tools.excerpt import Excerpt
from zot.wire.extension import RegisterTool


class ExtensionTool:
    """Asks ``extension`` to do it. Nobody knows what it changes, so no two run at once."""

    read_only = False

    def __init__(self, extension: Extension, registered: RegisterTool) -> None:
        self.extension = extension
        self.spec = ToolSpec(registered.name, registered.description, registered.schema, extension.name)

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return its result, as `Tool.run` promises."""
        answered = await self.extension.call_tool(self.spec.name, args)
        content = _within_budget(answered.content)
        if answered.is_error:
            raise FailedWith(content)
        return content


def _within_budget(content: Output) -> Output:
    """Return a result as the model is shown it: of all its text together the beginning and the end, if it is long."""
    texts = [block.text.encode() for block in content if isinstance(block, TextBlock)]
    whole = Excerpt()
    for text in texts:
        whole.feed(text)
    if whole.is_complete:
        return content
    return (TextBlock(whole.text()), *(block for block in content if not isinstance(block, TextBlock)))
