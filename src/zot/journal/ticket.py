"""Who is next: the line of those who want to run a session, in the order in which they came.

A place in the line is a byte of the lock file, far behind the leases: the time when somebody came says which. It is
locked by whoever has that place, so the kernel keeps the line: a dead process leaves it, and its order is the same for
all processes. Each place has a descriptor of its own, so that those of one process exclude each other, too.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import weakref
from contextlib import suppress

from zot.journal.lease import FLOCK, lock_failed

_SET = getattr(fcntl, "F_OFD_SETLK", None)
_GET = getattr(fcntl, "F_OFD_GETLK", None)
#: How far apart the lines of two sessions begin, and how many places a second has: a line has 34 years. Should there be
#: more sessions than lines, some share one.
_APART = 1 << 40
_LINES = 1 << 22
_PER_SECOND = 1000


class Ticket:
    """A place in the line of one session. Where locks do not belong to the open file there are no lines, and everyone
    is first. Usable from any thread."""

    def __init__(self, path: str, number: int, came: float) -> None:
        """Take the place of one who came at a time of `time.monotonic`, which all processes share.

        Raise StoreFailed if the lock file ``path`` cannot be used.
        """
        self._first = (1 + number % _LINES) * _APART
        self._place = self._first + max(0, int(came * _PER_SECOND))
        self._path = path
        self._guard = threading.Lock()
        self._descriptor = -1
        if _SET is None or _GET is None:
            return
        try:
            self._descriptor = os.open(path, os.O_RDWR)
            while not _lock(self._descriptor, fcntl.F_WRLCK, self._place):
                self._place += 1
        except OSError as problem:
            self.leave()
            raise lock_failed(path, "locked", problem) from problem
        _everyone.add(self)

    @property
    def is_first(self) -> bool:
        """True if nobody is before us, and also when we have left. Raise StoreFailed."""
        with self._guard:
            return self._descriptor < 0 or not self._is_any_before()

    def leave(self) -> None:
        """Leave the line. Any number of times."""
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                # A child that was just forked may have a copy of it, which would keep the place.
                with suppress(OSError):  # Without such a child, closing it is enough.
                    _lock(descriptor, fcntl.F_UNLCK, self._place)
                os.close(descriptor)

    def _is_any_before(self) -> bool:
        if self._place == self._first:
            return False  # The kernel would look at everything up to the end.
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, self._first, self._place - self._first, 0)
        assert _GET is not None
        try:
            answer: tuple[int, ...] = struct.unpack(FLOCK, fcntl.fcntl(self._descriptor, _GET, asked))
        except OSError as problem:
            raise lock_failed(self._path, "read", problem) from problem
        return answer[0] != fcntl.F_UNLCK


def _lock(descriptor: int, kind: int, place: int) -> bool:
    """Take a place, or give it back. False if somebody else has it."""
    assert _SET is not None
    try:
        fcntl.fcntl(descriptor, _SET, struct.pack(FLOCK, kind, os.SEEK_SET, place, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


_everyone: weakref.WeakSet[Ticket] = weakref.WeakSet()


def _forget() -> None:
    """In a child that was forked: a copy of the descriptor would keep our place when we are dead."""
    for ticket in list(_everyone):
        if ticket._descriptor >= 0:
            os.close(ticket._descriptor)
            ticket._descriptor = -1


os.register_at_fork(after_in_child=_forget)
