"""Standard input and output of an extension: a reader, a worker for ordered handlers, and a thread for each call."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from zot.errors import ProtocolError
from zot.ext.serving import ExtensionService
from zot.wire import extension as wire
from zot.wire.lines import LineSplitter, TooLong

if TYPE_CHECKING:
    import asyncio
    from queue import SimpleQueue

    from zot.ext.extension import Extension

#: Longest line from zot: tool arguments have no limit of their own.
_MAX_LINE_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 1 << 16
#: Time to finish work after a shutdown request. zot waits two seconds in total.
_PATIENCE_S: Final = 1.5
_Job: TypeAlias = Callable[[], None]


def serve(extension: Extension) -> None:
    """Serve zot until it requests shutdown or exits. From now on prints go to standard error."""
    writer, worker = _Writer(_private_stdout()), _Worker()
    service = ExtensionService(extension, writer.send, _Loop().run)
    service.begin()
    for frame in _frames():
        if isinstance(frame, wire.Shutdown):
            break
        _dispatch(frame, service, writer, worker)
    worker.put(service.finish)
    worker.drain(_PATIENCE_S)
    writer.send_last(wire.ShutdownAck())


def _dispatch(frame: wire.AnyToExtension, service: ExtensionService, writer: _Writer, worker: _Worker) -> None:
    match frame:
        case wire.HelloAck():
            service.greeted(frame)
        case wire.CommandInvoked():
            _start_thread(lambda: writer.send(service.command_response(frame)))
        case wire.ToolCall():
            _start_thread(lambda: writer.send(service.tool_result(frame)))
        case wire.EventIntercept():
            worker.put(lambda: writer.send(service.decision(frame)))
        case wire.Event() | wire.PanelKey() | wire.PanelClose():
            worker.put(lambda: service.hear(frame))
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


class _Writer:
    """Thread-safe writer of whole frames."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send_last(self, frame: wire.AnyFromExtension) -> None:
        """Write a frame, even if zot may have exited."""
        with suppress(BrokenPipeError):
            self.send(frame)

    def send(self, *frames: wire.AnyFromExtension) -> None:
        """Write frames without others in between."""
        data = memoryview(wire.encode_frames(frames))
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


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


class _Loop:
    """Event loop for coroutines, started with the first one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        import asyncio  # Imported lazily: plain functions do not need it.

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                _start_thread(self._loop.run_forever)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
