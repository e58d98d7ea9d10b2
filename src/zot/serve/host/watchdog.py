"""Watchdog thread of the host protocol: answers at the deadline, on a signal, or when the reader is gone."""

from __future__ import annotations

import _thread
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from zot.serve.stdio import SIGNALS, is_closed_by_peer, leave, unblock_signals
from zot.wire.host import TIMEOUT_MESSAGE, WAITED_MESSAGE, Ids, Response, Usage

#: At the deadline, an answer that the main thread is writing has this long to get out.
_WRITING_S = 0.5
#: How often to check that the parent process is still alive.
_CHECK_S = 0.5
_WAKE = b"\0"
_UNWRITTEN = 4
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
        #: Returns the request's usage so far.
        self.usage: Callable[[], Usage] = Usage
        #: Returns True while the request waits for other requests.
        self.waits: Callable[[], bool] = lambda: False
        #: Called after the watchdog has answered at the deadline.
        self.expired: Callable[[], None] = lambda: None
        self._code = 0
        self._right = _thread.allocate_lock()
        self._writing = _thread.allocate_lock()
        self._writing.acquire()

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


class Watchdog:
    """Answer requests at their deadline, and all of them when the process must end.

    ``write`` is called in the watchdog's thread with the slot, the response and the exit code. It must not wait long
    for the reader, and must call `Slot.written` once the answer is out or cannot get out.
    ``stays`` is for a process that serves many requests: a deadline then ends one request, not the process.
    """

    def __init__(
        self,
        signals: Signals,
        descriptors: tuple[int, int],
        write: Callable[[Slot, Response, int], object],
        *,
        stays: bool,
        leave: Callable[[int], NoReturn] = leave,
    ) -> None:
        self._signals = signals
        self._incoming, self._outgoing = descriptors
        self._write = write
        self._stays = stays
        self._exit = leave
        self._slots: dict[Slot, None] = {}
        self._parent = os.getppid()
        #: Kills all child processes; called from any thread.
        self.kill: Callable[[], None] = lambda: None
        #: Flushes pending output, if there is a buffer.
        self.flush: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start watching. Earlier signals count, so guard every unanswered request before."""
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
            leave(4)

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
            if os.getppid() != self._parent and not self._stays and _has_ended(self._incoming):
                self._end("the process that asked has gone", 4)

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
                    message = TIMEOUT_MESSAGE + (WAITED_MESSAGE if slot.waits() else "")
                    self._write(slot, slot.ids.failure("TIMEOUT", message, slot.usage()), 0)
                if not self._stays:
                    self._leave([slot])
                if answered:
                    slot.expired()

    def _end(self, message: str, code: int) -> NoReturn:
        """Answer all requests and exit."""
        slots = list(self._slots)
        for slot in slots:
            if slot.take():
                self._write(slot, slot.ids.failure("INTERNAL", message, slot.usage()), code)
        self._leave(slots)

    def _give_up(self) -> NoReturn:
        """Exit because the output is closed; without ``leave``, which could turn the failure into a success."""
        self.kill()
        leave(0 if self._stays else _UNWRITTEN)

    def _leave(self, slots: list[Slot]) -> NoReturn:
        """Kill child processes, wait for the answers to get out, and exit; with a failure code if one does not."""
        self.kill()
        deadline = time.monotonic() + _WRITING_S
        codes = [slot.wait_written(deadline - time.monotonic()) for slot in slots]
        self.flush()
        if self._stays:
            leave(0)
        [code] = codes
        if code is None:
            leave(_UNWRITTEN)
        self._exit(code)


def _has_ended(incoming: int) -> bool:
    """True if no more input can arrive: the descriptor is no pipe or socket, or its other end is closed."""
    mode = os.fstat(incoming).st_mode
    return not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or is_closed_by_peer(incoming)
