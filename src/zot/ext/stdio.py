"""An extension on its standard input and output: a reader, a thread for what watches, and one for each call."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from zot.errors import ProtocolError
from zot.ext.service import Service
from zot.wire import extension as wire
from zot.wire.lines import LineSplitter, TooLong

if TYPE_CHECKING:
    import asyncio
    from queue import SimpleQueue

    from zot.ext.extension import Extension

#: Longest line that zot may write: arguments of tools have no limit of their own.
_MAX_LINE_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 1 << 16
#: How long what was heard before shutdown may still be worked on. zot waits two seconds in all.
_PATIENCE_S: Final = 1.5
_Job: TypeAlias = Callable[[], None]


def serve(extension: Extension) -> None:
    """Serve zot until it shuts us down or goes away. What is printed goes to standard error from now on."""
    writer, lane = _Writer(_private_stdout()), _Lane()
    service = Service(extension, writer.send, _Loop().run)
    service.begin()
    for frame in _frames():
        if isinstance(frame, wire.Shutdown):
            break
        _take(frame, service, writer, lane)
    lane.put(service.finish)
    lane.drain(_PATIENCE_S)
    writer.send_last(wire.ShutdownAck())


def _take(frame: wire.AnyToExtension, service: Service, writer: _Writer, lane: _Lane) -> None:
    match frame:
        case wire.HelloAck():
            service.greeted(frame)
        case wire.CommandInvoked():
            _beside(lambda: writer.send(service.command_response(frame)))
        case wire.ToolCall():
            _beside(lambda: writer.send(service.tool_result(frame)))
        case wire.EventIntercept():
            lane.put(lambda: writer.send(service.decision(frame)))
        case wire.Event() | wire.PanelKey() | wire.PanelClose():
            lane.put(lambda: service.hear(frame))
        case wire.Shutdown():
            pass  # The end of the loop.


def _frames() -> Iterator[wire.AnyToExtension]:
    """Yield what zot says, until it ends. What is no frame is written to the log."""
    lines = LineSplitter(max_line_bytes=_MAX_LINE_BYTES)
    while data := os.read(0, _READ_BYTES):
        for line in lines.feed(data):
            if isinstance(line, TooLong):
                _log(f"zot wrote a line of more than {line.limit} bytes")
                continue
            try:
                yield wire.decode_to_extension(line)
            except ProtocolError as problem:  # A later zot may say more than we know.
                _log(str(problem))


def _beside(job: _Job) -> None:
    threading.Thread(target=job, daemon=True).start()


def _private_stdout() -> int:
    """Keep standard output for frames alone: what anything else prints goes to standard error."""
    private = os.dup(1)
    os.dup2(2, 1)
    return private


def _log(text: str) -> None:
    sys.stderr.write(f"zot.ext: {text}\n")


class _Writer:
    """Writes frames whole, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send_last(self, frame: wire.AnyFromExtension) -> None:
        """Write a frame that zot need not be there any more to read."""
        with suppress(BrokenPipeError):
            self.send(frame)

    def send(self, *frames: wire.AnyFromExtension) -> None:
        """Write frames, in one go."""
        data = memoryview(wire.encode_frames(frames))
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


class _Lane:
    """Does one thing after the other, in a thread of its own that starts with the first."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] | None = None

    def put(self, job: _Job) -> None:
        if self._jobs is None:
            from queue import SimpleQueue

            self._jobs = SimpleQueue()
            _beside(partial(self._work, self._jobs))
        self._jobs.put(job)

    def drain(self, within_s: float) -> None:
        """Wait until what was put is done, but not for ever."""
        done = threading.Event()
        self.put(done.set)
        done.wait(within_s)

    def _work(self, jobs: SimpleQueue[_Job]) -> None:
        while True:
            jobs.get()()


class _Loop:
    """Runs coroutines in one event loop, which starts with the first of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                _beside(self._loop.run_forever)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
