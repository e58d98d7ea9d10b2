"""Declarations of an extension, by name, and the answers that its handlers return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from zot.ext.arguments import Arguments
from zot.wire import extension as wire
from zot.wire.extension import CommandResponse, ContentBlock, EventInterceptResponse

Draw: TypeAlias = Callable[[], Iterable[str]]
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
Handler: TypeAlias = Callable[..., Any]
#: Sends frames in one write.
Send: TypeAlias = Callable[..., None]
#: Placeholder of the id, which is set when the answer is sent.
_NO_ID = "-"


class ToolError(Exception):
    """Raise it in a tool: the model gets its text as the error of the call."""


class Image(msgspec.Struct, frozen=True):
    """Image returned by a tool."""

    data: bytes
    mime_type: str = "image/png"


#: A tool may also return any other JSON value: the model gets it as JSON text.
ToolOutput: TypeAlias = str | Image | list[str | Image] | None


class Response(msgspec.Struct, frozen=True):
    """Action of zot after a command. Create it with `prompt`, `insert`, `display`, `noop` or `Panel.open`."""

    frame: CommandResponse


class Decision(msgspec.Struct, frozen=True):
    """Decision about an event. Create it with `allow`, `block`, `modify` or `replace`."""

    frame: EventInterceptResponse


def prompt(text: str) -> Response:
    """Start a run with ``text`` as the user's prompt."""
    if not text.strip():
        raise ValueError("a prompt must not be empty")
    return Response(CommandResponse(_NO_ID, "prompt", prompt=text))


def insert(text: str) -> Response:
    """Insert ``text`` into the editor at the cursor, for the user to continue."""
    return Response(CommandResponse(_NO_ID, "insert", insert=text))


def display(text: str) -> Response:
    """Show a note to the user only; the model does not see it."""
    return Response(CommandResponse(_NO_ID, "display", display=text))


def noop() -> Response:
    """Do nothing more: the handler has done everything."""
    return Response(CommandResponse(_NO_ID))


def allow(note: str = "") -> Decision:
    """Allow the event unchanged. Returning None does the same."""
    return Decision(EventInterceptResponse(_NO_ID, reason=note))


def block(reason: str) -> Decision:
    """Block the event. The model gets the reason for a tool call, the user for other events."""
    return Decision(EventInterceptResponse(_NO_ID, block=True, reason=reason))


def modify(args: dict[str, Any], note: str = "") -> Decision:
    """Run the tool with these arguments instead. Raise TypeError if they are not JSON."""
    msgspec.json.encode(args)
    return Decision(EventInterceptResponse(_NO_ID, reason=note, modified_args=args))


def replace(text: str, note: str = "") -> Decision:
    """Show the user another text than the model's. An empty one shows nothing."""
    if not text:
        return block(note or "the message was removed")
    return Decision(EventInterceptResponse(_NO_ID, reason=note, replace_text=text))


def content_of(output: Any) -> tuple[ContentBlock, ...]:
    """Return a tool's output as content blocks."""
    pieces: Iterable[Any] = output if _is_pieces(output) else () if output is None else (output,)
    return tuple(map(_block, pieces))


def _is_pieces(output: Any) -> bool:
    return isinstance(output, list) and bool(output) and all(isinstance(piece, str | Image) for piece in output)


def _block(piece: Any) -> ContentBlock:
    if isinstance(piece, Image):
        from base64 import b64encode  # Imported lazily: not needed before hello, and few tools return images.

        return ContentBlock("image", mime_type=piece.mime_type, data=b64encode(piece.data).decode())
    return ContentBlock("text", piece if isinstance(piece, str) else msgspec.json.encode(piece).decode())


class Panel:
    """Panel, created by `Extension.panel`. Its function returns its lines; ``title`` and ``footer`` may change.

    It is rendered again after each key press while it is open.
    """

    def __init__(self, panel_id: str, draw: Draw, title: str, footer: str, send: Callable[..., None]) -> None:
        self.id = panel_id
        self.title = title
        self.footer = footer
        self.is_open = False
        self._draw = draw
        self._send: Callable[[wire.AnyFromExtension], None] = send
        #: Called with the key and, for "rune", the character.
        self.on_key: Callable[..., Any] | None = None
        #: Called after the user closed the panel.
        self.on_close: Callable[..., Any] | None = None

    def __call__(self) -> Iterable[str]:
        """Return the lines to show."""
        return self._draw()

    def key(self, handler: _Handler) -> _Handler:
        """Decorate ``handler(key, text)``, which gets the keys pressed in the panel."""
        self.on_key = handler
        return handler

    def closed(self, handler: _Handler) -> _Handler:
        """Decorate ``handler()``, which is called after the user closed the panel."""
        self.on_close = handler
        return handler

    def open(self) -> Response:
        """Return the response of a command that opens the panel."""
        self.is_open = True
        panel = wire.Panel(self.id, self.title, tuple(self._draw()), self.footer)
        return Response(CommandResponse(_NO_ID, "open_panel", open_panel=panel))

    def render(self) -> None:
        """Render the panel again, if it is open. Thread-safe."""
        if self.is_open:
            self._send(wire.PanelRender(self.id, self.title, tuple(self._draw()), self.footer))

    def close(self) -> None:
        """Close the panel, if it is open."""
        if self.is_open:
            self.is_open = False
            self._send(wire.PanelClose(self.id))


class DeclaredCommand(NamedTuple):
    """Registration of a command with its handler."""

    frame: wire.RegisterCommand
    handler: Handler


class DeclaredTool(NamedTuple):
    """Registration of a tool with its handler; ``arguments`` is None if they are not checked."""

    frame: wire.RegisterTool
    handler: Handler
    arguments: Arguments | None


class Declarations:
    """Declarations by name. Those made while the extension runs are sent at once."""

    def __init__(self) -> None:
        self.commands: dict[str, DeclaredCommand] = {}
        self.tools: dict[str, DeclaredTool] = {}
        self.events: dict[wire.EventName, list[Handler]] = {}
        self.interceptors: dict[wire.Intercepted, Handler] = {}
        self.panels: dict[str, Panel] = {}
        self.setup: list[Handler] = []
        self.at_end: list[Handler] = []
        self.host: wire.HelloAck | None = None
        self.send: Send | None = None
        self.subscribed = False
        self._unsent: list[wire.Notify] = []

    def add_command(self, command: DeclaredCommand) -> None:
        _must_be_new("command", command.frame.name, self.commands)
        self.commands[command.frame.name] = command
        self.tell(command.frame)

    def add_tool(self, tool: DeclaredTool) -> None:
        _must_be_new("tool", tool.frame.name, self.tools)
        self.tools[tool.frame.name] = tool
        self.tell(tool.frame)

    def add_event(self, event: wire.EventName, handler: Handler) -> None:
        self._must_not_be_subscribed()
        self.events.setdefault(event, []).append(handler)

    def add_interceptor(self, event: wire.Intercepted, handler: Handler) -> None:
        self._must_not_be_subscribed()
        _must_be_new("interceptor of", event, self.interceptors)
        self.interceptors[event] = handler

    def add_panel(self, panel: Panel) -> None:
        _must_be_new("panel", panel.id, self.panels)
        self.panels[panel.id] = panel

    def tell(self, frame: wire.AnyFromExtension) -> None:
        """Send a frame if the extension runs. Before that, keep notices; registrations are sent at the start anyway."""
        if self.send is not None:
            self.send(frame)
        elif isinstance(frame, wire.Notify):
            self._unsent.append(frame)

    def take_unsent(self) -> list[wire.Notify]:
        """Return the notices from before the start, once."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def _must_not_be_subscribed(self) -> None:
        if self.subscribed:
            raise RuntimeError("events and interceptors must be declared before the extension reports that it is ready")


def _must_be_new(kind: str, name: str, known: Iterable[str]) -> None:
    if name in known:
        raise ValueError(f"there is already a {kind} {name}")
