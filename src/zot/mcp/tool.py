"""A tool of an MCP server, and its results as the model gets them."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from zot.errors import ProtocolError, ToolFailed, UserError
from zot.mcp.launch import McpFailed
from zot.mcp.listing import clean
from zot.mcp.tool_cache import OfferedPrompt, OfferedTool
from zot.messages import ImageBlock, TextBlock
from zot.text import printable, printable_line
from zot.tools.base import CallReporter, Output, ToolContext, ToolFailedWithOutput, decode_args
from zot.tools.command_output import Excerpt, Spills
from zot.tools.images import MAX_IMAGE_BYTES, MAX_IMAGE_SIDE, image_size, image_type, is_complete
from zot.tools.specs import FIND_TOOLS, READ_RESOURCE
from zot.wire.mcp import (
    CallResult,
    Content,
    ListedResource,
    ListPage,
    PromptResult,
    ReadResult,
    Resource,
    argument_headers,
    decoded,
)

if TYPE_CHECKING:
    from zot.mcp.servers import ManagedServer, McpServers

#: The most blocks and images of one result.
MAX_BLOCKS: Final = 1000
MAX_IMAGES: Final = 20
#: The most tools that one search finds, and the longest description that it shows.
MAX_FOUND: Final = 10
MAX_FOUND_TEXT: Final = 300
#: The longest text of a prompt.
MAX_PROMPT: Final = 256 * 1024
_WORDS: Final = re.compile(r"[a-z0-9]+")
_MAX_NAME: Final = 200


class _FindArgs(msgspec.Struct):
    query: str


class FindTools:
    """Tool that finds tools by words, and makes them available."""

    spec = FIND_TOOLS
    read_only = True

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return the tools that fit best, as `Tool.run` specifies."""
        words = _WORDS.findall(decode_args(args, _FindArgs).query.lower())
        known = self._servers.known()
        scores = {name: _score(words, name, tool.spec.description) for name, (_, tool) in known.items()}
        best = sorted((name for name in known if scores[name]), key=lambda name: (-scores[name], name))[:MAX_FOUND]
        if not best:
            counts = [f"{one.source.name} ({len(one.tools)} tools)" for one in self._servers.servers]
            return (TextBlock(f"No tool fits. The servers are: {', '.join(counts)}"),)
        self._servers.found.update(best)
        lines = [f"{name}: {known[name][1].spec.description[:MAX_FOUND_TEXT]}" for name in best]
        return (TextBlock("You can call these tools now:\n" + "\n".join(lines)),)


def _score(words: list[str], name: str, description: str) -> int:
    """Return how well a tool fits: a word in its name counts more than one in its description."""
    named, described = _WORDS.findall(name.lower()), _WORDS.findall(description.lower())
    return sum(3 * any(word in one for one in named) + any(one.startswith(word) for one in described) for word in words)


class _ReadArgs(msgspec.Struct):
    server: str
    uri: str = ""


class ReadResource:
    """Tool that reads the resources of servers."""

    spec = READ_RESOURCE
    read_only = True

    def __init__(self, servers: McpServers, spills: Callable[[], Spills | None]) -> None:
        self._servers = servers
        self._spills = spills

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return a resource's content, or a list, as `Tool.run` specifies."""
        asked = decode_args(args, _ReadArgs)
        server = next((one for one in self._servers.servers if one.source.name == asked.server), None)
        if server is None:
            names = ", ".join(one.source.name for one in self._servers.servers)
            raise ToolFailed(f"there is no server {asked.server!r}; there are: {names}")
        uri = asked.uri.removeprefix(f"@{asked.server}:")
        try:
            if not uri:
                page = decoded(ListPage, await server.request("resources/list", {}, context.reporter), "the list")
                listed = [decoded(ListedResource, raw, "a resource") for raw in page.resources[:MAX_BLOCKS]]
                texts = [f"{one.uri}  {printable_line(one.title or one.name, _MAX_NAME)}" for one in listed]
                return (TextBlock(within_budget(texts or ["(no resources)"], self._spills())),)
            result = await server.request("resources/read", {"uri": uri}, context.reporter)
            contents = decoded(ReadResult, result, "the resource").contents
        except (McpFailed, ProtocolError) as problem:
            raise McpFailed(f"the MCP server {asked.server} failed: {printable(str(problem))}") from None
        blocks = [_resource(one) for one in contents[:MAX_BLOCKS]]
        texts = [one for one in blocks if isinstance(one, str)]
        images = [one for one in blocks if isinstance(one, ImageBlock)][:MAX_IMAGES]
        text = (TextBlock(within_budget(texts, self._spills())),) if texts or not images else ()
        return (*text, *images)


def _resource(content: Resource) -> str | ImageBlock:
    if content.text is not None:
        return content.text
    if (content.mime_type or "").startswith("image/"):
        return _image(content.blob or "")
    return (
        f"[{printable_line(content.mime_type or 'data', _MAX_NAME)}: {len(content.blob or '') * 3 // 4} bytes left out]"
    )


def prompt_arguments(prompt: OfferedPrompt, text: str) -> dict[str, str]:
    """Return the arguments of a prompt from the words after its command; the last takes the rest. Raise UserError."""
    names = [one.name for one in prompt.arguments]
    words = text.split(maxsplit=max(0, len(names) - 1)) if names else []
    if missing := next((one.name for one in prompt.arguments[len(words) :] if one.required), None):
        usage = " ".join(f"<{one.name}>" if one.required else f"[{one.name}]" for one in prompt.arguments)
        raise UserError(f"/{prompt.name} needs {missing}: {usage}")
    return dict(zip(names, words, strict=False))


def prompt_text(result: msgspec.Raw) -> str:
    """Return the messages of a prompt as the user's message. Raise ProtocolError if it has no text."""
    messages = decoded(PromptResult, result, "the prompt").messages
    blocks = [_block(message.content) for message in messages[:MAX_BLOCKS]]
    text = "\n\n".join(block for block in blocks if isinstance(block, str)).strip()
    if not text:
        raise ProtocolError("the prompt has no text")
    return clean(text)[:MAX_PROMPT]


async def call_tool(
    server: ManagedServer, tool: OfferedTool, args: dict[str, Any], reporter: CallReporter
) -> CallResult:
    """Call a tool of a server. Raise McpFailed."""
    params = {"name": tool.name, "arguments": args}
    headers = argument_headers({tuple(path): name for path, name in tool.headers}, args)
    result = await server.request("tools/call", params, reporter, headers)
    try:
        # A large result takes a while to decode.
        return await asyncio.to_thread(decoded, CallResult, result, "the result")
    except ProtocolError as problem:
        raise McpFailed(str(problem)) from None


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
            result = await call_tool(self._server, self._tool, args, context.reporter)
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
        return (*((TextBlock(within_budget(texts, self._spills())),) if texts else ()), *images)


def within_budget(texts: list[str], spills: Spills | None) -> str:
    """Return the text within the model's limit; of a long one the ends, and where the whole is."""
    data = "\n".join(texts).encode("utf-8", "replace")
    excerpt = Excerpt()
    excerpt.feed(data)
    if excerpt.is_complete or spills is None:
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
