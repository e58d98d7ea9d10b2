"""Watchdog thread of the host protocol: answers at the deadline, on a signal, or when the reader is gone."""

from __future__ import annotations

import _thread
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Protocol

from zot.serve.stdio import SIGNALS, is_closed_by_peer, leave, unblock_signals
from zot.wire.host import FAILED, TIMEOUT_MESSAGE, WAITED_MESSAGE, Ids, Response, Usage

if TYPE_CHECKING:
    from zot.serve.host.requests import RequestRun

#: At the deadline, an answer that the main thread is writing has this long to get out.
_WRITING_S = 0.5
#: How often to check that the parent process is still alive.
_CHECK_S = 0.5
_WAKE = b"\0"
#: Thread switch interval: how long another thread may keep the interpreter from the watchdog.
_SWITCH_S = 0.001


class Signals:
    """Ending signals as a readable descriptor. They are noticed even if the main thread hangs."""

    def __init__(self) -> None:
        self.incoming, self._outgoing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._outgoing, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        unblock_signals()

    def wake(self) -> None:
        """Wake the watchdog so that it checks its slots."""
        with suppress(BlockingIOError):  # The pipe is full, which wakes it as well.
            os.write(self._outgoing, _WAKE)

    def taken(self) -> str:
        """Return the name of a signal that arrived; "" if none did."""
        try:
            numbers = os.read(self.incoming, 4096).replace(_WAKE, b"")
        except BlockingIOError:
            return ""
        return signal.Signals(numbers[0]).name if numbers else ""


class Slot:
    """The right to answer one request, granted once. ``deadline`` is on the clock of `time.monotonic`."""

    def __init__(self, ids: Ids, deadline: float) -> None:
        self.ids = ids
        self.deadline = deadline
        #: The run of the request, once there is one.
        self.run: RequestRun | None = None
        self._code = 0
        self._right = _thread.allocate_lock()
        self._writing = _thread.allocate_lock()
        self._writing.acquire()

    def usage(self) -> Usage:
        """Return the request's usage so far."""
        return Usage() if self.run is None else self.run.usage()

    def take(self) -> bool:
        """Claim the right to answer; False if it was claimed before."""
        return self._right.acquire(blocking=False)

    @property
    def is_taken(self) -> bool:
        """True if the right to answer was claimed."""
        return self._right.locked()

    def written(self, code: int = 0) -> None:
        """Report that the answer is out, or cannot get out, with the exit code for it."""
        self._code = code
        self._writing.release()

    def wait_written(self, within_s: float | None) -> int | None:
        """Wait until the answer is out; return the exit code, None on timeout."""
        if not self._writing.acquire(timeout=-1 if within_s is None else max(0.0, within_s)):
            return None
        self._writing.release()
        return self._code


class WatchedServer(Protocol):
    """A server whose requests a watchdog guards: of one request, or of a stream of them. Called in any thread."""

    #: True if it serves many requests: a deadline then ends one request, not the process.
    stays: bool

    def answer_late(self, slot: Slot, response: Response, code: int) -> None:
        """Write the answer of a taken slot without waiting long for the reader.

        Calls `Slot.written` once the answer is out or cannot get out.
        """

    def kill(self) -> None:
        """Kill all child processes."""

    def flush(self) -> None:
        """Write buffered output."""

    def exit(self, codes: Sequence[int | None]) -> NoReturn:
        """Exit after its last answers; ``codes`` are their exit codes, None for one that did not get out in time."""


class Watchdog:
    """Answer requests at their deadline, and all of them when the process must end."""

    def __init__(self, signals: Signals, descriptors: tuple[int, int]) -> None:
        self._signals = signals
        self._incoming, self._outgoing = descriptors
        self._slots: dict[Slot, None] = {}
        self._parent = os.getppid()

    def start(self, server: WatchedServer) -> None:
        """Start watching for ``server``. Earlier signals count, so guard every unanswered request before."""
        self._server = server
        sys.setswitchinterval(_SWITCH_S)
        _thread.start_new_thread(self._watch, ())

    def guard(self, slot: Slot) -> None:
        """Answer this request if its deadline passes or the process must end."""
        self._slots[slot] = None
        self._signals.wake()

    def release(self, slot: Slot) -> None:
        """Stop guarding an answered request."""
        self._slots.pop(slot, None)

    def _watch(self) -> None:
        try:
            self._loop()
        except BaseException as problem:  # The thread's outermost boundary: without it no deadline would be kept.
            sys.stderr.write(f"zot: the watchdog failed: {problem!r}\n")
            leave(FAILED)

    def _loop(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._signals.incoming, select.POLLIN)
        poll.register(self._outgoing, 0)
        while True:
            poll.poll(max(0.0, self._pause_s() * 1000))
            # First: each check below releases the interpreter, which a busy loop returns late.
            self._expire()
            if name := self._signals.taken():
                self._end(f"zot was ended by {name}", 0)
            if is_closed_by_peer(self._outgoing):
                self._give_up()
            if os.getppid() != self._parent and not self._server.stays and _has_ended(self._incoming):
                self._end("the process that asked has gone", FAILED)

    def _pause_s(self) -> float:
        now = time.monotonic()
        return min(_CHECK_S, *(slot.deadline - now for slot in list(self._slots)), _CHECK_S)

    def _expire(self) -> None:
        """Answer overdue requests."""
        for slot in list(self._slots):
            if slot.deadline <= time.monotonic():
                self.release(slot)
                answered = slot.take()
                if answered:
                    message = TIMEOUT_MESSAGE + (WAITED_MESSAGE if slot.run is not None and slot.run.waits else "")
                    self._server.answer_late(slot, slot.ids.failure("TIMEOUT", message, slot.usage()), 0)
                if not self._server.stays:
                    self._leave([slot])
                if answered and slot.run is not None:
                    slot.run.expire()

    def _end(self, message: str, code: int) -> NoReturn:
        """Answer all requests and exit."""
        slots = list(self._slots)
        for slot in slots:
            if slot.take():
                self._server.answer_late(slot, slot.ids.failure("INTERNAL", message, slot.usage()), code)
        self._leave(slots)

    def _give_up(self) -> NoReturn:
        """Exit because the output is closed; not as the server would, which could turn the failure into a success."""
        self._server.kill()
        leave(0 if self._server.stays else FAILED)

    def _leave(self, slots: list[Slot]) -> NoReturn:
        """Kill child processes, wait for the answers to get out, and exit; with a failure code if one does not."""
        self._server.kill()
        deadline = time.monotonic() + _WRITING_S
        codes = [slot.wait_written(deadline - time.monotonic()) for slot in slots]
        self._server.flush()
        self._server.exit(codes)


def _has_ended(incoming: int) -> bool:
    """True if no more input can arrive: the descriptor is no pipe or socket, or its other end is closed."""
    mode = os.fstat(incoming).st_mode
    return not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or is_closed_by_peer(incoming)
