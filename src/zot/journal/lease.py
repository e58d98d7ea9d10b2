"""Leases: one writing process per session, by a kernel lock, with a fair line of waiters."""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import count, groupby
from typing import Protocol

import msgspec

from zot.errors import StoreFailed, UnmarkedRows
from zot.files import open_private
from zot.messages import timestamp

log = logging.getLogger("zot")

#: struct flock, padded to its size; its pid must be 0 for a lock that belongs to the open file.
FLOCK = "hhqqi0q"
_MARK = struct.Struct("<Q")
#: The slot of the lock file, which no session has, for the mark that damage was met.
SUSPECTED = 0
#: The mark of a deleted session: no row has this number.
_DELETED = (1 << 64) - 1
_SET = getattr(fcntl, "F_OFD_SETLK", None)
_GET = getattr(fcntl, "F_OFD_GETLK", None)
# Flags for systems whose locks belong to the process: closing any descriptor of the file ends them, so there is one
# descriptor, and it stays open.
_FLAGS = {
    fcntl.F_RDLCK: fcntl.LOCK_SH | fcntl.LOCK_NB,
    fcntl.F_WRLCK: fcntl.LOCK_EX | fcntl.LOCK_NB,
    fcntl.F_UNLCK: fcntl.LOCK_UN,
}
#: Waiting lines are byte ranges of the lock file: one per session, 34 years long at this many places per second.
#: Sessions beyond the number of lines share one.
_APART = 1 << 40
_LINES = 1 << 22
_PER_SECOND = 1000

_runs = count(1)


class _LockFile:
    """An open lock file, which a forked child closes: otherwise it would keep our locks after our death."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._descriptor = -1
        _open_files.add(self)

    def _lock(self, kind: int, at: int) -> bool:
        """Lock or unlock one byte. False if another process has it. Raise OSError."""
        try:
            if _SET is not None:
                fcntl.fcntl(self._descriptor, _SET, struct.pack(FLOCK, kind, os.SEEK_SET, at, 1, 0))
            else:
                fcntl.lockf(self._descriptor, _FLAGS[kind], 1, at)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _is_locked(self, at: int, length: int) -> bool:
        """True if another process has locked one of these bytes. Raise StoreFailed."""
        assert _GET is not None
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, at, length, 0)
        try:
            answer: tuple[int, ...] = struct.unpack(FLOCK, fcntl.fcntl(self._descriptor, _GET, asked))
        except OSError as problem:
            raise self._failed("read", problem) from problem
        return answer[0] != fcntl.F_UNLCK

    def _failed(self, what: str, problem: OSError) -> StoreFailed:
        """Return the error for a lock file that cannot be opened, locked, read or written."""
        reason = f"the lock file {self.path} cannot be {what} ({problem.strerror})"
        return StoreFailed(f"{reason}: check its disk and permissions")


_open_files: weakref.WeakSet[_LockFile] = weakref.WeakSet()


def _close_in_child() -> None:
    for file in list(_open_files):
        if file._descriptor >= 0:
            os.close(file._descriptor)
            file._descriptor = -1


os.register_at_fork(after_in_child=_close_in_child)


class Leases(_LockFile):
    """The leases of one journal, as held by this process. Usable from any thread."""

    def __init__(self, path: str) -> None:
        """Open the lock file, creating it if needed. Raise StoreFailed."""
        super().__init__(path)
        self._held: set[int] = set()
        self._descriptor = self._open()

    @property
    def held(self) -> frozenset[int]:
        """The sessions whose lease this process holds."""
        with self._guard:
            return frozenset(self._held)

    def acquire(self, number: int) -> bool:
        """Acquire the lease of a session. False if it is held, here or elsewhere."""
        with self._guard:
            if number in self._held:
                return False
            self._reopen_if_removed()
            if not self._lock(fcntl.F_WRLCK, number):
                return False
            self._held.add(number)
            return True

    def is_taken(self, number: int) -> bool:
        """True if a session's lease is held, here or elsewhere. Where the system allows, this tests without locking,
        so that a process that acquires it at this moment is not refused."""
        with self._guard:
            if number in self._held:
                return True
            if _GET is not None:
                return self._is_locked(number, 1)
            return not (self._lock(fcntl.F_WRLCK, number) and self._lock(fcntl.F_UNLCK, number))

    def release(self, number: int) -> None:
        """Release the lease of a session."""
        with self._guard:
            if number in self._held:
                self._held.remove(number)
                try:
                    self._lock(fcntl.F_UNLCK, number)
                except StoreFailed as problem:  # Others must wait until we exit; stored rows are safe.
                    log.warning("%s", problem)

    def share(self) -> bool:
        """Register as a user of the journal. False while a process replaces it."""
        with self._guard:
            return self._lock(fcntl.F_RDLCK, 0)

    def own(self) -> bool:
        """Lock the journal exclusively, to replace it; `share` ends that. False while other processes have it open."""
        with self._guard:
            return self._lock(fcntl.F_WRLCK, 0)

    def mark(self, safe: Mapping[int, int]) -> None:
        """Store the newest stored row of each session in ``safe``, by number. Raise StoreFailed if the lock file was
        removed, UnmarkedRows if it cannot be written."""
        try:
            is_gone = os.fstat(self._descriptor).st_nlink == 0
            if not is_gone:
                self._write_marks(safe)
        except OSError as problem:
            raise UnmarkedRows(str(self._failed("written", problem))) from problem
        if is_gone:
            raise StoreFailed(f"the lock file {self.path} was removed while a session runs: nothing more is recorded")

    def _write_marks(self, safe: Mapping[int, int]) -> None:
        numbers = sorted(safe)
        # Adjacent marks go into one call: each call releases the interpreter lock.
        for _, group in groupby(enumerate(numbers), lambda place: place[1] - place[0]):
            beside = [number for _, number in group]
            marks = b"".join([_MARK.pack(safe[number]) for number in beside])
            os.pwrite(self._descriptor, marks, _MARK.size * beside[0])

    def marked(self, number: int) -> int:
        """Return the newest row that was ever stored in a session; 0 if unknown. Raise StoreFailed."""
        try:
            mark = self._mark_of(number)
        except OSError as problem:
            raise self._failed("read", problem) from problem
        return 0 if mark == _DELETED else mark

    @property
    def highest(self) -> int:
        """The highest session number that was ever marked; 0 if there is none. Raise StoreFailed."""
        try:
            return max(0, os.fstat(self._descriptor).st_size // _MARK.size - 1)
        except OSError as problem:
            raise self._failed("read", problem) from problem

    def mark_deleted(self, number: int) -> None:
        """Mark a session as deleted. Raise StoreFailed."""
        self.mark({number: _DELETED})

    def is_deleted(self, number: int) -> bool:
        """True if a session is marked as deleted; False if the lock file cannot be read."""
        try:
            return self._mark_of(number) == _DELETED
        except OSError:
            return False

    def _mark_of(self, number: int) -> int:
        data = os.pread(self._descriptor, _MARK.size, _MARK.size * number)
        return int(_MARK.unpack(data)[0]) if len(data) == _MARK.size else 0

    def close(self) -> None:
        """Release all leases and close the lock file."""
        with self._guard:
            self._held.clear()
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @property
    def is_in_place(self) -> bool:
        """True if the path still names our lock file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def _open(self) -> int:
        try:
            return open_private(self.path, os.O_RDWR)
        except OSError as problem:
            raise self._failed("opened", problem) from problem

    def _reopen_if_removed(self) -> None:
        """Reopen a lock file that was removed: processes that lock different files do not exclude each other."""
        if self.is_in_place:
            return
        if self._held:
            raise StoreFailed(f"the lock file {self.path} was removed while a session runs: wait until it ends")
        # Open the new one first: the number of a closed descriptor may be reused by another thread.
        descriptor = self._open()
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._lock(fcntl.F_RDLCK, 0)

    def _lock(self, kind: int, at: int) -> bool:
        """Lock or unlock one byte. False if another process has it. Raise StoreFailed."""
        try:
            return super()._lock(kind, at)
        except OSError as problem:
            raise self._failed("locked", problem) from problem


def read_marks(path: str) -> tuple[int, ...]:
    """Return the marks of a lock file, by session number, without locking it; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return ()
    marks = (mark for (mark,) in _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]))
    return tuple(0 if mark == _DELETED else mark for mark in marks)


def mark_damaged(journal: str) -> bool:
    """Mark a journal as damaged, so that the next opening salvages it. False if the mark cannot be stored."""
    try:
        leases = Leases(f"{journal}.lock")
    except StoreFailed:
        return False
    try:
        leases.mark({SUSPECTED: 1})
    except StoreFailed:
        return False
    finally:
        leases.close()
    return True


class Owner(msgspec.Struct, frozen=True):
    """The process that runs a session. ``boot`` tells the machine's boots apart, ``token`` the runs.

    ``parked``: the process left, and everything it wrote had been stored before.
    """

    pid: int
    host: str
    since: str
    boot: str
    token: str
    parked: bool = False


def current_owner() -> Owner:
    """Return this process as owner of a new run."""
    pid = os.getpid()
    # Cached, not asked anew for each run: a system call releases the interpreter lock and may wait for it afterwards.
    return Owner(pid, host_name(), timestamp(), boot_id(), f"{_process_token(pid)}-{next(_runs)}")


@cache
def _process_token(pid: int) -> str:
    """Return a token that differs between processes, even with the same pid one after the other."""
    return os.urandom(8).hex()


@cache
def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Return an id of this boot of the machine; "" where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # Binary: text mode would import a codec.
            return file.read().decode().strip()
    except OSError:
        return ""


class WaitingPlace(Protocol):
    """A place in one session's waiting line."""

    @property
    def is_first(self) -> bool:
        """True if no waiter is ahead, and after `leave`. Raise StoreFailed."""

    def leave(self) -> None:
        """Leave the line. Idempotent."""


class Ticket(_LockFile):
    """A place in one session's waiting line. Usable from any thread. Where locks belong to the process there are no
    lines, and every waiter is first."""

    def __init__(self, path: str, number: int, came: float) -> None:
        """Take the place for an arrival at ``came``, a time of `time.monotonic`, which all processes share.

        Raise StoreFailed if the lock file ``path`` cannot be used.
        """
        super().__init__(path)
        self._first = (1 + number % _LINES) * _APART
        self._place = self._first + max(0, int(came * _PER_SECOND))
        if _SET is None or _GET is None:
            return
        try:
            self._descriptor = os.open(path, os.O_RDWR)
            while not self._lock(fcntl.F_WRLCK, self._place):
                self._place += 1
        except OSError as problem:
            self.leave()
            raise self._failed("locked", problem) from problem

    @property
    def is_first(self) -> bool:
        """True if no waiter is ahead, and after `leave`. Raise StoreFailed."""
        with self._guard:
            return self._descriptor < 0 or not self._is_any_ahead()

    def leave(self) -> None:
        """Leave the line. Idempotent."""
        with self._guard:
            if self._descriptor >= 0:
                # A forked child may have a copy of the descriptor, which would keep the place.
                with suppress(OSError):  # Without a child, closing is enough.
                    self._lock(fcntl.F_UNLCK, self._place)
                os.close(self._descriptor)
                self._descriptor = -1

    def _is_any_ahead(self) -> bool:
        # A length of 0 would test up to the end of the file.
        return self._place > self._first and self._is_locked(self._first, self._place - self._first)
