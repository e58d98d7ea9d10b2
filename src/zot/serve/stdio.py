"""A process and its standard descriptors: only frames reach the real standard output."""

from __future__ import annotations

import _thread
import atexit
import codecs
import errno
import io
import os
import select
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn, TextIO, cast

from zot.text import escaped, escaped_bytes

if TYPE_CHECKING:
    from zot.wire.lines import LineSplitter, TooLong

#: Signals that end this process in order.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Limit of buffered standard error text; more is dropped.
_MAX_WAITING_BYTES = 64 * 1024
#: How long to wait at exit for a slow reader of standard error.
_DRAIN_S = 0.2
#: How long to wait after a descriptor was ready but accepted nothing.
_RETRY_S = 0.01
_READ_BYTES = 64 * 1024


def guard_streams() -> None:
    """Open descriptors 0 to 2 if they are closed, and make `sys.stderr` a `Diagnostics`.

    On a terminal, both outputs escape what the terminal would obey. A full-screen program writes to `sys.__stdout__`.
    """
    for descriptor in (0, 1, 2):
        _ensure_open(descriptor)
    sys.stderr = cast(TextIO, Diagnostics(2, getattr(sys.__stderr__, "encoding", "utf-8")))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.isatty():
        sys.stdout = TerminalOutput(sys.stdout)
    atexit.register(drain_stderr)


def claim() -> tuple[int, int]:
    """Take standard input and output for ourselves and return private descriptors for them.

    Descriptors 0 to 2 exist afterwards, whatever they were. 0 is empty and 1 leads to standard error, so neither a
    stray print nor a child process can read our input or corrupt our output.
    """
    for descriptor in (0, 1, 2):
        _ensure_open(descriptor)
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return incoming, outgoing


class TerminalOutput(io.TextIOWrapper):
    """Standard output on a terminal: text and bytes are escaped, so that no sequence in them is obeyed."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        buffer = cast(BinaryIO, stream.buffer)
        super().__init__(buffer, stream.encoding, stream.errors, line_buffering=True)
        self._bytes = _TerminalBytes(buffer)
        self._stream = stream  # It would close the buffer when it is collected.

    @property
    def buffer(self) -> BinaryIO:
        return cast(BinaryIO, self._bytes)

    def write(self, text: str, /) -> int:
        """Write text, escaped."""
        super().write(escaped(text))
        return len(text)


class _TerminalBytes:
    """Binary half of `TerminalOutput`. A character may be split between two writes."""

    def __init__(self, buffer: BinaryIO) -> None:
        self._buffer = buffer
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode

    def write(self, data: bytes, /) -> int:
        """Write bytes, escaped."""
        self._buffer.write(escaped(self._decode(data)).encode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self) -> None:
        """Flush the terminal's buffer."""
        self._buffer.flush()


class Diagnostics(io.TextIOBase):
    """Standard error that never blocks and never raises. Logging, warnings, tracebacks and prints all write to it.

    Text that the reader has no room for waits, up to a limit. Beyond that, lines are dropped and counted until the
    reader has caught up; then a line reports how many. A thread waits for room; it starts when text has to wait.
    """

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        mode = os.fstat(descriptor).st_mode
        self._is_terminal = os.isatty(descriptor)
        self._own = _reopen_nonblocking(descriptor) if stat.S_ISFIFO(mode) or self._is_terminal else None
        #: True if a write may block and only poll can tell.
        self._must_poll = self._own is None and not stat.S_ISREG(mode)
        # Reentrant: a signal handler may write, too.
        self._lock = _thread.RLock()
        self._line = ""
        #: Encoded text, and how many lines are lost if it is dropped.
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._size = 0
        self._dropped = 0
        self._is_torn = False
        self._is_sending = False
        self._is_pumping = False
        self._is_gone = False

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class allows no assignment, whatever its stub says
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]  # as above
        return "backslashreplace"

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Buffer text; it is written line by line, or with `flush`."""
        with self._lock:
            lines, newline, self._line = (self._line + text).rpartition("\n")
            self._take(lines + newline)
            if len(self._line) > _MAX_WAITING_BYTES:
                self.flush()
        return len(text)

    def flush(self) -> None:
        """Write an unfinished line. Does not wait for the reader."""
        with self._lock:
            line, self._line = self._line, ""
            self._take(line)

    def drain(self, within_s: float) -> None:
        """Wait for the reader to take everything, for at most ``within_s``."""
        deadline = time.monotonic() + within_s
        if not self._lock.acquire(timeout=within_s):
            return
        try:
            self.flush()
            while not self._send() and (left_s := deadline - time.monotonic()) > 0:
                self._poll(min(left_s, _RETRY_S))
        finally:
            self._lock.release()

    def _take(self, text: str) -> None:
        if not text or self._is_gone:
            return
        data = (escaped(text) if self._is_terminal else text).encode(self._encoding, "backslashreplace")
        count = max(1, text.count("\n"))
        # Once a line was dropped, the following ones are, too, until the gap is reported.
        if self._waiting and (self._dropped or self._size + len(data) > _MAX_WAITING_BYTES):
            self._dropped += count
            return
        if self._dropped:
            self._report()
        self._put(data, count)
        if not self._send() and not self._is_pumping:
            try:
                _thread.start_new_thread(self._pump, ())
                self._is_pumping = True
            except RuntimeError:  # No thread is available now: the next line tries again.
                return

    def _put(self, data: bytes, count: int) -> None:
        self._waiting.append((data, count))
        self._size += len(data)

    def _report(self) -> None:
        start, dropped = "\n" if self._is_torn else "", self._dropped
        self._dropped, self._is_torn = 0, False
        lines = "1 line was" if dropped == 1 else f"{dropped} lines were"
        self._put(f"{start}zot: {lines} dropped here: standard error was not read in time\n".encode(), dropped)

    def _send(self) -> bool:
        """Write as much as the reader has room for. False if text is left."""
        if self._is_sending:  # Called in a signal handler: the interrupted call continues.
            return True
        self._is_sending = True
        try:
            while self._waiting or self._dropped:
                if not self._waiting:
                    self._report()
                self._send_piece()
        except BlockingIOError:
            return False
        except OSError as problem:
            self._discard(problem)
        finally:
            self._is_sending = False
        return True

    def _send_piece(self) -> None:
        """Write the first piece. Raise BlockingIOError if there is no room, OSError if it cannot be written."""
        data, count = self._waiting[0]
        # A pipe takes PIPE_BUF bytes whole or not at all, and a ready descriptor does not block for them.
        piece = data[: data.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF]
        if self._must_poll and not self._poll(0):
            raise BlockingIOError
        sent = os.write(self._descriptor if self._own is None else self._own, piece)
        self._size -= sent
        if sent == len(data):
            self._waiting.popleft()
        else:
            self._waiting[0] = data[sent:], count
        self._is_torn = data[sent - 1 : sent] != b"\n"

    def _discard(self, problem: OSError) -> None:
        """Drop the buffered text. A full disk may have room again later; a reader that has gone does not return."""
        self._is_gone = problem.errno in (errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.ENXIO)
        self._dropped = 0 if self._is_gone else self._dropped + sum(count for _, count in self._waiting)
        self._waiting.clear()
        self._size = 0

    def _pump(self) -> None:
        """Send the buffered text whenever there is room, until nothing is left."""
        while True:
            self._poll(None)
            with self._lock:
                if self._send():
                    self._is_pumping = False
                    return
            time.sleep(_RETRY_S)

    def _poll(self, within_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor if self._own is None else self._own, select.POLLOUT)
        return bool(poll.poll(None if within_s is None else within_s * 1000))


def drain_stderr(within_s: float = _DRAIN_S) -> None:
    """Give the reader of standard error a moment to take the buffered text."""
    if isinstance(sys.stderr, Diagnostics):
        sys.stderr.drain(within_s)


def _reopen_nonblocking(descriptor: int) -> int | None:
    """Return a non-blocking descriptor of our own for the same pipe or terminal; None if the system offers none."""
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        return None


def readable(descriptor: int) -> bool:
    """True if a read would return at once: data, the end, or an error."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def writable(descriptor: int) -> bool:
    """True if a write of at most PIPE_BUF bytes would not block."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


class GreetedStreams(NamedTuple):
    """The standard streams of a server whose client speaks in lines."""

    incoming: int
    outgoing: int
    lines: LineSplitter
    #: The lines that have been read, but not handled.
    waiting: Sequence[bytes | TooLong] = ()


def greet(
    lines: LineSplitter, answer: Callable[[bytes | TooLong], bytes | None], *, answers_late: bool = False
) -> GreetedStreams | int:
    """Take the standard streams and answer the greetings that have already arrived. Return the exit code if the output
    is closed or broken.

    ``answer`` returns None for any other line. With ``answers_late``, the server answers the greetings, too.
    """
    leave_on_signals()
    incoming, outgoing = claim()
    if answers_late or os.isatty(incoming):  # A terminal reports its end only once.
        return GreetedStreams(incoming, outgoing, lines)
    try:
        return GreetedStreams(incoming, outgoing, lines, answer_early(incoming, outgoing, lines, answer))
    except (BrokenPipeError, ConnectionResetError):
        return 0  # The client has closed its end.
    except OSError as problem:
        return report_write_failure(problem)


def answer_early(
    incoming: int, outgoing: int, lines: LineSplitter, answer: Callable[[bytes | TooLong], bytes | None]
) -> list[bytes | TooLong]:
    """Answer the greetings that have already arrived. Return the lines left for the server.

    ``answer`` returns None for any other line. Never blocks, neither reading nor writing: the server handles the rest,
    including invalid lines and the end of the input.
    """
    left: list[bytes | TooLong] = []
    while not left and readable(incoming):
        data = os.read(incoming, _READ_BYTES)
        if not data:
            break
        arrived = lines.feed(data)
        for index, line in enumerate(arrived):
            frame = answer(line) if writable(outgoing) else None
            if frame is None:
                left = arrived[index:]
                break
            write_all(outgoing, frame)
    return left


def is_closed_by_peer(descriptor: int) -> bool:
    """True if the other end is closed: data written there is never read."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(state & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, state in poll.poll(0))


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however long it takes. Raise OSError on failure."""
    view = memoryview(_shown(descriptor, data))
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Another process made this open file non-blocking; leave the flag alone.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def _shown(descriptor: int, data: bytes) -> bytes:
    """Return what to write: on a terminal, nothing that it would obey."""
    return escaped_bytes(data) if os.isatty(descriptor) else data


def write_within(descriptor: int, data: bytes, within_s: float) -> None:
    """Write everything within ``within_s``. Raise OSError on failure, TimeoutError if the reader is too slow.

    Written in pieces that do not block, so a stopped reader cannot stop this process.
    """
    view, deadline = memoryview(_shown(descriptor, data)), time.monotonic() + within_s
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while view:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"it was not read for {within_s:g} s")
        with suppress(BlockingIOError):
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]


def report_write_failure(problem: OSError) -> int:
    """Report incomplete output on standard error and return the exit code for it."""
    sys.stderr.write(f"zot: the output could not be written: {problem.strerror}\n")
    return 1


def leave(code: int) -> NoReturn:
    """Exit without tearing the interpreter down, which would cost 13 ms: everything is flushed."""
    drain_stderr()
    os._exit(code)


def unblock_signals() -> None:
    """Unblock the signals that end this process; pending ones are delivered first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def leave_on_signals(*, as_failure: bool = False) -> None:
    """Exit on a signal, while there is nothing to wind down: with 0, or ``as_failure`` with 128 + signal."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: leave(128 + number if as_failure else 0))


def _ensure_open(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
