"""Declarations of an extension: commands, tools, subscriptions and panels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from zot.ext.answers import Response, opened
from zot.ext.arguments import Arguments
from zot.wire import extension as wire
from zot.wire.extension import AnyFromExtension, PanelClose, PanelRender
from zot.wire.extension import Panel as Opening

Draw: TypeAlias = Callable[[], Iterable[str]]
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Panel:
    """Made by `Extension.panel`. Its function says what it shows; ``title`` and ``footer`` may change.

    After each key it is drawn again, if it is still open.
    """

    def __init__(self, panel_id: str, draw: Draw, title: str, footer: str, send: Callable[..., None]) -> None:
        self.id = panel_id
        self.title = title
        self.footer = footer
        self.is_open = False
        self._draw = draw
        self._send: Callable[[AnyFromExtension], None] = send
        #: Called with the key and, for "rune", the character.
        self.on_key: Callable[..., Any] | None = None
        #: Called when the person has closed it.
        self.on_close: Callable[..., Any] | None = None

    def __call__(self) -> Iterable[str]:
        """Return what it shows, as its function says."""
        return self._draw()

    def key(self, handler: _Handler) -> _Handler:
        """Let ``handler(key, text)`` have the keys that are pressed in it. A decorator."""
        self.on_key = handler
        return handler

    def closed(self, handler: _Handler) -> _Handler:
        """Let ``handler()`` know that the person has closed it. A decorator."""
        self.on_close = handler
        return handler

    def open(self) -> Response:
        """Return what a command answers with to open it."""
        self.is_open = True
        return opened(Opening(self.id, self.title, tuple(self._draw()), self.footer))

    def render(self) -> None:
        """Draw it again, if it is open. From any thread."""
        if self.is_open:
            self._send(PanelRender(self.id, self.title, tuple(self._draw()), self.footer))

    def close(self) -> None:
        """Close it, if it is open."""
        if self.is_open:
            self.is_open = False
            self._send(PanelClose(self.id))


Handler: TypeAlias = Callable[..., Any]
#: Sends frames, all of them at once.
Send: TypeAlias = Callable[..., None]


class Command(NamedTuple):
    """A command as zot is told of it, and who answers."""

    frame: wire.RegisterCommand
    handler: Handler


class Tool(NamedTuple):
    """A tool as zot is told of it, and who answers; ``arguments`` is None if they are not to be checked."""

    frame: wire.RegisterTool
    handler: Handler
    arguments: Arguments | None


class Declared:
    """Everything by name. What is declared while it runs is said at once."""

    def __init__(self) -> None:
        self.commands: dict[str, Command] = {}
        self.tools: dict[str, Tool] = {}
        self.events: dict[wire.EventName, list[Handler]] = {}
        self.interceptors: dict[wire.Intercepted, Handler] = {}
        self.panels: dict[str, Panel] = {}
        self.setup: list[Handler] = []
        self.at_end: list[Handler] = []
        self.host: wire.HelloAck | None = None
        self.send: Send | None = None
        self.subscribed = False
        self._unsent: list[wire.Notify] = []

    def add_command(self, command: Command) -> None:
        _must_be_new("command", command.frame.name, self.commands)
        self.commands[command.frame.name] = command
        self.tell(command.frame)

    def add_tool(self, tool: Tool) -> None:
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
        """Say something at once if it runs. If it does not yet, what was declared is said when it does."""
        if self.send is not None:
            self.send(frame)
        elif isinstance(frame, wire.Notify):
            self._unsent.append(frame)

    def take_unsent(self) -> list[wire.Notify]:
        """Return the notes that were written too early, once."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def _must_not_be_subscribed(self) -> None:
        if self.subscribed:
            raise RuntimeError("events and interceptors have to be declared before zot is told that we are ready")


def _must_be_new(kind: str, name: str, known: Iterable[str]) -> None:
    if name in known:
        raise ValueError(f"there is already a {kind} {name}")
