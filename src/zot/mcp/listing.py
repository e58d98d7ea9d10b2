"""Tools that a server lists: checked, cleaned, named for the model, and cached between sessions."""

from __future__ import annotations

import hashlib
import os
import re
import time
import unicodedata
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from zot.config.config import MCP_PREFIX
from zot.encoding import decoder, encode
from zot.errors import ConfigError, ProtocolError
from zot.files import load, make_directory, read_chunks, replace_file
from zot.messages import ToolSpec
from zot.text import printable_line
from zot.wire.mcp import ListedPrompt, ListedTool, PromptArgument, header_fields

#: Limits of a server's list.
MAX_TOOLS = 512
MAX_DESCRIPTION = 4_000
MAX_SCHEMA_BYTES = 64 * 1024
#: Model services accept no longer names.
MAX_NAME = 64
_HASH_DIGITS = 8
#: How long a list is valid whose server does not say, and at most.
DEFAULT_TTL_S = 24 * 3600.0
MAX_TTL_S = 30 * 24 * 3600.0
_MAX_CACHE_BYTES = 64 * 1024 * 1024
#: The longest reason of a failure that is kept, in characters.
_MAX_PROBLEM = 500
_MAX_PROBLEM_BYTES = 4 * _MAX_PROBLEM
#: Limits of a prompt.
MAX_ARGUMENTS = 32
MAX_LINE = 200
_PROMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


class OfferedTool(msgspec.Struct, frozen=True):
    """A checked tool. ``name`` is the server's, ``spec`` what the model sees."""

    name: str
    spec: ToolSpec
    read_only: bool = False
    #: Arguments that are repeated in headers over HTTP: their path and the header's name.
    headers: tuple[tuple[tuple[str, ...], str], ...] = ()


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
    return OfferedPrompt(listed.name, described, tuple(listed.arguments))


def tool_name(server: str, name: str) -> str:
    """Return the name of a tool for the model. A name that has to be changed ends with its hash."""
    plain = f"{MCP_PREFIX}{server}__{_NOT_IN_NAMES.sub('_', name)}"
    if len(plain) <= MAX_NAME and plain.endswith(f"__{name}"):
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{plain[: MAX_NAME - _HASH_DIGITS - 1]}_{digest}"


def selected(tools: Sequence[OfferedTool], patterns: Sequence[str]) -> list[OfferedTool]:
    """Return the tools whose own names match a pattern, sorted and unique."""
    wanted = {one.spec.name: one for one in tools if any(fnmatchcase(one.name, pattern) for pattern in patterns)}
    return [wanted[name] for name in sorted(wanted)]


def clean(text: str) -> str:
    """Return ``text`` without characters that people do not see but models read: controls, formats, private ones."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one for one in text if one in "\n\t" or unicodedata.category(one) not in _INVISIBLE)


def _cleaned(value: Any) -> Any:
    """Return a schema whose descriptions and titles are clean."""
    match value:
        case dict():
            return {
                key: clean(inner) if key in ("description", "title") and isinstance(inner, str) else _cleaned(inner)
                for key, inner in value.items()
            }
        case list():
            return [_cleaned(inner) for inner in value]
        case _:
            return value


def _visible(name: str) -> str:
    return clean(name)[:64]


class OfferedPrompt(msgspec.Struct, frozen=True):
    """A checked prompt, which users run as a slash command."""

    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


class CachedList(msgspec.Struct, frozen=True):
    """A server's tools, prompts and protocol revision, whether it has resources, and until when that is current."""

    revision: str
    tools: tuple[OfferedTool, ...]
    expires_at: float
    prompts: tuple[OfferedPrompt, ...] = ()
    has_resources: bool = False


class ToolCache:
    """Tool lists in ``directory``, one file a configuration; without one, nothing is kept."""

    def __init__(self, directory: str | None, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._now = now

    def get(self, digest: str) -> CachedList | None:
        """Return the list of a configuration; None if there is no valid file."""
        if self._directory is None:
            return None
        try:
            found: CachedList = load(self._path(digest), decoder(CachedList).decode, max_bytes=_MAX_CACHE_BYTES)
        except (OSError, ConfigError):
            return None
        return found

    def is_current(self, found: CachedList) -> bool:
        """True while a list need not be asked for again."""
        return self._now() < found.expires_at <= self._now() + MAX_TTL_S

    def put(self, digest: str, found: CachedList, ttl_s: float | None) -> None:
        """Keep a list for as long as its server says. A full disk costs the cache only."""
        if self._directory is None:
            return
        life_s = DEFAULT_TTL_S if ttl_s is None else max(0.0, min(ttl_s, MAX_TTL_S))
        data = encode(msgspec.structs.replace(found, expires_at=self._now() + life_s))
        try:
            make_directory(self._directory)
            replace_file(self._path(digest), data)
        except OSError:
            pass

    def problem(self, digest: str) -> str:
        """Return why the server failed when it was last used; "" if it did not."""
        if self._directory is None:
            return ""
        try:
            return b"".join(read_chunks(self._path(digest, "problem"), max_bytes=_MAX_PROBLEM_BYTES)).decode()
        except (OSError, ValueError):
            return ""

    def put_problem(self, digest: str, problem: str) -> None:
        """Keep why a server failed, for the next process; "" once it works."""
        if self._directory is None:
            return
        path = self._path(digest, "problem")
        try:
            if problem:
                make_directory(self._directory)
                replace_file(path, printable_line(problem, _MAX_PROBLEM).encode())
            elif os.path.exists(path):
                os.unlink(path)
        except OSError:
            pass

    def _path(self, digest: str, kind: str = "json") -> str:
        assert self._directory is not None
        return os.path.join(self._directory, f"{digest}.{kind}")
