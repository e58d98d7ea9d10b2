"""zot RPC v1: what a client may say, and what it is answered. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from zot.errors import ProtocolError
from zot.events import encode
from zot.learned import decoder
from zot.messages import Counters
from zot.surrogates import without_half_escapes
from zot.wire.lines import may_repeat_type, not_an_object, refuse_repeated_type

PROTOCOL_VERSION: Final = 1

#: What a client may switch on with `hello`. Without them it gets version 1 as first published.
FEATURES: Final = ("seq", "thinking", "retries", "prices", "approvals", "compaction", "extensions")


class Command(msgspec.Struct, frozen=True, tag_field="type"):
    """Something a client wants. ``id`` is kept as it stood there, and echoed."""

    id: msgspec.Raw = msgspec.Raw()


class ImageInput(msgspec.Struct, frozen=True):
    data: bytes = b""
    mime_type: str | None = None


class Hello(Command, tag="hello", frozen=True):
    token: str | None = None
    features: tuple[str, ...] | None = None


class Prompt(Command, tag="prompt", frozen=True):
    message: str | None = None
    images: tuple[ImageInput, ...] | None = None


class Steer(Command, tag="steer", frozen=True):
    message: str | None = None
    images: tuple[ImageInput, ...] | None = None


class Abort(Command, tag="abort", frozen=True):
    queue: bool | None = None


class Compact(Command, tag="compact", frozen=True):
    pass


class UndoCompact(Command, tag="undo_compact", frozen=True):
    pass


class GetState(Command, tag="get_state", frozen=True):
    pass


class GetMessages(Command, tag="get_messages", frozen=True):
    view: Literal["shown", "full"] | None = None


class Clear(Command, tag="clear", frozen=True):
    pass


class SetModel(Command, tag="set_model", frozen=True):
    model: str | None = None


class GetModels(Command, tag="get_models", frozen=True):
    pass


class Ping(Command, tag="ping", frozen=True):
    pass


class GetCommands(Command, tag="get_commands", frozen=True):
    pass


class RunCommand(Command, tag="run_command", frozen=True):
    name: str | None = None
    args: str | None = None


class PanelKey(Command, tag="panel_key", frozen=True):
    panel_id: str | None = None
    key: str | None = None
    text: str | None = None


class PanelClose(Command, tag="panel_close", frozen=True):
    panel_id: str | None = None


class Approve(Command, tag="approve", frozen=True):
    request: str | None = None
    decision: str | None = None


class Fork(Command, tag="fork", frozen=True):
    session: str | None = None
    messages: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Rewind(Command, tag="rewind", frozen=True):
    messages: Annotated[int, msgspec.Meta(ge=0)] | None = None
    at: Annotated[int, msgspec.Meta(ge=0)] | None = None
    files: bool | None = None


AnyCommand: TypeAlias = (
    Hello
    | Prompt
    | Steer
    | Abort
    | Compact
    | UndoCompact
    | GetState
    | GetMessages
    | Clear
    | SetModel
    | GetModels
    | Ping
    | GetCommands
    | RunCommand
    | PanelKey
    | PanelClose
    | Approve
    | Fork
    | Rewind
)
_greetings: msgspec.json.Decoder[Hello | Ping] = msgspec.json.Decoder(Hello | Ping)
_ids: msgspec.json.Decoder[str | int | float | None] = msgspec.json.Decoder(str | int | float | None)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Response(msgspec.Struct, frozen=True, tag="response", tag_field="type"):
    """The answer to one command."""

    id: msgspec.Raw | msgspec.UnsetType
    command: str
    success: bool
    data: Any = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class HelloData(msgspec.Struct, frozen=True):
    protocol_version: int
    version: str
    provider: str
    model: str
    features: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class ModelData(msgspec.Struct, frozen=True):
    id: str
    provider: str
    context_window: int
    max_output: int
    reasoning: bool


class StateData(msgspec.Struct, frozen=True):
    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters


STARTED: Final = {"started": True}
PONG: Final = {"pong": True}


def name_of(command: Command) -> str:
    """Return the name of a command on the wire."""
    return str(type(command).__struct_config__.tag)


def decode_command(line: bytes) -> AnyCommand:
    """Read one command; raise ProtocolError, with id and type if they can be read, if it is not one."""
    try:
        line.decode()  # The typed decode does not look into what it skips.
        command = _commands().decode(line)
    except _UNREADABLE as problem:
        command = _decode_leniently(line, problem)
    if may_repeat_type(line):
        refuse_repeated_type(line, noun="command")
    _check_id(command)
    return command


def decode_greeting(line: bytes) -> Hello | Ping | None:
    """Read a hello or ping as `decode_command` would; None for anything else, and for what needs its care."""
    try:
        line.decode()
        command = _greetings.decode(line)
        _check_id(command)
    except (*_UNREADABLE, ProtocolError):
        return None
    return None if may_repeat_type(line) else command


@cache
def _commands() -> msgspec.json.Decoder[AnyCommand]:
    # Made when it is first needed: hello and ping are answered in the time it takes.
    return decoder(AnyCommand)


def _decode_leniently(line: bytes, problem: Exception) -> AnyCommand:
    """Read a command whose keys are spelled in another case, as the first zot allowed; else raise ProtocolError."""
    clean = without_half_escapes(line.decode("utf-8", "replace").encode())
    try:
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(clean, type=dict[str, msgspec.Raw])
    except _UNREADABLE:
        raise ProtocolError(not_an_object(line, problem, noun="command")) from None
    fields = {key.lower(): value for key, value in fields.items()}
    frame_id, kind = _readable_id(fields.get("id")), _readable_type(fields.get("type"))
    if frame_id not in line:
        frame_id = b""  # Cleaning has changed it, so it is not the client's any more.
    if kind is None:
        raise ProtocolError("unknown command: the frame has no type that is a string", frame_id=frame_id)
    if kind not in _NAMES:
        raise ProtocolError(f"unknown command {kind!r}" if kind else "unknown command", frame_id=frame_id,
                            frame_type=kind)  # fmt: skip
    if clean != line:
        raise ProtocolError(f"{kind}: {_not_text(problem)}", frame_id=frame_id, frame_type=kind)
    try:
        return _commands().decode(encode(fields))
    except _UNREADABLE as wrong:
        raise ProtocolError(f"{kind}: {wrong}", frame_id=frame_id, frame_type=kind) from None


def _not_text(problem: Exception) -> str:
    if isinstance(problem, UnicodeDecodeError):
        return f"invalid UTF-8 at byte {problem.start}"
    return "half a character: an escape of a surrogate stands alone"


_NAMES: Final = frozenset(str(kind.__struct_config__.tag) for kind in Command.__subclasses__())


def _check_id(command: Command) -> None:
    try:
        _ids.decode(command.id or b"null")
    except _UNREADABLE:
        kind = name_of(command)
        raise ProtocolError(f"{kind}: id must be a string or a number of usual size", frame_type=kind) from None


def _readable_id(raw: msgspec.Raw | None) -> bytes:
    try:
        _ids.decode(raw or b"null")
    except _UNREADABLE:
        return b""
    return bytes(raw or b"")


def _readable_type(raw: msgspec.Raw | None) -> str | None:
    """Return the type of a frame: "" if it has none, None if it is not a string."""
    try:
        return msgspec.json.decode(raw or b'""', type=str | None) or ""
    except _UNREADABLE:
        return None


def succeed(command: Command, data: Any = msgspec.UNSET) -> bytes:
    """Return the line that says a command was done."""
    return _response(bytes(command.id), name_of(command), success=True, data=data)


def fail(command: Command, reason: str) -> bytes:
    """Return the line that says a command was not done, and why."""
    return _response(bytes(command.id), name_of(command), success=False, error=reason)


def fail_frame(problem: ProtocolError) -> bytes:
    """Return the line that answers something that is no command."""
    return _response(problem.frame_id, problem.frame_type, success=False, error=str(problem))


def _response(frame_id: bytes, command: str, *, success: bool, **rest: Any) -> bytes:
    given = frame_id not in (b"", b"null", b'""')
    return encode(Response(msgspec.Raw(frame_id) if given else msgspec.UNSET, command, success, **rest)) + b"\n"


class Greeting:
    """The part of a connection that comes first: the token, and which features are on."""

    def __init__(self, *, version: str, provider: str, model: Callable[[], str], token: str = "") -> None:
        self._version = version
        self.provider = provider
        self.model = model
        self._token = token
        self.features: frozenset[str] = frozenset()

    @property
    def locked(self) -> bool:
        """True until the token has been shown."""
        return bool(self._token)

    def refusal(self, command: AnyCommand) -> str | None:
        """Return why a client must go, None if it may stay. The right token opens the door for good."""
        if not self._token:
            return None
        if not isinstance(command, Hello):
            return "the first command must be hello with the token"
        from hmac import compare_digest

        if not compare_digest((command.token or "").encode("utf-8", "replace"), self._token.encode("utf-8", "replace")):
            return "invalid token"
        self._token = ""
        return None

    def answer(self, command: Hello | Ping) -> bytes:
        """Return the line that answers ``command``; switch features on if it names some."""
        if isinstance(command, Ping):
            return succeed(command, PONG)
        features: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
        if command.features is not None:
            features = tuple(name for name in FEATURES if name in command.features)
            self.features = frozenset(features)
        return succeed(command, HelloData(PROTOCOL_VERSION, self._version, self.provider, self.model(), features))
