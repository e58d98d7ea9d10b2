"""Read state: the file versions the model has seen, so that it changes nothing unseen."""

from __future__ import annotations

import asyncio
import os
from typing import TypeAlias

#: A file, twice: the device and number of its directory, and its name there; and the path with all links resolved.
#: The one stays the same when its directory is moved, the other when that is replaced by another one.
Keys: TypeAlias = tuple[tuple[int, int, str], str]

#: The version of a small file is its content; of a larger one what the system knows about it, which is cheaper
#: but also changes when the same content is written again.
MAX_HASHED_BYTES = 4 * 1024 * 1024
MAX_FILES = 10_000
_SLICE_BYTES = 256 * 1024


class Seen:
    """The version of each file that the model last read or wrote in a session."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, int, str] | str, bytes] = {}

    def __contains__(self, keys: Keys) -> bool:
        return any(key in self._versions for key in keys)

    def note(self, keys: Keys, version: bytes) -> None:
        """Remember what the model has now seen. Of very many files the oldest are forgotten."""
        for key in keys:
            self._versions.pop(key, None)
            self._versions[key] = version
        while len(self._versions) > MAX_FILES * len(keys):
            del self._versions[next(iter(self._versions))]

    def forget(self, keys: Keys) -> None:
        """There is nothing any more that could have been seen."""
        for key in keys:
            self._versions.pop(key, None)

    def is_stale(self, keys: Keys, version: bytes) -> bool:
        """Tell if the model has seen the file, and another version of it. What it never saw is not stale."""
        return any(self._versions.get(key, version) != version for key in keys)


async def version(fd: int) -> bytes:
    """Return the version of an open file. Other work goes on meanwhile."""
    about = os.fstat(fd)
    if about.st_size > MAX_HASHED_BYTES:
        return version_outside(about)
    from hashlib import sha256  # Loaded with the first file that is read, not at every start.

    digest, position = sha256(), 0
    while data := os.pread(fd, _SLICE_BYTES, position):
        digest.update(data)
        position += len(data)
        await asyncio.sleep(0)
    return digest.digest()


def version_of(data: bytes, about: os.stat_result) -> bytes:
    """Return the version of a file whose whole content is ``data``; the same that `version` finds."""
    from hashlib import sha256

    return version_outside(about) if len(data) > MAX_HASHED_BYTES else sha256(data).digest()


def version_outside(about: os.stat_result) -> bytes:
    """Return what the system knows of a version. The last time cannot be set back, as the one before can."""
    return f"{about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode()
