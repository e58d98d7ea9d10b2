"""Read state: the file versions the model has seen, so that it changes nothing unseen."""

from __future__ import annotations

import asyncio
import os
from typing import TypeAlias

from zot.files import sha256

#: Two identities of a file: its directory's device and inode with its name, and its real path. The first survives
#: a move of its directory, the second a replacement.
Keys: TypeAlias = tuple[tuple[int, int, str], str]

#: Versions of small files are hashes of their content. Larger ones use the file's status, which is cheaper, but also
#: changes when the same content is written again.
MAX_HASHED_BYTES = 4 * 1024 * 1024
MAX_FILES = 10_000
_SLICE_BYTES = 256 * 1024


class ReadState:
    """Version of each file that the model last read or wrote in a session."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, int, str] | str, bytes] = {}

    def __contains__(self, keys: Keys) -> bool:
        return any(key in self._versions for key in keys)

    def note(self, keys: Keys, version: bytes) -> None:
        """Record the version that the model has seen. Evicts the oldest of very many files."""
        for key in keys:
            self._versions.pop(key, None)
            self._versions[key] = version
        while len(self._versions) > MAX_FILES * len(keys):
            del self._versions[next(iter(self._versions))]

    def forget(self, keys: Keys) -> None:
        """Remove a file that is gone."""
        for key in keys:
            self._versions.pop(key, None)

    def is_stale(self, keys: Keys, version: bytes) -> bool:
        """Return whether the model has seen another version of the file. An unseen file is not stale."""
        return any(self._versions.get(key, version) != version for key in keys)


async def version(fd: int) -> bytes:
    """Return the version of an open file. Yields to the event loop while hashing."""
    about = os.fstat(fd)
    if about.st_size > MAX_HASHED_BYTES:
        return version_from_status(about)
    digest, position = sha256(), 0
    while data := os.pread(fd, _SLICE_BYTES, position):
        digest.update(data)
        position += len(data)
        await asyncio.sleep(0)
    return digest.digest()


def version_of(data: bytes, about: os.stat_result) -> bytes:
    """Return the version of a file with the whole content ``data``, equal to `version`."""
    return version_from_status(about) if len(data) > MAX_HASHED_BYTES else sha256(data).digest()


def version_from_status(about: os.stat_result) -> bytes:
    """Return a version from a file's status. Unlike the mtime, the ctime cannot be set back."""
    return f"{about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode()
