"""Protection of files that would run later: read-only in a sandbox, and moved away if a command created them.

A mount cannot cover a path that does not exist without creating it for everybody. So what was missing before a command
is looked for after it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from zot.config.protected_paths import REPOSITORY, protected_paths
from zot.tools.mounts import Places

#: Ending of the name that a file gets when it is moved away.
QUARANTINE = ".zot-quarantine"
_OPEN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
#: git expects no hooks; an empty directory can be mounted.
_HOOKS = (REPOSITORY, "hooks")

#: What was found at a path: how many of its names, and a link's target, "" if it is none. None: nothing.
Seen: TypeAlias = tuple[int, str] | None


class ProtectedFiles:
    """The protected paths in ``root``; ``more`` are the user's."""

    def __init__(self, root: str, more: Sequence[str] = ()) -> None:
        self._root = os.path.realpath(root)
        self._paths = [path.split("/") for path in protected_paths(more)]
        self._before: dict[tuple[str, ...], Seen] = {}

    def mounts(self) -> Places:
        """Return read-only mounts of those that exist. Remembers the others for `sweep`."""
        self._make_hooks()
        self._before = self._look()
        places: Places = {}
        for names, seen in self._before.items():
            place = os.path.join(self._root, *names)
            is_repository = names == (REPOSITORY,) and os.path.isdir(place)
            if seen == (len(names), "") and not is_repository:
                places[place] = ("--ro-bind", place)
        return places

    def sweep(self) -> list[str]:
        """Move away the files and links that have appeared since `mounts`; return their paths."""
        moved: list[str] = []
        for names, seen in self._look().items() if self._before else ():
            if seen is not None and seen != self._before[names]:
                path = names[: seen[0]]
                with suppress(OSError):  # moved already with another path, or not ours to move
                    self._move(path)
                    moved.append("/".join(path))
        return moved

    def _make_hooks(self) -> None:
        try:
            parent = os.open(_HOOKS[0], _OPEN, dir_fd=(root := os.open(self._root, _OPEN)))
        except OSError:  # not a repository
            return
        try:
            with suppress(OSError):
                os.mkdir(_HOOKS[1], dir_fd=parent)
        finally:
            os.close(parent)
            os.close(root)

    def _look(self) -> dict[tuple[str, ...], Seen]:
        try:
            root = os.open(self._root, _OPEN)
        except OSError:  # the command may have removed it
            return {tuple(names): None for names in self._paths}
        try:
            return {tuple(names): _seen(root, names) for names in self._paths}
        finally:
            os.close(root)

    def _move(self, names: Sequence[str]) -> None:
        """Rename a path. Follows no link on the way: the command may have put one there. Raise OSError."""
        here = os.open(self._root, _OPEN)
        try:
            for name in names[:-1]:
                below = os.open(name, _OPEN, dir_fd=here)
                os.close(here)
                here = below
            free = f"{names[-1]}{QUARANTINE}"
            if _mode(free, here) is not None:
                free = f"{names[-1]}.{os.urandom(4).hex()}{QUARANTINE}"
            os.rename(names[-1], free, src_dir_fd=here, dst_dir_fd=here)
        finally:
            os.close(here)


def _seen(root: int, names: Sequence[str]) -> Seen:
    here = os.dup(root)
    try:
        for count, name in enumerate(names, 1):
            mode = _mode(name, here)
            if mode is None:
                return None
            if stat.S_ISLNK(mode):
                return count, os.readlink(name, dir_fd=here)
            if count < len(names):
                below = os.open(name, _OPEN, dir_fd=here)
                os.close(here)
                here = below
        return len(names), ""
    except OSError:  # a file where a directory would have to be, or changed meanwhile
        return None
    finally:
        os.close(here)


def _mode(name: str, directory: int) -> int | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
