"""AGENTS.md files of the user and the project, collected from the home directory and up the tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec

#: Only the first that exists in a directory is read.
FILE_NAMES = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES = 64 * 1024
_MAX_FILES = 32


class Instructions(msgspec.Struct, frozen=True):
    """One instructions file."""

    path: str
    text: str


def discover(*, cwd: str, home: str | None) -> tuple[Instructions, ...]:
    """Return the instructions of ``home``, then those of the directories from the root down to ``cwd``.

    Files that another user could have written are skipped: any user may own a parent directory.
    """
    cwd = os.path.abspath(cwd)
    owners = {os.geteuid(), 0, os.stat(cwd).st_uid}
    places = [*([home] if home else []), *reversed(list(_upward(cwd)))]
    found = {item.path: item for place in places if (item := _of(place, owners)) is not None}
    return tuple(found.values())[-_MAX_FILES:]


def _upward(directory: str) -> Iterator[str]:
    yield directory
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        yield directory


def _of(directory: str, owners: set[int]) -> Instructions | None:
    for name in FILE_NAMES:
        path = os.path.join(directory, name)
        text = _read(path, owners)
        if text is not None:
            return Instructions(path, text) if text else None
    return None


def _read(path: str, owners: set[int]) -> str | None:
    """Return the text of a trusted file; None if there is none."""
    try:
        # Non-blocking: it may be a pipe without a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (os.geteuid() != 0 and status.st_uid not in owners):
            return None
        data = os.read(descriptor, MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    text = data[:MAX_BYTES].decode("utf-8-sig", "replace").strip()
    return f"{text}\n[the rest was left out: it is longer than {MAX_BYTES} bytes]" if len(data) > MAX_BYTES else text
