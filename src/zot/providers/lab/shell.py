"""The shell tool among those that a request offers, under whatever name, and a call that fits its schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from zot.providers.lab import directives as d
from zot.providers.lab.api import Tool, encode

#: What agents call it, letters only; the first one that is offered is taken.
_NAMES = (
    "bash", "shell", "shellcommand", "execcommand", "runshellcommand", "runcommand", "executecommand", "runterminalcmd",
    "runinterminal", "executebash", "runbash", "terminal", "sh", "exec", "execute", "command",
)  # fmt: skip
#: A tool of another name is one if its name has one of these words in it and it takes a command.
_WORDS = re.compile("bash|shell|exec|command|terminal")
_COMMANDS = ("command", "cmd", "commands", "script")
_DIRECTORIES = ("cwd", "workdir", "working_directory", "workingDirectory", "directory", "dir_path")


class _Property(msgspec.Struct):
    type: Any = None
    default: Any = msgspec.UNSET
    enum: list[Any] = []
    minimum: float = 0

    def is_(self, name: str) -> bool:
        """True if values of this type are allowed. Gemini writes the types in capitals."""
        types = self.type if isinstance(self.type, list) else [self.type]
        return any(isinstance(kind, str) and kind.lower() == name for kind in types)


class _Schema(msgspec.Struct):
    properties: dict[str, _Property] = {}
    required: list[str] = []


_schemas = msgspec.json.Decoder(_Schema)


def offers(tools: Iterable[Tool], name: str, arguments: Iterable[str]) -> bool:
    """True if a tool of this name is offered and knows these arguments."""
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        return False
    known = _schema(found).properties
    return not known or known.keys() >= set(arguments)


def shell_of(tools: Sequence[Tool]) -> Tool | None:
    """Return the shell tool; None if there is none."""
    named = {re.sub("[^a-z]", "", tool.name.lower()): tool for tool in reversed(tools)}
    by_name = (named[name] for name in _NAMES if name in named)
    by_word = (tool for name, tool in named.items() if _WORDS.search(name) and _command_of(_schema(tool)))
    return next(chain(by_name, by_word), None)


def call_shell(part: d.Shell, tools: Sequence[Tool]) -> d.Call | d.Say:
    """Return the call that runs a command with the shell tool of a request, or a text that says that it has none."""
    tool = shell_of(tools)
    if tool is None:
        offered = ", ".join(tool.name for tool in tools)
        rest = f"it offers only {offered}" if offered else "it offers no tools at all"
        return d.Say((f"I cannot run a command: the request offers no shell tool; {rest}.",))
    schema = _schema(tool)
    name = _command_of(schema) or "command"
    others = {other: _made_up(other, schema.properties) for other in schema.required if other != name}
    arguments = {name: _command(part.command, schema.properties.get(name)), **others}
    return d.Call(tool.name, encode(arguments).decode(), part.id, part.chunks)


def _schema(tool: Tool) -> _Schema:
    try:
        return _schemas.decode(tool.schema)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _Schema()


def _command_of(schema: _Schema) -> str | None:
    return next((name for name in _COMMANDS if name in schema.properties), None)


def _command(command: str, property_: _Property | None) -> str | list[str]:
    """Return the command as a line, or as the arguments of a program where the tool wants those."""
    wants_list = property_ is not None and property_.is_("array") and not property_.is_("string")
    return ["sh", "-c", command] if wants_list else command


def _made_up(name: str, properties: Mapping[str, _Property]) -> Any:
    """Return a value for an argument that must be there besides the command."""
    wanted = properties.get(name, _Property())
    if wanted.default is not msgspec.UNSET:
        return wanted.default
    if wanted.enum:
        return wanted.enum[0]
    if wanted.is_("boolean"):
        return False
    if wanted.is_("integer") or wanted.is_("number"):
        # Zero may mean no time at all.
        return max(int(wanted.minimum), 60_000 if "timeout" in name.lower() else 0)
    if wanted.is_("array"):
        return []
    if wanted.is_("object"):
        return {}
    return "." if name in _DIRECTORIES else "Run a command."
