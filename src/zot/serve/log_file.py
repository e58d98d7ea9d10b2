"""A file that lines are added to, for years: put aside when it is long, and not bothered by a full disk."""

from __future__ import annotations

import os
import stat
from itertools import pairwise

from zot.private import make_directory

MAX_BYTES = 10 * 1024 * 1024
FILES = 5
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


class LogFile:
    """Lines at the end of ``path``, for its owner only. The older ones are in ``path.1`` and so on, the oldest last.

    One process writes it. Never raises: ``problem`` says why lines could not be added when they last were to be.
    """

    def __init__(self, path: str, *, max_bytes: int = MAX_BYTES, files: int = FILES) -> None:
        self.path = path
        self.problem = ""
        self._max_bytes = max_bytes
        self._files = files
        self._descriptor = -1
        self._size = 0

    def append(self, lines: bytes) -> bool:
        """Add whole lines, or nothing. False if there is no room, or no file."""
        try:
            self._find_place(len(lines))
            self._write(lines)
        except OSError as problem:
            self.problem = problem.strerror or str(problem)
            return False
        self.problem = ""
        return True

    def close(self) -> None:
        """Close it. It is opened again when there is something to add."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _find_place(self, size: int) -> None:
        """See to it that the file is open, in its place, and not too long for ``size`` more bytes."""
        if not self._is_in_place():
            self._open()
        if self._size and self._size + size > self._max_bytes:
            for path, older in reversed(_pairs(self.path, self._files)):
                # A crash in between leaves a gap in the numbers, which the next time closes.
                if os.path.lexists(path):
                    os.rename(path, older)
            self._open()

    def _is_in_place(self) -> bool:
        """False if somebody has moved or removed it."""
        if self._descriptor < 0:
            return False
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        self.close()
        make_directory(os.path.dirname(self.path))
        descriptor = os.open(self.path, _OPEN, 0o600)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(descriptor)
            raise OSError(0, f"{self.path} is not a file of ours")
        self._descriptor, self._size = descriptor, found.st_size
        os.fchmod(descriptor, 0o600)
        if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
            self._write(b"\n")  # Somebody died in the middle of a line.

    def _write(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        if written < len(data):  # The disk is full: half a line is worse than none.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(0, "there is no room")
        self._size += written


def log_files(path: str, files: int = FILES) -> list[str]:
    """Return the files of a log that are there, the oldest first."""
    every = [path, *(older for _, older in _pairs(path, files))][::-1]
    return [one for one in every if os.path.isfile(one)]


def _pairs(path: str, files: int) -> list[tuple[str, str]]:
    """Return which file becomes which when they are put aside, the newest first."""
    names = [path, *(f"{path}.{number}" for number in range(1, files))]
    return [*pairwise(names)]
