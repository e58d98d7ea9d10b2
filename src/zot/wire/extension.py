"""The extension protocol, version 1: every frame that zot and an extension send each other. Does no I/O.

Both sides read with `decode_from_extension` or `decode_to_extension` and write with `encode_frame`. An unknown field is
ignored, ``null`` counts as absent, and an escape of half a character is read as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec

from zot.encoding import decoder, encode
from zot.errors import ProtocolError
from zot.wire.lines import may_repeat_type, not_an_object, refuse_repeated_type

PROTOCOL_VERSION: Final = 1
#: Longest line that an extension may write, without its LF.
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
#: So many values may stand in a line: elements, fields and what they are in.
MAX_VALUES: Final = 20_000
#: Longest line that registers or subscribes: what goes into every request to the model has to be short.
MAX_REGISTRATION_BYTES: Final = 256 * 1024

EventName: TypeAlias = Literal["session_start", "turn_start", "turn_end", "tool_call", "assistant_message"]
Intercepted: TypeAlias = Literal["tool_call", "turn_start", "assistant_message"]
OnFailure: TypeAlias = Literal["allow", "block"]
Action: TypeAlias = Literal["prompt", "insert", "display", "open_panel", "noop"]
Level: TypeAlias = Literal["info", "success", "warn", "error"]
Key: TypeAlias = Literal[
    "up", "down", "left", "right", "enter", "esc", "tab", "pageup", "pagedown", "home", "end", "backspace", "delete",
    "rune",
]  # fmt: skip

# The patterns mean the same in Python and in JSON Schema, where `$` is not also before a last line end.
#: Part of the name of a directory and of a log file.
ExtensionName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)")]
#: What a person types behind a slash.
CommandName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[^\s/\x00-\x1f\x7f]{1,64}$(?!\n)")]
#: What every model service takes for the name of a function.
ToolName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$(?!\n)")]
FrameId: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
PanelId: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
PanelLines: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=2000)]


class FromExtension(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Something an extension says."""


class Hello(FromExtension, tag="hello", frozen=True):
    """The first frame: who it is. ``capabilities`` are what it will register, as far as it says."""

    name: ExtensionName
    version: str = ""
    capabilities: tuple[str, ...] = ()


class RegisterCommand(FromExtension, tag="register_command", frozen=True):
    """It answers to a slash command."""

    name: CommandName
    description: str = ""


class RegisterTool(FromExtension, tag="register_tool", frozen=True):
    """It has a tool for the model. ``schema`` is the JSON Schema of its arguments."""

    name: ToolName
    description: str = ""
    schema: dict[str, Any] = {}


class Subscribe(FromExtension, tag="subscribe", frozen=True):
    """What it wants to hear, and what it wants to decide. Names that are not known are ignored.

    With ``on_failure`` "block" what it cannot be asked about is blocked.
    """

    events: tuple[str, ...] = ()
    intercept: tuple[str, ...] = ()
    on_failure: OnFailure = "allow"


class Ready(FromExtension, tag="ready", frozen=True):
    """It has registered what it has for a start."""


class ContentBlock(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A piece of a tool's result: ``text``, or an ``image`` with base64 ``data``."""

    type: str
    text: str = ""
    mime_type: str = ""
    data: str = ""


class ToolResult(FromExtension, tag="tool_result", frozen=True):
    """The answer to `ToolCall`."""

    id: FrameId
    content: tuple[ContentBlock, ...] = ()
    is_error: bool = False


class EventInterceptResponse(FromExtension, tag="event_intercept_response", frozen=True):
    """The answer to `EventIntercept`. Without anything else: go on as you were."""

    id: FrameId
    block: bool = False
    reason: str = ""
    modified_args: dict[str, Any] | None = None
    replace_text: str = ""


class Panel(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a panel shows when it opens."""

    id: PanelId
    title: str = ""
    lines: PanelLines = ()
    footer: str = ""


class CommandResponse(FromExtension, tag="command_response", frozen=True):
    """The answer to `CommandInvoked`: what zot is to do. An ``error`` is shown whatever the action."""

    id: FrameId
    action: Action = "noop"
    prompt: str = ""
    insert: str = ""
    display: str = ""
    open_panel: Panel | None = None
    error: str = ""


class PanelRender(FromExtension, tag="panel_render", frozen=True):
    """What an open panel shows from now on."""

    panel_id: PanelId
    title: str = ""
    lines: PanelLines = ()
    footer: str = ""


class PanelClose(FromExtension, tag="panel_close", frozen=True):
    """A panel is over. Either side may say so."""

    panel_id: PanelId


class Notify(FromExtension, tag="notify", frozen=True):
    """Something a person should read. Of a ``level`` that is not known: info."""

    message: str
    level: str = "info"


class ShutdownAck(FromExtension, tag="shutdown_ack", frozen=True):
    """It has heard `Shutdown` and is about to exit."""


class ToExtension(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Something an extension is told."""


class HelloAck(ToExtension, tag="hello_ack", frozen=True):
    """The answer to `Hello`: where it runs, and where it keeps what is its own."""

    protocol_version: int
    zot_version: str
    provider: str
    model: str
    cwd: str
    extension_dir: str
    data_dir: str


class CommandInvoked(ToExtension, tag="command_invoked", frozen=True, omit_defaults=False):
    """A person wants a command run. ``args`` is what stands behind its name, trimmed."""

    id: FrameId
    name: str
    args: str = ""


class ToolCall(ToExtension, tag="tool_call", frozen=True, omit_defaults=False):
    """The model wants a tool run."""

    id: FrameId
    name: str
    args: dict[str, Any] = {}


class Event(ToExtension, tag="event", frozen=True):
    """Something happened. Which fields it has depends on ``event``."""

    event: EventName
    step: int = 0
    stop: str = ""
    error: str = ""
    tool_id: str = ""
    tool_name: str = ""
    tool_args: dict[str, Any] | None = None
    text: str = ""


class EventIntercept(ToExtension, tag="event_intercept", frozen=True):
    """Something is about to happen: may it? Which fields it has depends on ``event``."""

    id: FrameId
    event: Intercepted
    step: int = 0
    tool_id: str = ""
    tool_name: str = ""
    tool_args: dict[str, Any] | None = None
    text: str = ""


class PanelKey(ToExtension, tag="panel_key", frozen=True):
    """A key was pressed in a panel; ``text`` is the character of a "rune"."""

    panel_id: PanelId
    key: Key
    text: str = ""


class Shutdown(ToExtension, tag="shutdown", frozen=True):
    """Nothing follows. Say `ShutdownAck` and exit."""


AnyFromExtension: TypeAlias = (
    Hello
    | RegisterCommand
    | RegisterTool
    | Subscribe
    | Ready
    | ToolResult
    | EventInterceptResponse
    | CommandResponse
    | PanelRender
    | PanelClose
    | Notify
    | ShutdownAck
)
AnyToExtension: TypeAlias = (
    HelloAck | CommandInvoked | ToolCall | Event | EventIntercept | PanelKey | PanelClose | Shutdown
)
AnyFrame: TypeAlias = AnyFromExtension | AnyToExtension

LEVELS: Final[tuple[Level, ...]] = get_args(Level)
EVENTS: Final[tuple[EventName, ...]] = get_args(EventName)
INTERCEPTED: Final[tuple[Intercepted, ...]] = get_args(Intercepted)

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: A longer line with bytes that are no UTF-8 is not looked into for its id: that is slow.
_MAX_REPAIRED_BYTES: Final = 64 * 1024
#: So many escapes that may be half characters are not looked at one by one, which is slow.
_MAX_HALVES: Final = 20_000
_REGISTRATIONS = (Hello, RegisterCommand, RegisterTool, Subscribe)


def name_of(frame: AnyFrame | type[AnyFrame]) -> str:
    """Return the name of a frame, or of a kind of frame, on the wire."""
    return str(frame.__struct_config__.tag)


_FROM_EXTENSION: Final = frozenset(map(name_of, get_args(AnyFromExtension)))
_TO_EXTENSION: Final = frozenset(map(name_of, get_args(AnyToExtension)))


class UnknownFrame(ProtocolError):
    """A frame of a type that this version does not have. Nothing is wrong with it otherwise."""


def encode_frame(frame: AnyFrame) -> bytes:
    """Return a frame as its line. Half characters become U+FFFD."""
    return encode(frame) + b"\n"


def encode_frames(frames: Iterable[AnyFrame]) -> bytes:
    """Return frames as lines, to be written at once."""
    return b"".join(map(encode_frame, frames))


def decode_from_extension(line: bytes) -> AnyFromExtension:
    """Read what an extension says. Raise ProtocolError, with id and type if they can be read, if it is no frame.

    The error is an `UnknownFrame` if only its type is not known.
    """
    frame: AnyFromExtension = _decode(line, _from_extension(), _FROM_EXTENSION)
    if len(line) > MAX_REGISTRATION_BYTES and isinstance(frame, _REGISTRATIONS):
        kind = name_of(frame)
        raise ProtocolError(f"{kind}: longer than {MAX_REGISTRATION_BYTES} bytes", frame_type=kind)
    return frame


def decode_to_extension(line: bytes) -> AnyToExtension:
    """Read what an extension is told; the same errors."""
    frame: AnyToExtension = _decode(line, _to_extension(), _TO_EXTENSION)
    return frame


@cache
def _from_extension() -> msgspec.json.Decoder[AnyFromExtension]:
    # Made when they are first needed: each side reads only one of the two.
    return decoder(AnyFromExtension)


@cache
def _to_extension() -> msgspec.json.Decoder[AnyToExtension]:
    return decoder(AnyToExtension)


def _decode(line: bytes, decoder: msgspec.json.Decoder[Any], names: frozenset[str]) -> Any:
    try:
        line.decode()  # The typed decode does not look into what it skips.
        frame = decoder.decode(line)
    except _UNREADABLE as problem:
        frame = _decode_leniently(line, problem, decoder, names)
    if may_repeat_type(line):
        refuse_repeated_type(line, noun="frame")
    return frame


def _decode_leniently(
    line: bytes, problem: Exception, decoder: msgspec.json.Decoder[Any], names: frozenset[str]
) -> Any:
    """Read a frame that has nulls or half characters; raise ProtocolError with what could be read if it is none."""
    fields = _fields(line)
    if fields is None:
        raise ProtocolError(not_an_object(line, problem, noun="frame"))
    kind, frame_id = fields.get("type"), _readable_id(fields.get("id"))
    if not isinstance(kind, str):
        raise ProtocolError("not a frame: it has no type that is a string", frame_id=frame_id)
    if kind not in names:
        raise UnknownFrame(f"unknown frame {kind!r}", frame_id=frame_id, frame_type=kind)
    if isinstance(problem, UnicodeDecodeError):
        wrong = f"{kind}: invalid UTF-8 at byte {problem.start}"
        raise ProtocolError(wrong, frame_id=frame_id, frame_type=kind)
    try:
        return decoder.decode(encode(_without_nulls(fields)))
    except _UNREADABLE as wrong_field:
        raise ProtocolError(f"{kind}: {wrong_field}", frame_id=frame_id, frame_type=kind) from None


def _fields(line: bytes) -> dict[str, Any] | None:
    """Return what stands in a line that may have half characters or wrong bytes in it; None if it is no object."""
    try:
        line.decode()
    except UnicodeDecodeError:
        if len(line) > _MAX_REPAIRED_BYTES:
            return None
        line = line.decode("utf-8", "replace").encode()
    try:
        halves = line.count(b"\\ud") + line.count(b"\\uD")
        if not halves:
            return msgspec.json.decode(line, type=dict[str, Any])
        if halves > _MAX_HALVES:
            return None
        import json  # It reads half characters, which are rare.

        fields = json.loads(line, parse_constant=_no_number)
    except (*_UNREADABLE, ValueError):
        return None
    return fields if isinstance(fields, dict) else None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a frame without the nulls that are ours to interpret: not those in arguments and schemas."""
    present = {key: value for key, value in fields.items() if value is not None}
    if isinstance(panel := present.get("open_panel"), dict):
        present["open_panel"] = _without_nulls(panel)
    if isinstance(content := present.get("content"), list):
        present["content"] = [_without_nulls(block) if isinstance(block, dict) else block for block in content]
    return present


def _readable_id(value: Any) -> bytes:
    """Return an id as JSON, whether it is the string it should be or a number; b"" if it is neither."""
    return encode(value) if isinstance(value, str | int) and not isinstance(value, bool) else b""
