"""The complete output of a command that said more than the model is shown, in a file that it can look into."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from zot.private import make_directory

#: A command that never stops talking must not fill the disk.
MAX_SPILL_BYTES = 1 << 30
#: What others have left is removed in passing: for so long at most, and only when nobody can be about to use it.
_SWEEP_S = 0.1
_UNTOUCHED_S = 60.0
_PREFIX = "bash-"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Spills:
    """The spill files of one session, in a directory below ``root``, which holds nothing else.

    Whoever makes it closes it. While there is such a directory, we hold the kernel's lock on it. By that everyone can
    tell those of the living from what a zot has left that was killed; the first file of a session removes the latter.
    """

    def __init__(self, root: str, key: str, *, now: Callable[[], float] = time.time) -> None:
        self.directory = os.path.join(root, key)
        self._root = root
        self._now = now
        self._lock: int | None = None

    def new(self) -> Spill:
        """Return a file that does not exist yet."""
        return Spill(os.path.join(self.directory, f"{_PREFIX}{os.urandom(8).hex()}.txt"), prepare=self._prepare)

    @property
    def holds(self) -> bool:
        """True if there may be files."""
        return self._lock is not None

    def close(self) -> None:
        """Remove all of it. Any number of times."""
        if self._lock is not None:
            with suppress(OSError):  # somebody has removed it, or put something of their own there
                _remove(self.directory, self._lock)
            os.close(self._lock)
            self._lock = None

    def _prepare(self) -> None:
        """Make the directory, once. Raise OSError."""
        if self._lock is not None:
            return
        make_directory(self.directory)
        self._lock = _open(self.directory)
        _take(self._lock)
        self._sweep()

    def _sweep(self) -> None:
        """Remove the directories beside ours that nobody holds any more."""
        deadline = time.monotonic() + _SWEEP_S
        for name in os.listdir(self._root):
            if time.monotonic() < deadline:
                with suppress(OSError):  # it is no directory, or not ours: then it stays
                    self._sweep_one(os.path.join(self._root, name))

    def _sweep_one(self, directory: str) -> None:
        fd = _open(directory)
        try:
            # One that was made just now may be about to be locked.
            if os.fstat(fd).st_mtime < self._now() - _UNTOUCHED_S and _take(fd):
                _remove(directory, fd)
        finally:
            os.close(fd)


class Spill:
    """A file that is made when there is something to put in, readable by this user only.

    ``prepare`` is called before. A disk that is full, or anything else that goes wrong, ends the file and not the
    command: ``problem`` says why the file ends early.
    """

    def __init__(
        self, path: str, *, max_bytes: int = MAX_SPILL_BYTES, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self.problem: str | None = None
        self.written_bytes = 0
        self._max_bytes = max_bytes
        self._prepare = prepare
        self._fd: int | None = None

    @property
    def exists(self) -> bool:
        """True if there is such a file, complete or not."""
        return self._fd is not None or self.written_bytes > 0

    def write(self, data: bytes) -> None:
        """Add ``data``; nothing any more once something went wrong.

        A direct call and not a thread: it goes to the page cache, and the reader of a pipe must not run ahead.
        """
        if self.problem is not None:
            return
        rest = memoryview(data)[: self._max_bytes - self.written_bytes]
        try:
            if self._fd is None:
                self._prepare()
                self._fd = os.open(self.path, _CREATE, 0o600)
                os.fchmod(self._fd, 0o600)
            while rest:
                count = os.write(self._fd, rest)
                self.written_bytes += count
                rest = rest[count:]
        except OSError as exc:
            self.problem = exc.strerror or str(exc)
        if self.problem is None and self.written_bytes == self._max_bytes:
            self.problem = "the limit of a spill file"

    def close(self) -> None:
        """Nothing more will come. Safe any number of times."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def note(self) -> str:
        """Say where the output is, and how much of it."""
        if not self.exists:
            return f"the rest could not be kept: {self.problem}"
        if self.problem is not None:
            return f"only the first {self.written_bytes} bytes are in {self.path}: {self.problem}"
        return f"the complete output is in {self.path}"


def _open(directory: str) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _take(directory: int) -> bool:
    """Take the lock of an open directory; False if somebody has it, or this file system has none."""
    import fcntl

    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(path: str, directory: int) -> None:
    """Remove an open directory with the spill files in it. Something else in there is not ours and stays."""
    for name in os.listdir(directory):
        if name.startswith(_PREFIX):
            os.unlink(name, dir_fd=directory)
    os.rmdir(path)
