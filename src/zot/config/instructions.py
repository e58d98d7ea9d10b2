"""AGENTS.md files of the user and the project, collected from the home directory and up the tree."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from zot.files import open_beneath

#: Only the first that exists in a directory is read.
FILE_NAMES = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES = 64 * 1024
_MAX_FILES = 32
#: File systems of the kernel, with the environment and memory of processes.
_KERNEL = ("/proc/", "/sys/", "/dev/")


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
    places = [*([(home, True)] if home else []), *((place, False) for place in reversed(list(_upward(cwd))))]
    found = {item.path: item for place, is_home in places if (item := _of(place, owners, is_home=is_home)) is not None}
    return tuple(found.values())[-_MAX_FILES:]


def _upward(directory: str) -> Iterator[str]:
    yield directory
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        yield directory


def _of(directory: str, owners: set[int], *, is_home: bool) -> Instructions | None:
    for name in FILE_NAMES:
        path = os.path.join(directory, name)
        text = _read(directory, name, owners, is_home=is_home)
        if text is not None:
            return Instructions(path, text) if text else None
    return None


def _read(directory: str, name: str, owners: set[int], *, is_home: bool) -> str | None:
    """Return the text of a trusted file; None if there is none.

    Links are followed inside of the directory only, since a clone may bring one that leads to a key. In zot's home they
    are the user's.
    """
    try:
        if is_home:
            directory, name = os.path.split(os.path.realpath(os.path.join(directory, name)))
            if f"{directory}/".startswith(_KERNEL):
                return None
        descriptor = open_beneath(directory, name)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if os.geteuid() != 0 and status.st_uid not in owners:
            return None
        data = os.read(descriptor, MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    text = data[:MAX_BYTES].decode("utf-8-sig", "replace").strip()
    return f"{text}\n[the rest was left out: it is longer than {MAX_BYTES} bytes]" if len(data) > MAX_BYTES else text
