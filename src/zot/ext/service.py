"""What an extension says and answers, frame by frame, by what was declared on it. Does no I/O.

Nothing here raises because a handler does: that is an answer, too, and the traceback is on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from zot.ext.answers import Decision, Response, ToolError, content_of, display, noop
from zot.ext.arguments import parameters
from zot.ext.declared import Handler, Send
from zot.wire import extension as wire

if TYPE_CHECKING:
    from zot.ext.extension import Extension

#: Runs a coroutine to its end and returns what it returned.
Await: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
#: The author's code: whatever it raises is the answer. One that exits would only end the thread that called it.
_FAILURES = (Exception, SystemExit)
#: How many bytes a character may become: `\u0000` has six.
_LONGEST_CHARACTER = 6
_EVERYTHING = ("commands", "tools", "events", "panels")


class Service:
    """An extension that is talked to. ``send`` sends frames, from any thread; ``run_async`` runs a coroutine."""

    def __init__(self, extension: Extension, send: Send, run_async: Await) -> None:
        self._extension = extension
        self._declared = extension.declared
        self._send = send
        self._await = run_async
        self._declared.host, self._declared.send, self._declared.subscribed = None, None, False

    def begin(self) -> None:
        """Say hello and what was declared; ready, too, unless something is to be set up first."""
        declared = self._declared
        frames: list[wire.AnyFromExtension] = [
            wire.Hello(self._extension.name, self._extension.version, self._capabilities()),
            *(command.frame for command in declared.commands.values()),
            *(tool.frame for tool in declared.tools.values()),
        ]
        declared.send = self._send
        self._send(*frames, *(() if declared.setup else self._last()))

    def greeted(self, ack: wire.HelloAck) -> None:
        """Take zot's answer to hello. Raises what a function with `setup` raises: it cannot begin."""
        self._declared.host = ack
        if self._declared.setup:
            for function in self._declared.setup:
                self._call(function)
            self._send(*self._last())

    def command_response(self, frame: wire.CommandInvoked) -> wire.CommandResponse:
        """Return what a command answers."""
        try:
            handler = self._declared.commands[frame.name].handler
            response = _response(self._call(handler, *((frame.args,) if parameters(handler) else ())))
        except _FAILURES as problem:
            return wire.CommandResponse(frame.id, error=_told(f"/{frame.name}", problem))
        return msgspec.structs.replace(response.frame, id=frame.id)

    def tool_result(self, frame: wire.ToolCall) -> wire.ToolResult:
        """Return what a tool answers."""
        try:
            return _short_enough(wire.ToolResult(frame.id, content_of(self._call_tool(frame))))
        except ToolError as problem:
            return wire.ToolResult(frame.id, content_of(str(problem)), is_error=True)
        except _FAILURES as problem:
            return wire.ToolResult(frame.id, content_of(_told(frame.name, problem)), is_error=True)

    def decision(self, frame: wire.EventIntercept) -> wire.EventInterceptResponse:
        """Return what an interceptor answers. One that fails does not let things through."""
        try:
            decided = self._call(self._declared.interceptors[frame.event], frame)
            if not isinstance(decided, Decision | None):
                raise TypeError(f"an interceptor returns a decision or None, not {decided!r}")
        except _FAILURES as problem:
            reason = _told(f"the interceptor of {frame.event} in {self._extension.name}", problem)
            return wire.EventInterceptResponse(frame.id, block=True, reason=reason)
        decision = decided.frame if decided is not None else wire.EventInterceptResponse(frame.id)
        return msgspec.structs.replace(decision, id=frame.id)

    def hear(self, frame: wire.Event | wire.PanelKey | wire.PanelClose) -> None:
        """Let handlers know what happened."""
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
            _told(wire.name_of(frame), problem)

    def finish(self) -> None:
        """Let handlers know that it is over. What they say after that is not sent."""
        for handler in self._declared.at_end:
            try:
                self._call(handler)
            except _FAILURES as problem:
                _told("at_end", problem)
        self._declared.send = None

    def _capabilities(self) -> tuple[str, ...]:
        declared = self._declared
        if declared.setup:
            return _EVERYTHING  # It may turn out to be anything.
        some = (declared.commands, declared.tools, declared.events or declared.interceptors, declared.panels)
        return tuple(name for name, any_of in zip(_EVERYTHING, some, strict=True) if any_of)

    def _last(self) -> list[wire.AnyFromExtension]:
        """Return what is said when all is declared."""
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
            raise ToolError(f"{frame.name}: {problem}") from None
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


def _short_enough(result: wire.ToolResult) -> wire.ToolResult:
    """Return a result that zot will read; raise ToolError if it is too long: that would fail other calls, too."""
    size = sum(len(block.text) + len(block.data) for block in result.content)
    if size * _LONGEST_CHARACTER > wire.MAX_LINE_BYTES and len(wire.encode_frame(result)) > wire.MAX_LINE_BYTES:
        raise ToolError(f"the result is too long: {size} characters; a line of more than 4 MiB is not read")
    return result


def _told(who: str, problem: BaseException) -> str:
    """Write a failure into the log, which standard error is, and return what is said of it."""
    import traceback

    traceback.print_exception(problem, file=sys.stderr)
    return f"{who} failed: {type(problem).__name__}: {problem}"
