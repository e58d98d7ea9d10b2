"""Service of an extension: frames from its declarations, and the loop on standard input and output.

An exception in a handler becomes an answer, with its traceback on standard error; it is never raised from here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from zot.encoding import explain
from zot.errors import ProtocolError
from zot.ext.declarations import Decision, Handler, Response, ToolError, content_of, display, noop, parameters
from zot.wire import extension as wire
from zot.wire.lines import LineSplitter, TooLong

if TYPE_CHECKING:
    import asyncio
    from queue import SimpleQueue

    from zot.ext.extension import Extension

#: Exceptions of handlers that become answers. SystemExit would only end the calling thread.
_FAILURES = (Exception, SystemExit)
#: Maximum length of an encoded character: `\u0000` has six bytes.
_LONGEST_CHARACTER = 6
_EVERYTHING = ("commands", "tools", "events", "panels")
#: Longest line from zot: tool arguments have no limit of their own.
_MAX_LINE_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 1 << 16
#: Time to finish work after a shutdown request. zot waits two seconds in total.
_PATIENCE_S: Final = 1.5
_Job: TypeAlias = Callable[[], None]


class Surroundings(Protocol):
    """Surroundings of a service: standard input and output (`serve`), or a test (`zot.ext.testing`)."""

    def send(self, *frames: wire.AnyFromExtension) -> None:
        """Send frames without others in between. Thread-safe."""

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result."""


class ExtensionService:
    """Protocol endpoint of an extension."""

    def __init__(self, extension: Extension, surroundings: Surroundings) -> None:
        self._extension = extension
        self._declared = extension.declared
        self._surroundings = surroundings
        self._declared.host, self._declared.send, self._declared.subscribed = None, None, False

    def begin(self) -> None:
        """Send hello and the declarations; also ready, unless there are setup functions."""
        declared = self._declared
        frames: list[wire.AnyFromExtension] = [
            wire.Hello(self._extension.name, self._extension.version, self._capabilities()),
            *(command.frame for command in declared.commands.values()),
            *(tool.frame for tool in declared.tools.values()),
        ]
        declared.send = self._surroundings.send
        self._surroundings.send(*frames, *(() if declared.setup else self._final_frames()))

    def greeted(self, ack: wire.HelloAck) -> None:
        """Handle zot's answer to hello. Raises the exceptions of setup functions: the extension cannot start."""
        self._declared.host = ack
        if self._declared.setup:
            for function in self._declared.setup:
                self._call(function)
            self._surroundings.send(*self._final_frames())

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

    def handle(self, frame: wire.Event | wire.PanelKey | wire.PanelClose) -> None:
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
        return self._surroundings.run(returned) if isinstance(returned, Coroutine) else returned


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


def serve(extension: Extension) -> None:
    """Serve zot until it requests shutdown or exits. From now on prints go to standard error."""
    _StdioServer(extension, _private_stdout()).serve()


class _StdioServer:
    """Reader of frames, a worker for ordered handlers, and a thread for each call. Owns the ``output``."""

    def __init__(self, extension: Extension, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._worker = _Worker()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service = ExtensionService(extension, self)

    def serve(self) -> None:
        """Serve zot until it requests shutdown or exits."""
        self._service.begin()
        for frame in _frames():
            if isinstance(frame, wire.Shutdown):
                break
            self._dispatch(frame)
        self._worker.put(self._service.finish)
        self._worker.drain(_PATIENCE_S)
        with suppress(BrokenPipeError):  # zot may have exited.
            self.send(wire.ShutdownAck())

    def send(self, *frames: wire.AnyFromExtension) -> None:
        data = memoryview(wire.encode_frames(frames))
        with self._lock:
            while data:
                data = data[os.write(self._output, data) :]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        import asyncio  # Imported lazily: plain functions do not need it.

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                _start_thread(self._loop.run_forever)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _dispatch(self, frame: wire.AnyToExtension) -> None:
        service = self._service
        match frame:
            case wire.HelloAck():
                service.greeted(frame)
            case wire.CommandInvoked():
                _start_thread(lambda: self.send(service.command_response(frame)))
            case wire.ToolCall():
                _start_thread(lambda: self.send(service.tool_result(frame)))
            case wire.EventIntercept():
                self._worker.put(lambda: self.send(service.decision(frame)))
            case wire.Event() | wire.PanelKey() | wire.PanelClose():
                self._worker.put(lambda: service.handle(frame))
            case wire.Shutdown():
                pass  # Ends the loop of `serve`.


def _frames() -> Iterator[wire.AnyToExtension]:
    """Yield the frames from zot until the end of input. Invalid lines go to the log."""
    lines = LineSplitter(max_line_bytes=_MAX_LINE_BYTES)
    while data := os.read(0, _READ_BYTES):
        for line in lines.feed(data):
            if isinstance(line, TooLong):
                _log(f"zot wrote a line of more than {line.limit} bytes")
                continue
            try:
                yield wire.decode_to_extension(line)
            except ProtocolError as problem:  # A later zot may send unknown frames.
                _log(str(problem))


def _start_thread(job: _Job) -> None:
    threading.Thread(target=job, daemon=True).start()


def _private_stdout() -> int:
    """Reserve standard output for frames: all prints go to standard error."""
    private = os.dup(1)
    os.dup2(2, 1)
    return private


def _log(text: str) -> None:
    sys.stderr.write(f"zot.ext: {text}\n")


class _Worker:
    """Worker that runs jobs in order, in its own thread, started with the first job."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] | None = None

    def put(self, job: _Job) -> None:
        if self._jobs is None:
            from queue import SimpleQueue  # Imported lazily: hello is sent before.

            self._jobs = SimpleQueue()
            _start_thread(partial(self._work, self._jobs))
        self._jobs.put(job)

    def drain(self, within_s: float) -> None:
        """Wait up to ``within_s`` for the jobs put so far."""
        done = threading.Event()
        self.put(done.set)
        done.wait(within_s)

    def _work(self, jobs: SimpleQueue[_Job]) -> None:
        while True:
            jobs.get()()
