"""Byte streams on shared descriptors: pipes, sockets, files, terminals, the null device.

`O_NONBLOCK` belongs to the open file, which other processes share, so it is never set. The event loop watches pipes
and sockets; a thread reads and writes anything else.

`serve_lines` serves one client over the standard streams. `Lifetime` is the early end of such a process: signals, a
closed output, a dead parent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from select import PIPE_BUF
from typing import Any, Protocol

from zot.errors import AgentError
from zot.runtime.shared import SharedResources
from zot.serve.stdio import SIGNALS, GreetedStreams, is_closed_by_peer, leave, readable, report_write_failure, writable
from zot.session.session import Session
from zot.text import escaped_bytes
from zot.wire.lines import LineSplitter, TooLong

_READ_BYTES = 256 * 1024
#: A writer with more than this buffered is full; its source should pause.
_FULL_BYTES = 1024 * 1024
#: A writer with more than this buffered is choked; stop reading requests until there is room.
_CHOKED_BYTES = 16 * _FULL_BYTES


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield chunks as they arrive until the end of the input."""
    read = _read_when_ready if _is_watchable(descriptor) else _read_in_thread
    while data := await read(descriptor):
        yield data


async def pump(
    chunks: AsyncIterator[bytes], lines: LineSplitter, take: Callable[[bytes | TooLong], None], output: StreamWriter
) -> None:
    """Pass each line to ``take`` until the input ends; pause reading while the output is choked."""
    async for data in chunks:
        for line in lines.feed(data):
            take(line)
            if output.choked:
                await output.room()
    for line in lines.finish():
        take(line)


class StreamWriter:
    """Write to a descriptor in order and without loss; data of one tick of the loop leaves in one write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._watchable = _is_watchable(descriptor)
        self._is_terminal = os.isatty(descriptor)
        self._pieces: list[bytes] = []
        self._send, self._release = _sender(descriptor)
        self._unwritten = memoryview(b"")
        self._size = 0
        self._scheduled = False
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._problem: OSError | None = None
        self._on_broken: Callable[[], None] = lambda: None

    def on_broken(self, call: Callable[[], None]) -> None:
        """Set a callback that is called once, when the output breaks."""
        self._on_broken = call

    @property
    def problem(self) -> OSError | None:
        """Error that broke the output; None if it works, or if the reader merely closed it."""
        gone = isinstance(self._problem, BrokenPipeError | ConnectionResetError)
        return None if gone else self._problem

    def close(self) -> None:
        """Release the private handle used for writing; the caller keeps the descriptor itself."""
        self._release()

    def write(self, data: bytes) -> None:
        """Buffer ``data``. Data given after the output broke is discarded."""
        if self._problem is not None or not data:
            return
        if self._is_terminal:  # Nothing in the data may be obeyed by the terminal.
            data = escaped_bytes(data)
        self._pieces.append(data)
        self._size += len(data)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    @property
    def full(self) -> bool:
        """True while the source should pause."""
        return self._size > _FULL_BYTES

    @property
    def choked(self) -> bool:
        """True while not even answers should be added."""
        return self._size > _CHOKED_BYTES

    async def room(self) -> None:
        """Wait until the writer is well below full, or the output broke."""
        await self._below(_FULL_BYTES // 2)

    async def drained(self) -> None:
        """Wait until everything has been written, or the output broke."""
        await self._below(0)

    async def _below(self, size: int) -> None:
        if self._size > size and self._problem is None:
            waiter = self._loop.create_future()
            self._waiters.append((size, waiter))
            await waiter

    def _flush(self) -> None:
        """Write as much as fits now; schedule the rest."""
        if self._pieces:
            try:
                self._unwritten = memoryview(b"".join([self._unwritten, *self._pieces]))
            except MemoryError:
                self._break(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
                return
            self._pieces = []
        if not self._watchable:
            self._flush_in_thread()
            return
        self._loop.remove_writer(self._descriptor)
        self._scheduled = False
        try:
            while self._unwritten:
                self._wrote(self._send(self._unwritten))
        except BlockingIOError:
            pass
        except OSError as problem:
            self._break(problem)
            return
        if self._unwritten:
            self._scheduled = True
            self._loop.add_writer(self._descriptor, self._flush)

    def _flush_in_thread(self) -> None:
        """Write the buffer in a thread; data that arrives meanwhile waits for the next round."""
        data = self._unwritten

        def write() -> None:
            problem: OSError | None = None
            try:
                rest = data
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                problem = error
            _call_if_open(self._loop, self._written_in_thread, len(data), problem)

        threading.Thread(target=write, name="zot output", daemon=True).start()

    def _written_in_thread(self, size: int, problem: OSError | None) -> None:
        self._scheduled = False
        if problem is not None:
            self._break(problem)
            return
        self._wrote(size)
        if self._pieces:
            self._scheduled = True
            self._flush()

    def _wrote(self, size: int) -> None:
        self._unwritten = self._unwritten[size:]
        self._size -= size
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for size, waiter in waiting:
            if waiter.done():
                continue
            if self._size <= size or self._problem is not None:
                waiter.set_result(None)
            else:
                self._waiters.append((size, waiter))

    def _break(self, problem: OSError) -> None:
        self._problem = problem
        self._pieces, self._unwritten, self._size = [], memoryview(b""), 0
        self._wake()
        self._on_broken()


def _sender(descriptor: int) -> tuple[Callable[[memoryview], int], Callable[[], None]]:
    """Return a function that writes without blocking (or raises BlockingIOError), and one that releases it."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        end = socket.socket(fileno=os.dup(descriptor))
        return (lambda data: end.send(data, socket.MSG_DONTWAIT)), end.close
    if stat.S_ISFIFO(mode):
        try:
            # The same pipe opened anew: its O_NONBLOCK flag is private to us.
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return (lambda data: _write_little(descriptor, data)), lambda: None
        return (lambda data: os.write(own, data)), lambda: os.close(own)
    return (lambda data: os.write(descriptor, data)), lambda: None


def _write_little(descriptor: int, data: memoryview) -> int:
    """Write the amount that a ready pipe is sure to take: more could block."""
    if not writable(descriptor):
        raise BlockingIOError
    return os.write(descriptor, data[:PIPE_BUF])


def _is_watchable(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


async def _read_when_ready(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    while True:
        if readable(descriptor):
            try:
                return os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                pass
            except ConnectionResetError:
                return b""
        ready = loop.create_future()
        loop.add_reader(descriptor, _resolve, ready)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)


async def _read_in_thread(descriptor: int) -> bytes:
    """Read in a thread that may outlive its caller: a blocking read of a terminal cannot be cancelled."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError:
            data = b""  # A terminal that hung up, or an unreadable descriptor: treat as the end of the input.
        _call_if_open(loop, _resolve_with, result, data)

    threading.Thread(target=read, name="zot input", daemon=True).start()
    return await result


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _resolve_with(future: asyncio.Future[bytes], data: bytes) -> None:
    if not future.done():
        future.set_result(data)


def _call_if_open(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    """Call in the loop's thread, unless the loop was closed while this thread was blocked."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


_CHECK_S = 0.5
#: Limits for the parts of a forced stop: together less than 3 s.
_ABORT_S = 1.2
_FLUSH_S = 0.5
_CLOSE_S = 1.0
#: Limit for closing a session when no stop was requested.
_CLOSE_SLOWLY_S = 8.0


class Lifetime:
    """Ends on a signal, when the output is closed, or when the input has ended and the parent is dead.

    A second signal exits at once: with code 0, or ``as_failure`` with 128 + signal.
    """

    def __init__(self, outgoing: int, *, as_failure: bool = False) -> None:
        self._outgoing = outgoing
        self._parent = os.getppid()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.input_ended = False
        self._signal = 0
        self._as_failure = as_failure
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._check()

    def end(self) -> None:
        """End the lifetime; safe to call repeatedly."""
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def exit_code(self) -> int:
        """Exit code for unfinished work: 128 + signal after a signal, otherwise 1."""
        return 128 + self._signal if self._signal else 1

    async def bound(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work`` until it finishes or the lifetime ends; then cancel it. True if it finished."""
        task = self._loop.create_task(work, name="zot work")
        await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    def _on_signal(self, number: int) -> None:
        if self._ended.done():
            leave(128 + number if self._as_failure else 0)
        self._signal = number
        self.end()

    def _check(self) -> None:
        orphaned = self.input_ended and os.getppid() != self._parent
        if orphaned or is_closed_by_peer(self._outgoing):
            self.end()
        else:
            self._loop.call_later(_CHECK_S, self._check)


class NotAuthorized(AgentError):
    """The client may not continue. It has its refusal already; close the connection."""


class LineServer(Protocol):
    """The server of one client that sends lines."""

    @property
    def sessions(self) -> Sequence[Session]:
        """The open sessions, which end with the connection."""

    def take(self, line: bytes | TooLong) -> None:
        """Handle one line. Raise NotAuthorized if the connection must be closed."""

    def end_input(self) -> None:
        """Handle the end of the client's input."""

    async def finish(self) -> None:
        """Wait until every line has been answered and nothing runs."""

    async def close(self) -> None:
        """Release what the sessions needed, once they are closed."""


async def serve_lines(
    make: Callable[[StreamWriter, SharedResources], Awaitable[LineServer]], streams: GreetedStreams
) -> int:
    """Serve the client until its input ends, a signal arrives, or it stops reading. Return the exit code."""
    incoming, outgoing, lines, waiting = streams
    output, lifetime, resources = StreamWriter(outgoing), Lifetime(outgoing), SharedResources(own_process=True)
    output.on_broken(lifetime.end)
    server: LineServer | None = None

    async def converse() -> None:
        nonlocal server
        server = made = await make(output, resources)
        for line in waiting:
            made.take(line)
        await pump(read_chunks(incoming), lines, made.take, output)
        lifetime.input_ended = True
        made.end_input()
        await made.finish()
        await output.drained()

    code = 0
    try:
        if await lifetime.bound(converse()) and server is not None:
            await close_in_time(server.sessions, lifetime)
    except NotAuthorized as problem:
        sys.stderr.write(f"zot: {problem}\n")
        code = 1
    if server is not None:
        await wind_down(server.sessions, resources, output)
        await server.close()
    output.close()
    return code if output.problem is None else report_write_failure(output.problem)


async def close_in_time(sessions: Sequence[Session], lifetime: Lifetime) -> None:
    """Close sessions that have finished; their extensions get their full time unless the lifetime ends first."""
    await lifetime.bound(_closed(sessions))


async def _closed(sessions: Sequence[Session]) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(_each(session.close() for session in sessions), _CLOSE_SLOWLY_S)


async def wind_down(sessions: Sequence[Session], resources: SharedResources, output: StreamWriter) -> None:
    """Abort runs and queues, flush the last frames and close sessions and resources, each within its limit."""
    for session in sessions:
        session.abort(queue=True)

    async def close() -> None:
        await _each(session.close() for session in sessions)
        await resources.close()

    await _finish_in_time(_each(session.worker.finish() for session in sessions), _ABORT_S)
    await flush(output)
    await _finish_in_time(close(), _CLOSE_S)


async def flush(output: StreamWriter) -> None:
    """Write the last frames, within a limit."""
    await _finish_in_time(output.drained(), _FLUSH_S)


async def _each(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*steps)


async def _finish_in_time(step: Coroutine[Any, Any, None], seconds: float) -> None:
    try:
        await asyncio.wait_for(step, seconds)
    except TimeoutError:
        sys.stderr.write("zot: exited before everything was closed\n")
