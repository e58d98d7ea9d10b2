"""A directory copied as it is: links stay links, and what is neither file nor directory nor link is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from zot.errors import UserError

_SLICE_BYTES = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copying(source: str, destination: str) -> Iterator[None]:
    """Copy ``source`` to ``destination``, which must not exist. Yields often, so that it can be left half done.

    Raise OSError, or UserError for what cannot be copied. Of the modes only "executable" is kept: the copy is for its
    owner alone.
    """
    left = [""]
    while left:
        below = left.pop()
        os.mkdir(os.path.join(destination, below), 0o700)
        with os.scandir(os.path.join(source, below)) as entries:
            names = sorted(entry.name for entry in entries)
        for path in (os.path.join(below, name) for name in names):
            there, here = os.path.join(source, path), os.path.join(destination, path)
            mode = os.lstat(there).st_mode
            if stat.S_ISDIR(mode):
                left.append(path)
            elif stat.S_ISLNK(mode):
                os.symlink(os.readlink(there), here)
            elif stat.S_ISREG(mode):
                yield from _copying_file(there, here)
            else:
                raise UserError(f"{there} is neither a file nor a directory nor a link")
            yield


def narrowing(directory: str) -> Iterator[None]:
    """Take everything in ``directory``, and itself, away from all but its owner. Yields and raises as `copying`."""
    left = [directory]
    while left:
        place = left.pop()
        mode = os.lstat(place).st_mode
        if not stat.S_ISLNK(mode):  # What it leads to is somebody else's.
            os.chmod(place, mode & 0o700)
        if stat.S_ISDIR(mode):
            with os.scandir(place) as entries:
                left += [entry.path for entry in entries]
        yield


def _copying_file(there: str, here: str) -> Iterator[None]:
    source = os.open(there, _READ)
    try:
        mode = os.fstat(source).st_mode
        if not stat.S_ISREG(mode):  # It was one a moment ago.
            raise UserError(f"{there} is not a regular file")
        with open(os.open(here, _WRITE, 0o700 if mode & 0o111 else 0o600), "wb") as copy:
            while data := os.read(source, _SLICE_BYTES):
                copy.write(data)
                yield
    finally:
        os.close(source)
