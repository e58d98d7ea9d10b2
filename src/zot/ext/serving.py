"""Frames of an extension: registrations and answers, from its declarations. Does no I/O.

An exception in a handler becomes an answer, with its traceback on standard error; it is never raised from here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from zot.encoding import explain
from zot.ext.answers import Decision, Response, ToolError, content_of, display, noop
from zot.ext.arguments import parameters
from zot.ext.declarations import Handler, Send
from zot.wire import extension as wire

if TYPE_CHECKING:
    from zot.ext.extension import Extension

#: Runs a coroutine and returns its result.
Await: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
#: Exceptions of handlers that become answers. SystemExit would only end the calling thread.
_FAILURES = (Exception, SystemExit)
#: Maximum length of an encoded character: `\u0000` has six bytes.
_LONGEST_CHARACTER = 6
_EVERYTHING = ("commands", "tools", "events", "panels")


class ExtensionService:
    """Protocol endpoint of an extension. ``send`` sends frames and is thread-safe; ``run_async`` runs a coroutine."""

    def __init__(self, extension: Extension, send: Send, run_async: Await) -> None:
        self._extension = extension
        self._declared = extension.declared
        self._send = send
        self._await = run_async
        self._declared.host, self._declared.send, self._declared.subscribed = None, None, False

    def begin(self) -> None:
        """Send hello and the declarations; also ready, unless there are setup functions."""
        declared = self._declared
        frames: list[wire.AnyFromExtension] = [
            wire.Hello(self._extension.name, self._extension.version, self._capabilities()),
            *(command.frame for command in declared.commands.values()),
            *(tool.frame for tool in declared.tools.values()),
        ]
        declared.send = self._send
        self._send(*frames, *(() if declared.setup else self._final_frames()))

    def greeted(self, ack: wire.HelloAck) -> None:
        """Handle zot's answer to hello. Raises the exceptions of setup functions: the extension cannot start."""
        self._declared.host = ack
        if self._declared.setup:
            for function in self._declared.setup:
                self._call(function)
            self._send(*self._final_frames())

    def command_response(self, frame: wire.CommandInvoked) -> wire.CommandResponse:
        """Run a command's handler."""
        try:
            handler = self._declared.commands[frame.name].handler
            response = _response(self._call(handler, *((frame.args,) if parameters(handler) else ())))
        except _FAILURES as problem:
            return wire.CommandResponse(frame.id, error=_report(f"/{frame.name}", problem))
        return msgspec.structs.replace(response.frame, id=frame.id)

    def tool_result(self, frame: wire.ToolCall) -> wire.ToolResult:
        """Run a tool's handler."""
        try:
            return _within_limit(wire.ToolResult(frame.id, content_of(self._call_tool(frame))))
        except ToolError as problem:
            return wire.ToolResult(frame.id, content_of(str(problem)), is_error=True)
        except _FAILURES as problem:
            return wire.ToolResult(frame.id, content_of(_report(frame.name, problem)), is_error=True)

    def decision(self, frame: wire.EventIntercept) -> wire.EventInterceptResponse:
        """Run an interceptor. One that fails blocks the event."""
        try:
            decided = self._call(self._declared.interceptors[frame.event], frame)
            if not isinstance(decided, Decision | None):
                raise TypeError(f"an interceptor returns a decision or None, not {decided!r}")
        except _FAILURES as problem:
            reason = _report(f"the interceptor of {frame.event} in {self._extension.name}", problem)
            return wire.EventInterceptResponse(frame.id, block=True, reason=reason)
        decision = decided.frame if decided is not None else wire.EventInterceptResponse(frame.id)
        return msgspec.structs.replace(decision, id=frame.id)

    def hear(self, frame: wire.Event | wire.PanelKey | wire.PanelClose) -> None:
        """Run the handlers of an event, a key press or a closed panel."""
        try:
            match frame:
                case wire.Event(event=event):
                    for handler in self._declared.events.get(event, ()):
                        self._call(handler, frame)
                case wire.PanelKey():
                    self._press(frame)
                case wire.PanelClose(panel_id=panel_id):
                    self._close_panel(panel_id)
        except _FAILURES as problem:
            _report(wire.name_of(frame), problem)

    def finish(self) -> None:
        """Run the handlers of the end. Notices after that are not sent."""
        for handler in self._declared.at_end:
            try:
                self._call(handler)
            except _FAILURES as problem:
                _report("at_end", problem)
        self._declared.send = None

    def _capabilities(self) -> tuple[str, ...]:
        declared = self._declared
        if declared.setup:
            return _EVERYTHING  # Setup functions may declare anything.
        some = (declared.commands, declared.tools, declared.events or declared.interceptors, declared.panels)
        return tuple(name for name, any_of in zip(_EVERYTHING, some, strict=True) if any_of)

    def _final_frames(self) -> list[wire.AnyFromExtension]:
        """Return the frames that complete the declarations."""
        declared = self._declared
        declared.subscribed = True
        subscribe = wire.Subscribe(tuple(declared.events), tuple(declared.interceptors), self._extension.on_failure)
        wanted = [subscribe] if declared.events or declared.interceptors else []
        return [*wanted, wire.Ready(), *declared.take_unsent()]

    def _call_tool(self, frame: wire.ToolCall) -> Any:
        tool = self._declared.tools[frame.name]
        if tool.arguments is None:
            return self._call(tool.handler, frame.args)
        try:
            args = tool.arguments.read(frame.args)
        except msgspec.ValidationError as problem:
            raise ToolError(f"{frame.name}: {explain(problem)}") from None
        return self._call(tool.handler, **args)

    def _press(self, frame: wire.PanelKey) -> None:
        panel = self._declared.panels.get(frame.panel_id)
        if panel is None:
            return
        if panel.on_key is not None:
            self._call(panel.on_key, frame.key, frame.text)
        panel.render()

    def _close_panel(self, panel_id: str) -> None:
        panel = self._declared.panels.get(panel_id)
        if panel is None:
            return
        panel.is_open = False
        if panel.on_close is not None:
            self._call(panel.on_close)

    def _call(self, handler: Handler, *args: Any, **named: Any) -> Any:
        returned = handler(*args, **named)
        return self._await(returned) if isinstance(returned, Coroutine) else returned


def _response(returned: Any) -> Response:
    match returned:
        case None:
            return noop()
        case str():
            return display(returned)
        case Response():
            return returned
        case _:
            raise TypeError(f"a command returns a response, a text or None, not {returned!r}")


def _within_limit(result: wire.ToolResult) -> wire.ToolResult:
    """Return a result that zot can read. Raise ToolError if it is too long: that would fail other calls, too."""
    size = sum(len(block.text) + len(block.data) for block in result.content)
    if size * _LONGEST_CHARACTER > wire.MAX_LINE_BYTES and len(wire.encode_frame(result)) > wire.MAX_LINE_BYTES:
        raise ToolError(f"the result is too long: {size} characters; a line of more than 4 MiB is not read")
    return result


def _report(who: str, problem: BaseException) -> str:
    """Print a traceback to standard error, which is the log, and return a one-line summary."""
    import traceback  # Imported lazily: needed only on failure.

    traceback.print_exception(problem, file=sys.stderr)
    return f"{who} failed: {type(problem).__name__}: {problem}"
