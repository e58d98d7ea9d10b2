"""A tool that an extension has registered, as the agent sees it."""

from __future__ import annotations

from typing import Any

from zot.errors import ToolFailed
from zot.extensions.extension import Extension
from zot.messages import TextBlock, ToolSpec
from zot.tools.base import Output, ToolContext
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
        if answered.is_error:
            raise ToolFailed("\n".join(block.text for block in answered.content if isinstance(block, TextBlock)))
        return answered.content
