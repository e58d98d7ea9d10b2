"""Interface between lab and a model API: reads requests, encodes replies. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from zot.encoding import UNREADABLE
from zot.encoding import encode as encode_anything
from zot.providers.lab import directives as d
from zot.providers.lab.directives import UsageDirective

Kind: TypeAlias = Literal["text", "thinking", "redacted", "call"]

#: HTTP status by error code.
STATUSES: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_OUR_CALL = re.compile(r"\w+_lab_(\d+)")

#: Names of shell tools, letters only, by precedence.
_NAMES = (
    "bash", "shell", "shellcommand", "execcommand", "runshellcommand", "runcommand", "executecommand", "runterminalcmd",
    "runinterminal", "executebash", "runbash", "terminal", "sh", "exec", "execute", "command",
)  # fmt: skip
#: A tool of another name is a shell if its name contains one of these words and it takes a command.
_WORDS = re.compile("bash|shell|exec|command|terminal")
_COMMANDS = ("command", "cmd", "commands", "script")
_DIRECTORIES = ("cwd", "workdir", "working_directory", "workingDirectory", "directory", "dir_path")


class LabRefusal(Exception):
    """A valid request that cannot be answered. ``code`` and ``param`` are OpenAI's."""

    def __init__(self, message: str, *, code: str, param: str) -> None:
        super().__init__(message)
        self._code = code
        self._param = param

    def body(self) -> bytes:
        """Return the error body of the response."""
        about = {"type": "invalid_request_error", "param": self._param, "code": self._code}
        return encode({"error": {"message": str(self), **about}})


class LabTool(msgspec.Struct, frozen=True):
    """A tool offered in a request. ``schema`` is the JSON schema of its arguments."""

    name: str
    schema: msgspec.Raw = msgspec.Raw(b"{}")


class UserText(msgspec.Struct, frozen=True):
    """One text block of the user. ``turns`` is the number of replies after it in the conversation."""

    text: str
    turns: int


class LabRequest(msgspec.Struct, frozen=True):
    """A request as the script sees it.

    ``texts`` are the user's texts in the current run, newest first, never empty; ``next_call`` is the number for
    the next generated call id.
    """

    model: str
    stream: bool
    texts: tuple[UserText, ...]
    tools: tuple[LabTool, ...]
    next_call: int
    wants_usage: bool = True

    @property
    def prompt(self) -> UserText:
        """The text that started the run: the newest one before the model's first reply."""
        return next(text for text in self.texts if text.turns == self.texts[-1].turns)


class CurrentRun:
    """Collects the user's texts of the current run from a conversation.

    A run starts with the user's first text after an answer without tool calls. Later texts, between tool results
    and the next reply, belong to it: agents add reminders there, and users steer.
    """

    def __init__(self) -> None:
        self._texts: list[tuple[str, int]] = []
        self._replies = 0
        self._answered = False

    def user(self, texts: Iterable[str]) -> None:
        """Add the texts of one user message."""
        for text in texts:
            if self._answered:
                self._texts, self._replies, self._answered = [], 0, False
            self._texts.append((text, self._replies))

    def reply(self, *, calls: bool) -> None:
        """Add a reply of the model."""
        self._replies += 1
        self._answered = not calls

    def texts(self) -> tuple[UserText, ...]:
        """Return the user's texts of the current run, newest first; a single empty one if there are none."""
        found = self._texts or [("", 0)]
        return tuple(UserText(text, self._replies - before) for text, before in reversed(found))


class LabBlock(msgspec.Struct):
    """One block of a reply in progress. ``call_index`` counts the calls before it."""

    kind: Kind
    index: int
    call_index: int = 0
    id: str = ""
    tool: str = ""
    deltas: list[str] = []

    @property
    def text(self) -> str:
        """Its text so far."""
        return "".join(self.deltas)


class Voice(Protocol):
    """Encodes one reply. Each ``bytes`` is one event of the stream."""

    @property
    def call_prefix(self) -> str:
        """The prefix of generated call ids."""

    def begin(self, *, twice: bool) -> list[bytes]:
        """Open the message. ``twice``: the usage is reported twice."""

    def open(self, block: LabBlock) -> list[bytes]: ...

    def delta(self, block: LabBlock, text: str) -> bytes:
        """Return one delta; b"" if the API sends such a block only as a whole."""

    def close(self, block: LabBlock) -> list[bytes]: ...

    def end(self, blocks: list[LabBlock], stop: str, *, twice: bool) -> list[bytes]: ...

    def whole(self, blocks: list[LabBlock], stop: str) -> bytes:
        """Return the body for a request that does not stream."""

    def ping(self) -> bytes: ...

    def error(self, code: str, message: str) -> bytes: ...


class LabApi(Protocol):
    """One model API."""

    @property
    def overloaded(self) -> int:
        """The status of an overload error: one that clients of this API retry."""

    def read(self, body: bytes) -> LabRequest:
        """Read a request. Raise msgspec.MsgspecError, UnicodeError or RecursionError if it is invalid."""

    def voice(self, ask: LabRequest, number: int, usage: UsageDirective) -> Voice:
        """Return the encoder of the reply to the request with this number."""

    def failure(self, status: int, message: str, code: str = "", *, retry_after: str = "") -> bytes:
        """Return the body of an error. ``retry_after`` is for APIs that have it in the body instead of a header."""

    def failure_headers(self, status: int) -> Mapping[str, str]:
        """Return the extra headers of an error."""

    def count(self, body: bytes) -> bytes:
        """Return the response of a token count. Raise as ``read`` does."""

    def models(self, name: str) -> bytes:
        """Return a list of models that contains this one."""

    def model(self, name: str) -> bytes:
        """Return one model. lab accepts every name."""


def tokens_in(body: bytes) -> int:
    """Return an estimate of a request's tokens: one for every four bytes."""
    return -(-len(body) // 4)


def status_of(code: str) -> int:
    """Return the HTTP status of an error code."""
    return STATUSES.get(code, 500)


def next_call(ids: Iterable[str]) -> int:
    """Return one more than the highest number among generated call ids."""
    numbers = [int(found[1]) for id_ in ids if (found := _OUR_CALL.fullmatch(id_)) is not None]
    return max(numbers, default=0) + 1


def encode(value: Any) -> bytes:
    """Return compact JSON; a lone surrogate becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return encode_anything(value)


class _Property(msgspec.Struct):
    type: Any = None
    default: Any = msgspec.UNSET
    enum: list[Any] = []
    minimum: float = 0

    def is_(self, name: str) -> bool:
        """True if values of this type are allowed. Gemini writes types in capitals."""
        types = self.type if isinstance(self.type, list) else [self.type]
        return any(isinstance(kind, str) and kind.lower() == name for kind in types)


class _Schema(msgspec.Struct):
    properties: dict[str, _Property] = {}
    required: list[str] = []


_schemas = msgspec.json.Decoder(_Schema)


def offers(tools: Iterable[LabTool], name: str, arguments: Iterable[str]) -> bool:
    """True if a tool of this name is offered and accepts these arguments."""
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        return False
    known = _schema(found).properties
    return not known or known.keys() >= set(arguments)


def shell_of(tools: Sequence[LabTool]) -> LabTool | None:
    """Return the shell tool; None if there is none."""
    named = {re.sub("[^a-z]", "", tool.name.lower()): tool for tool in reversed(tools)}
    by_name = (named[name] for name in _NAMES if name in named)
    by_word = (tool for name, tool in named.items() if _WORDS.search(name) and _command_of(_schema(tool)))
    return next(chain(by_name, by_word), None)


def call_shell(part: d.Shell, tools: Sequence[LabTool]) -> d.CallDirective | d.Say:
    """Return a call of the request's shell tool, or a text that says it has none."""
    tool = shell_of(tools)
    if tool is None:
        offered = ", ".join(tool.name for tool in tools)
        rest = f"it offers only {offered}" if offered else "it offers no tools at all"
        return d.Say((f"I cannot run a command: the request offers no shell tool; {rest}.",))
    schema = _schema(tool)
    name = _command_of(schema) or "command"
    others = {other: _made_up(other, schema.properties) for other in schema.required if other != name}
    arguments = {name: _command(part.command, schema.properties.get(name)), **others}
    return d.CallDirective(tool.name, encode(arguments).decode(), part.id, part.chunks)


def _schema(tool: LabTool) -> _Schema:
    try:
        return _schemas.decode(tool.schema)
    except UNREADABLE:
        return _Schema()


def _command_of(schema: _Schema) -> str | None:
    return next((name for name in _COMMANDS if name in schema.properties), None)


def _command(command: str, property_: _Property | None) -> str | list[str]:
    """Return the command as a line, or as a list of arguments if the tool requires that."""
    wants_list = property_ is not None and property_.is_("array") and not property_.is_("string")
    return ["sh", "-c", command] if wants_list else command


def _made_up(name: str, properties: Mapping[str, _Property]) -> Any:
    """Return a value for another required argument."""
    wanted = properties.get(name, _Property())
    if wanted.default is not msgspec.UNSET:
        return wanted.default
    if wanted.enum:
        return wanted.enum[0]
    if wanted.is_("boolean"):
        return False
    if wanted.is_("integer") or wanted.is_("number"):
        # A timeout of 0 may mean no time at all.
        return max(int(wanted.minimum), 60_000 if "timeout" in name.lower() else 0)
    if wanted.is_("array"):
        return []
    if wanted.is_("object"):
        return {}
    return "." if name in _DIRECTORIES else "Run a command."
