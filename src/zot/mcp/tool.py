"""A tool of an MCP server, and its results as the model gets them."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from zot.mcp.listing import OfferedTool
from zot.mcp.server_connection import McpFailed
from zot.messages import ImageBlock, TextBlock
from zot.text import printable, printable_line
from zot.tools.base import Output, ToolContext, ToolFailedWithOutput
from zot.tools.command_output import Excerpt, Spills
from zot.tools.images import MAX_IMAGE_BYTES, MAX_IMAGE_SIDE, image_size, image_type, is_complete
from zot.wire.mcp import CallResult, Content

if TYPE_CHECKING:
    from zot.mcp.servers import ManagedServer

#: The most blocks and images of one result.
MAX_BLOCKS: Final = 1000
MAX_IMAGES: Final = 20
_MAX_NAME: Final = 200


class McpTool:
    """Tool of a server. Runs in parallel with others only if the server calls it read-only."""

    def __init__(self, server: ManagedServer, tool: OfferedTool, spills: Callable[[], Spills | None]) -> None:
        self.spec = tool.spec
        self.read_only = tool.read_only
        self._server = server
        self._tool = tool
        self._spills = spills

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return the server's result, as `Tool.run` specifies. Starts the server if it does not run."""
        try:
            result = await self._server.call(self._tool, args, context.reporter)
        except McpFailed as problem:
            raise McpFailed(f"the MCP server {self._server.source.name} failed: {printable(str(problem))}") from None
        output = self._output(result)
        if result.is_error:
            raise ToolFailedWithOutput(output)
        return output

    def _output(self, result: CallResult) -> Output:
        texts, images = list[str](), list[ImageBlock]()
        for content in result.content[:MAX_BLOCKS]:
            block = _block(content)
            if isinstance(block, ImageBlock) and len(images) < MAX_IMAGES:
                images.append(block)
            else:
                texts.append("[image left out: too many]" if isinstance(block, ImageBlock) else block)
        if len(result.content) > MAX_BLOCKS:
            texts.append(f"[{len(result.content) - MAX_BLOCKS} more parts left out]")
        structured = bytes(result.structured_content)
        if not result.content and structured not in (b"", b"null"):
            texts.append(structured.decode())
        if not texts and not images:
            texts.append("(no content)")
        return (*((TextBlock(self._within_budget(texts)),) if texts else ()), *images)

    def _within_budget(self, texts: list[str]) -> str:
        """Return the text within the model's limit; of a long one the ends, and where the whole is."""
        data = "\n".join(texts).encode("utf-8", "replace")
        excerpt = Excerpt()
        excerpt.feed(data)
        if excerpt.is_complete:
            return excerpt.text()
        spills = self._spills()
        if spills is None:
            return excerpt.text()
        spill = spills.new()
        spill.write(data)
        spill.close()
        return excerpt.text(spill.note())


def _block(content: Content) -> str | ImageBlock:
    """Return a part of a result: text, an image, or a note in place of anything else."""
    match content.type:
        case "text":
            return content.text
        case "image":
            return _image(content.data)
        case "resource" if content.resource is not None:
            uri = printable_line(content.resource.uri, _MAX_NAME)
            if content.resource.text is not None:
                return f"[resource {uri}]\n{content.resource.text}"
            return f"[resource {uri}: {len(content.resource.blob or '') * 3 // 4} bytes left out]"
        case "resource_link":
            return f"[resource {printable_line(content.uri, _MAX_NAME)}]"
        case kind:
            return f"[{printable_line(kind, _MAX_NAME)} left out]"


def _image(data: str) -> str | ImageBlock:
    """Return an image that model services accept, or why it is left out."""
    if len(data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return f"[image left out: it has more than {MAX_IMAGE_BYTES} bytes]"
    try:
        image = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return "[image left out: it is not valid base64]"
    mime_type = image_type(image)
    size = None if mime_type is None else image_size(image, mime_type)
    if mime_type is None or size is None or not is_complete(image, mime_type):
        return "[image left out: it is damaged, or of an unknown kind]"
    if max(size) > MAX_IMAGE_SIDE:
        return f"[image left out: it is larger than {MAX_IMAGE_SIDE} pixels a side]"
    return ImageBlock(mime_type, image)
