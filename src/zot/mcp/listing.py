"""Tools, prompts and resources that a server lists: checked, cleaned, and named for the model."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from zot.config.config import MCP_PREFIX
from zot.encoding import encode
from zot.errors import ProtocolError
from zot.mcp.launch import McpFailed
from zot.mcp.tool_cache import CachedList, OfferedArgument, OfferedPrompt, OfferedResource, OfferedTool
from zot.messages import ToolSpec
from zot.wire.mcp import ListedPrompt, ListedResource, ListedTool, ListPage, decoded, header_fields

if TYPE_CHECKING:
    from zot.mcp.server_connection import McpConnection

#: Limits of a server's list.
MAX_TOOLS = 512
MAX_DESCRIPTION = 4_000
MAX_SCHEMA_BYTES = 64 * 1024
#: Model services accept no longer names.
MAX_NAME = 64
_HASH_DIGITS = 8
#: The most pages of a list, and the time for each.
_MAX_PAGES = 64
_LIST_S = 30.0
#: Limits of a prompt.
MAX_ARGUMENTS = 32
MAX_LINE = 200
#: An address that can be mentioned: neither spaces nor what an editor shows escaped.
_MENTIONABLE = re.compile(r"[\x21-\x7e]{1,1000}")
_PROMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_READ_BY_MODELS = frozenset({"description", "title", "$comment"})
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


async def list_all(connection: McpConnection) -> tuple[CachedList, float | None]:
    """Return the tools, prompts and resources of a server, and how long they are valid; None if it does not say.

    Raise McpFailed.
    """
    listed, ttl_s = await _pages(connection, "tools")
    found: dict[str, OfferedTool] = {}
    for raw in listed[:MAX_TOOLS]:
        try:
            tool = check_tool(connection.source.name, decoded(ListedTool, raw, "a tool"))
        except ProtocolError as problem:
            connection.log.note(f"a tool is not offered: {problem}")
            continue
        found.setdefault(tool.spec.name, tool)
    if len(listed) > MAX_TOOLS:
        connection.log.note(f"lists {len(listed)} tools; the first {MAX_TOOLS} count")
    lists = connection.client.capabilities
    offered = CachedList(
        connection.client.revision,
        tuple(found[name] for name in sorted(found)),
        0.0,
        () if lists.prompts is None else await _prompts(connection),
        lists.resources is not None,
        () if lists.resources is None else await _resources(connection),
    )
    return offered, ttl_s


async def _prompts(connection: McpConnection) -> tuple[OfferedPrompt, ...]:
    """Return the server's prompts; none if it cannot list them."""
    try:
        listed, _ = await _pages(connection, "prompts")
    except McpFailed as problem:
        connection.log.note(f"its prompts are not offered: {problem}")
        return ()
    found: dict[str, OfferedPrompt] = {}
    for raw in listed[:MAX_TOOLS]:
        try:
            prompt = check_prompt(decoded(ListedPrompt, raw, "a prompt"))
        except ProtocolError as problem:
            connection.log.note(f"a prompt is not offered: {problem}")
            continue
        found.setdefault(prompt.name, prompt)
    return tuple(found[name] for name in sorted(found))


async def _resources(connection: McpConnection) -> tuple[OfferedResource, ...]:
    """Return the resources that prompts can mention; none if the server cannot list them."""
    try:
        listed, _ = await _pages(connection, "resources")
    except McpFailed as problem:
        connection.log.note(f"its resources are not offered: {problem}")
        return ()
    found: dict[str, OfferedResource] = {}
    for raw in listed[:MAX_TOOLS]:
        try:
            resource = check_resource(decoded(ListedResource, raw, "a resource"))
        except ProtocolError as problem:
            connection.log.note(f"a resource is not offered: {problem}")
            continue
        found.setdefault(resource.uri, resource)
    return tuple(found[uri] for uri in sorted(found))


async def _pages(
    connection: McpConnection, kind: Literal["tools", "prompts", "resources"]
) -> tuple[list[msgspec.Raw], float | None]:
    """Return a list on all its pages, and for how long it is valid; None if the server does not say."""
    found: list[msgspec.Raw] = []
    ttl_s: float | None = None
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        params = {} if cursor is None else {"cursor": cursor}
        result = await connection.request(f"{kind}/list", params, timeout_s=_LIST_S)
        try:
            page = decoded(ListPage, result, f"the list of {kind}")
        except ProtocolError as problem:
            raise McpFailed(str(problem)) from None
        found += getattr(page, kind)
        if page.ttl_ms is not None:
            ttl_s = page.ttl_ms / 1000 if ttl_s is None else min(ttl_s, page.ttl_ms / 1000)
        cursor = page.next_cursor
        if cursor is None or len(found) > MAX_TOOLS:
            break
    return found, ttl_s


def check_tool(server: str, listed: ListedTool) -> OfferedTool:
    """Return a tool as it can be offered. Raise ProtocolError."""
    if not listed.name or len(listed.name) > 256:
        raise ProtocolError("a tool has no usable name")
    schema: dict[str, Any] = _cleaned(listed.input_schema)
    if schema.get("type", "object") != "object":
        raise ProtocolError(f"the schema of {_visible(listed.name)!r} is not of type object")
    schema = {"type": "object", **schema}
    if len(encode(schema)) > MAX_SCHEMA_BYTES:
        raise ProtocolError(f"the schema of {_visible(listed.name)!r} is larger than {MAX_SCHEMA_BYTES} bytes")
    description = clean(listed.description or "")
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[:MAX_DESCRIPTION]}…"
    spec = ToolSpec(tool_name(server, listed.name), description, schema)
    read_only = listed.annotations is not None and listed.annotations.read_only_hint
    return OfferedTool(listed.name, spec, read_only, tuple(header_fields(listed.input_schema).items()))


def check_prompt(listed: ListedPrompt) -> OfferedPrompt:
    """Return a prompt as it can be offered. Raise ProtocolError."""
    if not _PROMPT_NAME.fullmatch(listed.name) or len(listed.arguments) > MAX_ARGUMENTS:
        raise ProtocolError("a prompt has no usable name, or too many arguments")
    described = clean(listed.description or listed.title or "").replace("\n", " ")[:MAX_LINE]
    arguments = tuple(OfferedArgument(one.name, one.required) for one in listed.arguments)
    return OfferedPrompt(listed.name, described, arguments)


def check_resource(listed: ListedResource) -> OfferedResource:
    """Return a resource as it can be offered. Raise ProtocolError."""
    if not _MENTIONABLE.fullmatch(listed.uri):
        raise ProtocolError(f"the address {_visible(listed.uri)!r} cannot be mentioned in a prompt")
    return OfferedResource(listed.uri, clean(listed.title or listed.name).replace("\n", " ")[:MAX_LINE])


def tool_name(server: str, name: str) -> str:
    """Return the name of a tool for the model. A name that has to be changed ends with its hash."""
    plain = f"{MCP_PREFIX}{server}__{_NOT_IN_NAMES.sub('_', name)}"
    if len(plain) <= MAX_NAME and plain.endswith(f"__{name}"):
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{plain[: MAX_NAME - _HASH_DIGITS - 1]}_{digest}"


def clean(text: str) -> str:
    """Return ``text`` without characters that people do not see but models read: controls, formats, private ones."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one for one in text if one in "\n\t" or unicodedata.category(one) not in _INVISIBLE)


def _cleaned(value: Any) -> Any:
    """Return a schema whose descriptions, titles and comments are clean."""
    match value:
        case dict():
            return {
                key: clean(inner) if key in _READ_BY_MODELS and isinstance(inner, str) else _cleaned(inner)
                for key, inner in value.items()
            }
        case list():
            return [_cleaned(inner) for inner in value]
        case _:
            return value


def _visible(name: str) -> str:
    return clean(name)[:64]
