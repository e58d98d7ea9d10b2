"""The host's watchdog thread: answers at the deadline, on a signal, or when the reader is gone."""

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

from zot.serve.stdio import SIGNALS, abandoned, heed_signals, leave
from zot.wire.host import TIMEOUT_MESSAGE, WAITED_MESSAGE, Ids, Response, Usage

#: An answer that somebody else is writing at the deadline has this long to get out.
_WRITING_S = 0.5
#: How often we look if whoever started us is still there.
_LOOK_S = 0.5
_WAKE = b"\0"
_UNWRITTEN = 4
#: How long whoever runs may keep the interpreter from us.
_SWITCH_S = 0.001


class Signals:
    """Signals that end us, as something to wait for. They are noticed whatever the main thread does."""

    def __init__(self) -> None:
        self.incoming, self._outgoing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._outgoing, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        heed_signals()

    def wake(self) -> None:
        """Let who waits look around."""
        with suppress(BlockingIOError):  # Who waits has enough to wake it.
            os.write(self._outgoing, _WAKE)

    def taken(self) -> str:
        """Return the name of a signal that came; "" if none did."""
        try:
            numbers = os.read(self.incoming, 4096).replace(_WAKE, b"")
        except BlockingIOError:
            return ""
        return signal.Signals(numbers[0]).name if numbers else ""


class Slot:
    """The right to answer one request, which is taken once. ``deadline`` is on the clock of `time.monotonic`."""

    def __init__(self, ids: Ids, deadline: float) -> None:
        self.ids = ids
        self.deadline = deadline
        #: What the request has used so far.
        self.usage: Callable[[], Usage] = Usage
        #: True while the request waits for others.
        self.waits: Callable[[], bool] = lambda: False
        #: What is to be done when the watchdog has answered.
        self.expired: Callable[[], None] = lambda: None
        self._code = 0
        self._right = _thread.allocate_lock()
        self._writing = _thread.allocate_lock()
        self._writing.acquire()

    def take(self) -> bool:
        """True if the caller is the one who answers."""
        return self._right.acquire(blocking=False)

    @property
    def is_taken(self) -> bool:
        """True if somebody answers it, or has."""
        return self._right.locked()

    def written(self, code: int = 0) -> None:
        """Say that the answer is out, or cannot get out, and what the exit code is to say of that."""
        self._code = code
        self._writing.release()

    def wait_written(self, within_s: float | None) -> int | None:
        """Wait until the answer is out; return the exit code, None if it takes too long."""
        if not self._writing.acquire(timeout=-1 if within_s is None else max(0.0, within_s)):
            return None
        self._writing.release()
        return self._code


class Watchdog:
    """Answers requests at their deadline, and everything when we must end.

    ``write`` is called in its thread, with the exit code for it. It does not wait long for whoever reads, and sees to
    it that the slot hears when the answer is out, or cannot get out.
    ``stays`` is for a program that serves many requests: then a deadline ends one of them, and not the program.
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
        #: What kills everything that was started, from any thread.
        self.kill: Callable[[], None] = lambda: None
        #: What lets everything that was written get out, if that needs something to be done.
        self.flush: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to watch. A signal that came before counts, so what it would leave unanswered is guarded by then."""
        sys.setswitchinterval(_SWITCH_S)
        _thread.start_new_thread(self._watch, ())

    def guard(self, slot: Slot) -> None:
        """See to it that this request is answered."""
        self._slots[slot] = None
        self._signals.wake()

    def release(self, slot: Slot) -> None:
        """This one has been."""
        self._slots.pop(slot, None)

    def _watch(self) -> None:
        try:
            self._look_out()
        except BaseException as problem:  # the thread's outermost boundary: without it nobody would guard anything
            sys.stderr.write(f"zot: the watchdog failed: {problem!r}\n")
            leave(4)

    def _look_out(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._signals.incoming, select.POLLIN)
        poll.register(self._outgoing, 0)
        while True:
            poll.poll(max(0.0, self._pause_s() * 1000))
            # First: each of the looks below lets go of the interpreter, which a busy loop gives back late.
            self._expire()
            if name := self._signals.taken():
                self._end(f"zot was ended by {name}", 0)
            if abandoned(self._outgoing):
                self._give_up()
            if os.getppid() != self._parent and not self._stays and _has_ended(self._incoming):
                self._end("whoever asked has gone", 4)

    def _pause_s(self) -> float:
        now = time.monotonic()
        return min(_LOOK_S, *(slot.deadline - now for slot in list(self._slots)), _LOOK_S)

    def _expire(self) -> None:
        """Answer what is late."""
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
        """Answer everything and leave."""
        slots = list(self._slots)
        for slot in slots:
            if slot.take():
                self._write(slot, slot.ids.failure("INTERNAL", message, slot.usage()), code)
        self._leave(slots)

    def _give_up(self) -> NoReturn:
        """Leave: nobody reads what we would say. No flag makes a success of that."""
        self.kill()
        leave(0 if self._stays else _UNWRITTEN)

    def _leave(self, slots: list[Slot]) -> NoReturn:
        """End what was started, let the answers get out, and go. One that does not get out is a failure of ours."""
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
    """True if nothing more can come: it is no pipe or socket, or nobody is at its other end."""
    mode = os.fstat(incoming).st_mode
    return not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or abandoned(incoming)
