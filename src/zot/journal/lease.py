"""Leases: one writing process per session, by a kernel lock, with a fair line of waiters."""

from __future__ import annotations

import errno
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

import msgspec

from zot.errors import StoreFailed, UnmarkedRows
from zot.messages import timestamp

log = logging.getLogger("zot")

#: struct flock, padded to its size; its pid must be 0 for a lock that belongs to the open file.
FLOCK = "hhqqi0q"
_MARK = struct.Struct("<Q")
#: The place in the lock file, where no session is, that says that damage was met.
SUSPECTED = 0
#: The mark of a session that was deleted: no row has that number.
_BURIED = (1 << 64) - 1
_SET = getattr(fcntl, "F_OFD_SETLK", None)
_GET = getattr(fcntl, "F_OFD_GETLK", None)


class Leases:
    """The locks of one journal, as seen by this process. Usable from any thread."""

    def __init__(self, path: str) -> None:
        """Open the lock file, or make it. Raise StoreFailed."""
        self.path = path
        self._guard = threading.Lock()
        self._held: set[int] = set()
        self._descriptor = self._open()
        _everyone.add(self)

    @property
    def held(self) -> frozenset[int]:
        """The sessions that this process may write."""
        with self._guard:
            return frozenset(self._held)

    def take(self, number: int) -> bool:
        """Become the writer of a session. False if somebody is, here or elsewhere."""
        with self._guard:
            if number in self._held:
                return False
            self._follow_the_file()
            if not self._lock(fcntl.F_WRLCK, number):
                return False
            self._held.add(number)
            return True

    def is_taken(self, number: int) -> bool:
        """True if somebody is the writer of a session, here or elsewhere. Where it can be, nothing is taken for that:
        whoever would begin at that moment must not be refused."""
        with self._guard:
            if number in self._held:
                return True
            if _GET is not None:
                asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
                try:
                    answer: tuple[int, ...] = struct.unpack(FLOCK, fcntl.fcntl(self._descriptor, _GET, asked))
                except OSError as problem:
                    raise self._failed("read", problem) from problem
                return answer[0] != fcntl.F_UNLCK
            return not (self._lock(fcntl.F_WRLCK, number) and self._lock(fcntl.F_UNLCK, number))

    def let_go(self, number: int) -> None:
        """Be the writer of a session no more."""
        with self._guard:
            if number in self._held:
                self._held.remove(number)
                try:
                    self._lock(fcntl.F_UNLCK, number)
                except StoreFailed as problem:  # others wait until we end, but what was written is safe
                    log.warning("%s", problem)

    def share(self) -> bool:
        """Say that the journal is in use here. False while somebody replaces it."""
        with self._guard:
            return self._lock(fcntl.F_RDLCK, 0)

    def own(self) -> bool:
        """Have the journal alone, to replace it; `share` ends that. False while others have it open."""
        with self._guard:
            return self._lock(fcntl.F_WRLCK, 0)

    def mark(self, safe: Mapping[int, int]) -> None:
        """Remember up to which row sessions are ``safe``, by number. Raise StoreFailed if others lock another file,
        UnmarkedRows if this one cannot be written."""
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
        # Those that stand beside each other are written in one call: each lets go of the interpreter.
        for _, group in groupby(enumerate(numbers), lambda place: place[1] - place[0]):
            beside = [number for _, number in group]
            marks = b"".join([_MARK.pack(safe[number]) for number in beside])
            os.pwrite(self._descriptor, marks, _MARK.size * beside[0])

    def marked(self, number: int) -> int:
        """Return up to which row a session was once safe; 0 if nobody knows. Raise StoreFailed."""
        try:
            mark = self._mark_of(number)
        except OSError as problem:
            raise self._failed("read", problem) from problem
        return 0 if mark == _BURIED else mark

    @property
    def highest(self) -> int:
        """The highest number of a session that was ever marked; 0 if none was. Raise StoreFailed."""
        try:
            return max(0, os.fstat(self._descriptor).st_size // _MARK.size - 1)
        except OSError as problem:
            raise self._failed("read", problem) from problem

    def bury(self, number: int) -> None:
        """Remember that a session was deleted. Raise StoreFailed."""
        self.mark({number: _BURIED})

    def is_buried(self, number: int) -> bool:
        """True if a session was deleted, here or elsewhere, as far as the lock file can be read."""
        try:
            return self._mark_of(number) == _BURIED
        except OSError:
            return False

    def _mark_of(self, number: int) -> int:
        data = os.pread(self._descriptor, _MARK.size, _MARK.size * number)
        return int(_MARK.unpack(data)[0]) if len(data) == _MARK.size else 0

    def close(self) -> None:
        """Let go of everything."""
        with self._guard:
            self._held.clear()
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @property
    def is_in_place(self) -> bool:
        """True if the lock file is still the one that others find."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT
        try:
            try:
                made = os.open(self.path, flags | os.O_EXCL, 0o600)
            except FileExistsError:
                return os.open(self.path, flags, 0o600)
            os.fchmod(made, 0o600)  # Whatever the umask says.
        except OSError as problem:
            raise self._failed("opened", problem) from problem
        return made

    def _follow_the_file(self) -> None:
        """Somebody may have removed the lock file: two processes that lock different files exclude nobody."""
        if self.is_in_place:
            return
        if self._held:
            raise StoreFailed(f"the lock file {self.path} was removed while a session runs: wait for its end")
        # The new one first: a number that we have closed may soon be somebody else's.
        descriptor = self._open()
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._lock(fcntl.F_RDLCK, 0)

    def _lock(self, kind: int, at: int) -> bool:
        """Set a lock on one byte. False if another process is in the way."""
        try:
            if _SET is not None:
                fcntl.fcntl(self._descriptor, _SET, struct.pack(FLOCK, kind, os.SEEK_SET, at, 1, 0))
            else:
                fcntl.lockf(self._descriptor, _FLAGS[kind], 1, at)
        except OSError as problem:
            if problem.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise self._failed("locked", problem) from problem
        return True

    def _failed(self, what: str, problem: OSError) -> StoreFailed:
        return lock_failed(self.path, what, problem)


def lock_failed(path: str, what: str, problem: OSError) -> StoreFailed:
    """Return what the user may see if a lock file cannot be opened, locked, read or written."""
    return StoreFailed(f"the lock file {path} cannot be {what} ({problem.strerror}): look at its disk and permissions")


def read_marks(path: str) -> tuple[int, ...]:
    """Return the marks of a lock file, by number of session, without opening it for more; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return ()
    marks = (mark for (mark,) in _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]))
    return tuple(0 if mark == _BURIED else mark for mark in marks)


def suspect(journal: str) -> bool:
    """See to it that a file is salvaged when a session of it is next opened. False if that cannot be remembered."""
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


# Where locks do not belong to the open file they belong to the process, and any of its descriptors that is closed
# ends them; so there is one descriptor, and it stays open.
_FLAGS = {
    fcntl.F_RDLCK: fcntl.LOCK_SH | fcntl.LOCK_NB,
    fcntl.F_WRLCK: fcntl.LOCK_EX | fcntl.LOCK_NB,
    fcntl.F_UNLCK: fcntl.LOCK_UN,
}

_everyone: weakref.WeakSet[Leases] = weakref.WeakSet()


def _forget() -> None:
    """In a child that was forked: a copy of the descriptor would keep our locks alive when we are dead."""
    for leases in list(_everyone):
        if leases._descriptor >= 0:
            os.close(leases._descriptor)
            leases._descriptor = -1


os.register_at_fork(after_in_child=_forget)


_runs = count(1)


class Owner(msgspec.Struct, frozen=True):
    """A process that runs a session. ``boot`` tells the starts of a machine apart, ``token`` the runs.

    One that has ``parked`` its run has gone, and everything that it wrote was safe before.
    """

    pid: int
    host: str
    since: str
    boot: str
    token: str
    parked: bool = False


def ourselves() -> Owner:
    """Return who we are, for one run."""
    pid = os.getpid()
    # Not anew for each run: whoever asks the kernel lets go of the interpreter, and may wait for it afterwards.
    return Owner(pid, host_name(), timestamp(), boot_id(), f"{_life(pid)}-{next(_runs)}")


@cache
def _life(pid: int) -> str:
    """Return what differs between two processes, also if they have the same number, one after the other."""
    return os.urandom(8).hex()


@cache
def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Return what differs between two starts of the machine; "" where nobody can tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # as text it would need a codec that must be loaded
            return file.read().decode().strip()
    except OSError:
        return ""


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
        _ticket_everyone.add(self)

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


_ticket_everyone: weakref.WeakSet[Ticket] = weakref.WeakSet()


def _ticket_forget() -> None:
    """In a child that was forked: a copy of the descriptor would keep our place when we are dead."""
    for ticket in list(_ticket_everyone):
        if ticket._descriptor >= 0:
            os.close(ticket._descriptor)
            ticket._descriptor = -1


os.register_at_fork(after_in_child=_ticket_forget)
