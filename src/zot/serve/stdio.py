"""A process and its standard descriptors: only frames reach the real standard output."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from contextlib import suppress
from typing import NoReturn

#: What ends us, politely.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
    return incoming, outgoing


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


def abandoned(descriptor: int) -> bool:
    """True if nobody will ever read what is written there."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(state & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, state in poll.poll(0))


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however long it takes. Raise OSError if it cannot be done."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Somebody else made this description non-blocking; that is theirs to keep.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def write_within(descriptor: int, data: bytes, within_s: float) -> None:
    """Write everything, if whoever reads takes it in time. Raise OSError if that cannot be done.

    In pieces that do not block, so that nobody who has stopped to read can stop us, too.
    """
    view, deadline = memoryview(data), time.monotonic() + within_s
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while view:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"nobody has read it for {within_s:g} s")
        with suppress(BlockingIOError):
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]


def leave(code: int) -> NoReturn:
    """Exit without tearing the interpreter down: all is flushed, and that would cost 13 ms."""
    os._exit(code)


def hold_signals() -> None:
    """Let signals wait that would end us, until `heed_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def heed_signals() -> None:
    """Let signals come; those that waited come first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def leave_on_signals(*, as_failure: bool = False) -> None:
    """Before there is anything to wind down, a signal simply ends us: ``as_failure`` with the code shells know."""
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
