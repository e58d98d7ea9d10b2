"""Extension protocol v1: every frame between zot and an extension. Does no I/O.

Both sides read with `decode_from_extension` or `decode_to_extension` and write with `encode_frame`. Unknown fields are
ignored, ``null`` counts as absent, and a lone surrogate is read as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec

from zot.encoding import UNREADABLE, decoder, encode, explain, standard_json
from zot.errors import ProtocolError
from zot.wire.lines import may_repeat_type, not_an_object, refuse_repeated_type

PROTOCOL_VERSION: Final = 1
#: Longest line that an extension may write, without its LF.
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
#: Most JSON values in a line: elements, fields and their containers.
MAX_VALUES: Final = 20_000
#: Longest line that registers or subscribes: descriptions and schemas are part of every request to the model.
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

# `(?!\n)` makes the patterns mean the same in Python, where `$` also matches before a final LF, and in JSON Schema.
#: Part of the name of a directory and of a log file.
ExtensionName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)")]
#: Typed by a person after a slash.
CommandName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[^\s/\x00-\x1f\x7f]{1,64}$(?!\n)")]
#: Accepted by every model service as a function name.
ToolName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$(?!\n)")]
FrameId: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
PanelId: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
PanelLines: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=2000)]


class FromExtension(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """A frame that an extension sends."""


class Hello(FromExtension, tag="hello", frozen=True):
    """The first frame: identifies the extension. ``capabilities`` may announce its later registrations."""

    name: ExtensionName
    version: str = ""
    capabilities: tuple[str, ...] = ()


class RegisterCommand(FromExtension, tag="register_command", frozen=True):
    """Registers a slash command."""

    name: CommandName
    description: str = ""


class RegisterTool(FromExtension, tag="register_tool", frozen=True):
    """Registers a tool for the model. ``schema`` is the JSON Schema of its arguments."""

    name: ToolName
    description: str = ""
    schema: dict[str, Any] = {}


class Subscribe(FromExtension, tag="subscribe", frozen=True):
    """Subscribes to ``events`` and intercepts others. Unknown names are ignored.

    With ``on_failure`` "block", an event that the extension fails to answer for is blocked.
    """

    events: tuple[str, ...] = ()
    intercept: tuple[str, ...] = ()
    on_failure: OnFailure = "allow"


class Ready(FromExtension, tag="ready", frozen=True):
    """The initial registrations are complete."""


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
    """The answer to `EventIntercept`. With ``id`` alone, the event proceeds unchanged."""

    id: FrameId
    block: bool = False
    reason: str = ""
    modified_args: dict[str, Any] | None = None
    replace_text: str = ""


class Panel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A panel to open, with its initial content."""

    id: PanelId
    title: str = ""
    lines: PanelLines = ()
    footer: str = ""


class CommandResponse(FromExtension, tag="command_response", frozen=True):
    """The answer to `CommandInvoked`: the action for zot to take. An ``error`` is shown with any action."""

    id: FrameId
    action: Action = "noop"
    prompt: str = ""
    insert: str = ""
    display: str = ""
    open_panel: Panel | None = None
    error: str = ""


class PanelRender(FromExtension, tag="panel_render", frozen=True):
    """Replaces the content of an open panel."""

    panel_id: PanelId
    title: str = ""
    lines: PanelLines = ()
    footer: str = ""


class PanelClose(FromExtension, tag="panel_close", frozen=True):
    """Closes a panel. Either side may send it."""

    panel_id: PanelId


class Notify(FromExtension, tag="notify", frozen=True):
    """A notice for the user. An unknown ``level`` counts as info."""

    message: str
    level: str = "info"


class ShutdownAck(FromExtension, tag="shutdown_ack", frozen=True):
    """Acknowledges `Shutdown`: the extension is about to exit."""


class ToExtension(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """A frame that zot sends to an extension."""


class HelloAck(ToExtension, tag="hello_ack", frozen=True):
    """The answer to `Hello`: the session's provider, model and directory, and the extension's own directories."""

    protocol_version: int
    zot_version: str
    provider: str
    model: str
    cwd: str
    extension_dir: str
    data_dir: str


class CommandInvoked(ToExtension, tag="command_invoked", frozen=True, omit_defaults=False):
    """The user runs a command. ``args`` is the text after its name, trimmed."""

    id: FrameId
    name: str
    args: str = ""


class ToolCall(ToExtension, tag="tool_call", frozen=True, omit_defaults=False):
    """The model calls a tool of the extension."""

    id: FrameId
    name: str
    args: dict[str, Any] = {}


class Event(ToExtension, tag="event", frozen=True):
    """An event that the extension subscribed to. The fields depend on ``event``."""

    event: EventName
    step: int = 0
    stop: str = ""
    error: str = ""
    tool_id: str = ""
    tool_name: str = ""
    tool_args: dict[str, Any] | None = None
    text: str = ""


class EventIntercept(ToExtension, tag="event_intercept", frozen=True):
    """Asks an interceptor to allow, change or block an event before it happens. The fields depend on ``event``."""

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
    """The last frame. Send `ShutdownAck` and exit."""


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

#: Longest line with invalid UTF-8 that is searched for its id, which is slow.
_MAX_REPAIRED_BYTES: Final = 64 * 1024
#: Most surrogate escapes in a line that is read with `json`, which is slow.
_MAX_SURROGATES: Final = 20_000
_REGISTRATIONS = (Hello, RegisterCommand, RegisterTool, Subscribe)


def name_of(frame: AnyFrame | type[AnyFrame]) -> str:
    """Return the wire name of a frame or of a frame type."""
    return str(frame.__struct_config__.tag)


_FROM_EXTENSION: Final = frozenset(map(name_of, get_args(AnyFromExtension)))
_TO_EXTENSION: Final = frozenset(map(name_of, get_args(AnyToExtension)))


class UnknownFrame(ProtocolError):
    """A well-formed frame of a type that this version does not know."""


def encode_frame(frame: AnyFrame) -> bytes:
    """Return a frame as its line. Lone surrogates become U+FFFD."""
    return encode(frame) + b"\n"


def encode_frames(frames: Iterable[AnyFrame]) -> bytes:
    """Return frames as lines, for a single write."""
    return b"".join(map(encode_frame, frames))


def decode_from_extension(line: bytes) -> AnyFromExtension:
    """Decode a frame that an extension sent. Raise ProtocolError, with id and type if readable, if it is invalid.

    Raise its subclass `UnknownFrame` if only the type is unknown.
    """
    frame: AnyFromExtension = _decode(line, _from_extension(), _FROM_EXTENSION)
    if len(line) > MAX_REGISTRATION_BYTES and isinstance(frame, _REGISTRATIONS):
        kind = name_of(frame)
        raise ProtocolError(f"{kind}: longer than {MAX_REGISTRATION_BYTES} bytes", frame_type=kind)
    return frame


def decode_to_extension(line: bytes) -> AnyToExtension:
    """Decode a frame that zot sent. Raise as `decode_from_extension` does."""
    frame: AnyToExtension = _decode(line, _to_extension(), _TO_EXTENSION)
    return frame


@cache
def _from_extension() -> msgspec.json.Decoder[AnyFromExtension]:
    # Built on first use: each side reads only one of the two.
    return decoder(AnyFromExtension)


@cache
def _to_extension() -> msgspec.json.Decoder[AnyToExtension]:
    return decoder(AnyToExtension)


def _decode(line: bytes, decoder: msgspec.json.Decoder[Any], names: frozenset[str]) -> Any:
    try:
        line.decode()  # The typed decode does not check UTF-8 in skipped values.
        frame = decoder.decode(line)
    except UNREADABLE as problem:
        frame = _decode_leniently(line, problem, decoder, names)
    if may_repeat_type(line):
        refuse_repeated_type(line, noun="frame")
    return frame


def _decode_leniently(
    line: bytes, problem: Exception, decoder: msgspec.json.Decoder[Any], names: frozenset[str]
) -> Any:
    """Decode a frame with nulls or lone surrogates; raise ProtocolError, with id and type if readable, if invalid."""
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
    except UNREADABLE as wrong_field:
        raise ProtocolError(f"{kind}: {explain(wrong_field)}", frame_id=frame_id, frame_type=kind) from None


def _fields(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line that may have lone surrogates or invalid UTF-8; None if it is no object."""
    try:
        line.decode()
    except UnicodeDecodeError:
        if len(line) > _MAX_REPAIRED_BYTES:
            return None
        line = line.decode("utf-8", "replace").encode()
    try:
        surrogates = line.count(b"\\ud") + line.count(b"\\uD")
        if not surrogates:
            return msgspec.json.decode(line, type=dict[str, Any])
        if surrogates > _MAX_SURROGATES:
            return None
        fields = standard_json().loads(line, parse_constant=_no_number)
    except (*UNREADABLE, ValueError):
        return None
    return fields if isinstance(fields, dict) else None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a frame without the nulls in its own fields. Those in arguments and schemas stay."""
    present = {key: value for key, value in fields.items() if value is not None}
    if isinstance(panel := present.get("open_panel"), dict):
        present["open_panel"] = _without_nulls(panel)
    if isinstance(content := present.get("content"), list):
        present["content"] = [_without_nulls(block) if isinstance(block, dict) else block for block in content]
    return present


def _readable_id(value: Any) -> bytes:
    """Return an id as JSON if it is a string, as it should be, or a number; else b""."""
    return encode(value) if isinstance(value, str | int) and not isinstance(value, bool) else b""
