"""Extension: declarations by its author, and services for its handlers. Does no I/O until it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from zot.encoding import explain, thread_safe_type
from zot.ext.declarations import Arguments, Declarations, DeclaredCommand, DeclaredTool, Draw, Handler, Panel
from zot.wire import extension as wire

if TYPE_CHECKING:
    from pathlib import Path

_Function = TypeVar("_Function", bound=Handler)
_Frame = TypeVar("_Frame", bound=wire.FromExtension)


class Extension:
    """Declare commands, tools, events, interceptors and panels on it, then `run` it.

    Handlers may be plain functions or coroutines. Tools and commands run in parallel, each call in its own thread or
    task; handlers of events, interceptors and panel keys run in order, one at a time. An exception is an answer: an
    error of a tool or a command, a block by an interceptor.

    With ``on_failure`` "block", zot blocks events that an interceptor here does not decide about in time, or at all.
    """

    def __init__(self, name: str, version: str = "", *, on_failure: wire.OnFailure = "allow") -> None:
        self.name = name
        self.version = version
        self.on_failure: wire.OnFailure = on_failure
        #: Used by `zot.ext.serving`.
        self.declared = Declarations()
        _checked(wire.Hello(name, version))
        _checked(wire.Subscribe(on_failure=on_failure))

    # Declarations.

    @overload
    def command(self, name: _Function, /) -> _Function: ...
    @overload
    def command(self, name: str = "", /, description: str = "") -> Callable[[_Function], _Function]: ...
    def command(self, name: Any = "", /, description: str = "") -> Any:
        """Declare a slash command. The function gets the text that the user typed after the command.

        It returns `prompt(...)`, `insert(...)`, `display(...)`, `panel.open()`, a text to display, or None. The name
        defaults to the function's, the description to the first line of its docstring.
        """
        if callable(name):
            return self.command()(name)

        def declare(function: _Function) -> _Function:
            named = name or function.__name__
            said = description or (function.__doc__ or "").strip().partition("\n")[0]
            self.declared.add_command(DeclaredCommand(_checked(wire.RegisterCommand(named, said)), function))
            return function

        return declare

    @overload
    def tool(self, name: _Function, /) -> _Function: ...
    @overload
    def tool(
        self, name: str = "", /, description: str = "", schema: dict[str, Any] | None = None
    ) -> Callable[[_Function], _Function]: ...
    def tool(self, name: Any = "", /, description: str = "", schema: dict[str, Any] | None = None) -> Any:
        """Declare a tool for the model, described by the function's type hints and docstring.

        The function returns a text, an `Image`, a list of those, or any other JSON value; it raises `ToolError` on
        failure. With your own ``schema``, the function gets the arguments as one dictionary, unchecked.
        """
        if callable(name):
            return self.tool()(name)

        def declare(function: _Function) -> _Function:
            named = name or function.__name__
            arguments = Arguments(function) if schema is None else None
            shape = schema if arguments is None else arguments.schema
            said = description or (arguments.description if arguments else (function.__doc__ or "").strip())
            frame = _checked(wire.RegisterTool(named, said, shape or {}))
            self.declared.add_tool(DeclaredTool(frame, function, arguments))
            return function

        return declare

    def on(self, *events: wire.EventName) -> Callable[[_Function], _Function]:
        """Subscribe a function to events. It gets an `Event`."""
        for event in events:
            if event not in wire.EVENTS:
                raise ValueError(f"no event {event!r}; known: {', '.join(wire.EVENTS)}")

        def declare(function: _Function) -> _Function:
            for event in events:
                self.declared.add_event(event, function)
            return function

        return declare

    def intercept(self, event: wire.Intercepted) -> Callable[[_Function], _Function]:
        """Let a function decide about an event before it takes effect. It gets an `Intercept`.

        It returns `block(...)`, `modify(...)` for a tool call, `replace(...)` for a message, or None to allow it.
        """
        if event not in wire.INTERCEPTED:
            raise ValueError(f"cannot intercept {event!r}, only {', '.join(wire.INTERCEPTED)}")

        def declare(function: _Function) -> _Function:
            self.declared.add_interceptor(event, function)
            return function

        return declare

    def panel(self, panel_id: str, *, title: str = "", footer: str = "") -> Callable[[Draw], Panel]:
        """Declare a panel by a function that returns its lines. The decorated name becomes the `Panel`."""

        def declare(draw: Draw) -> Panel:
            panel = Panel(panel_id, draw, title, footer, self.declared.tell)
            self.declared.add_panel(panel)
            return panel

        return declare

    def setup(self, function: _Function) -> _Function:
        """Decorate a function to call after zot's answer to hello and before ready: `host` and `data_dir` are known.

        It may declare more commands and tools.
        """
        self.declared.setup.append(function)
        return function

    def at_end(self, function: _Function) -> _Function:
        """Decorate a function to call when zot shuts the extension down."""
        self.declared.at_end.append(function)
        return function

    # Services for handlers.

    @property
    def host(self) -> wire.HelloAck:
        """The running zot: `zot_version`, `provider`, `model`, `cwd`. Known from `setup` on."""
        if self.declared.host is None:
            raise RuntimeError("zot has not answered hello yet: use it in a handler, or in a function with @setup")
        return self.declared.host

    @property
    def data_dir(self) -> Path:
        """Directory for the extension's files. Known from `setup` on."""
        from pathlib import Path  # Imported lazily: not needed before hello.

        return Path(self.host.data_dir)

    def notify(self, message: str, level: wire.Level = "info") -> None:
        """Show a notice to the user. Thread-safe."""
        if level not in wire.LEVELS:
            raise ValueError(f"no level {level!r}; known: {', '.join(wire.LEVELS)}")
        self.declared.tell(wire.Notify(message, level))

    def run(self) -> None:
        """Serve zot on standard input and output until it shuts the extension down; prints go to standard error."""
        from zot.ext.serving import serve  # Imported lazily: a module of an extension may be imported only.

        serve(self)


def _checked(frame: _Frame) -> _Frame:
    """Return a frame that zot accepts. Raise ValueError for others."""
    try:
        return msgspec.convert(msgspec.to_builtins(frame), thread_safe_type(type(frame)))
    except msgspec.ValidationError as problem:
        raise ValueError(f"{frame.__struct_config__.tag}: {explain(problem)}") from None
