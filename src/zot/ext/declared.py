"""What an author has declared on an extension, and the way for it to be said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from zot.ext.arguments import Arguments
from zot.ext.panel import Panel
from zot.wire import extension as wire

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
