"""Protection of files that would run later: read-only in a sandbox, and moved away if a command created them.

A mount cannot cover a path that does not exist without creating it for all programs. So paths that were missing before
a command are looked for after it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

from zot.config.protected_paths import IN_REPOSITORY, REPOSITORY, protected_paths
from zot.files import read_content
from zot.tools.mounts import Places

#: Ending of the name that a file gets when it is moved away.
QUARANTINE = ".zot-quarantine"
_OPEN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
#: Limits of directories to look into for repositories: once, and after every command.
_MAX_SURVEYED = 50_000
_MAX_SWEPT = 5_000
_MAX_REPOSITORIES = 100
#: The mode of a submodule in an index of git.
_SUBMODULE = (0o160000).to_bytes(4, "big")
#: Clocks of file systems are coarser than others.
_TICK_S = 0.1

#: What was found at a path: how many of its names, and a link's target, "" if it is none. None: nothing.
Seen: TypeAlias = tuple[int, str] | None


class ProtectedFiles:
    """The protected paths in ``root``, also of the repositories below; ``more`` are the user's.

    git goes from a repository into one below if its index calls that a submodule, and editors look for them. So the
    repositories that are there are protected as the one in ``root`` is, and new ones are moved away.
    """

    def __init__(self, root: str, more: Sequence[str] = ()) -> None:
        self._root = os.path.realpath(root)
        self._paths = [tuple(path.split("/")) for path in protected_paths(more)]
        self._before: dict[tuple[str, ...], Seen] = {}
        self._repositories: set[str] | None = None
        self._surveyed_at = 0.0

    def survey(self) -> None:
        """Find the repositories below, once. May take a moment in a large tree."""
        if self._repositories is None:
            self._surveyed_at = time.time()
            self._repositories = set(islice(self._below(_MAX_SURVEYED), _MAX_REPOSITORIES))
            for place in sorted(self._repositories):
                names = tuple(place.split("/"))
                self._paths += [(*names, *path.split("/")) for path in (REPOSITORY, *IN_REPOSITORY)]

    def mounts(self) -> Places:
        """Return read-only mounts of those that exist. Remembers the others for `sweep`."""
        for place in ("", *(self._repositories or ())):
            _make_hooks(os.path.join(self._root, place))
        self._before = self._look()
        places: Places = {}
        for names, seen in self._before.items():
            place = os.path.join(self._root, *names)
            is_repository = names[-1] == REPOSITORY and os.path.isdir(place)
            if seen == (len(names), "") and not is_repository:
                places[place] = ("--ro-bind", place)
        return places

    def sweep(self) -> list[str]:
        """Move away the files, links and repositories that have appeared since `mounts`; return their paths."""
        if not self._before:
            return []
        found = [
            names[: seen[0]] for names, seen in self._look().items() if seen is not None and seen != self._before[names]
        ]
        found += [(*place.split("/"), REPOSITORY) for place in self._new_repositories()]
        moved: list[str] = []
        for path in found:
            with suppress(OSError):  # moved already with another path, or not ours to move
                self._move(path)
                moved.append("/".join(path))
        return moved

    def _new_repositories(self) -> Iterator[str]:
        if self._repositories is None:
            return
        # The bytes of the mode of a submodule in an index of any version: then git goes there, however deep it is.
        limit = _MAX_SURVEYED if self._has_submodules() else _MAX_SWEPT
        for place in self._below(limit):
            if place in self._repositories:
                continue
            with suppress(OSError):
                # By the change time, which programs cannot set: a survey of a large tree may have missed it.
                if os.lstat(os.path.join(self._root, place, REPOSITORY)).st_ctime >= self._surveyed_at - _TICK_S:
                    yield place

    def _has_submodules(self) -> bool:
        directory = os.path.join(self._root, REPOSITORY)
        try:
            names = [name for name in os.listdir(directory) if name == "index" or name.startswith("sharedindex.")]
            return any(_SUBMODULE in read_content(os.path.join(directory, name)) for name in names)
        except OSError:
            return False

    def _below(self, limit: int) -> Iterator[str]:
        """Yield the directories below the root that have a repository, the nearest first. Follows no links."""
        unseen, count = [""], 0
        for place in unseen:  # grows during the walk
            count += 1
            if count > limit:
                return
            try:
                with os.scandir(os.path.join(self._root, place) if place else self._root) as entries:
                    for entry in entries:
                        if entry.name == REPOSITORY:
                            if place:
                                yield place
                        elif entry.is_dir(follow_symlinks=False):
                            unseen.append(f"{place}/{entry.name}" if place else entry.name)
            except OSError:  # not ours to look into, or gone
                continue

    def _look(self) -> dict[tuple[str, ...], Seen]:
        try:
            root = os.open(self._root, _OPEN)
        except OSError:  # the command may have removed it
            return dict.fromkeys(self._paths)
        try:
            return {names: _seen(root, names) for names in self._paths}
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


def _make_hooks(place: str) -> None:
    """Create the directory of hooks in a repository that has none: then it can be mounted."""
    try:
        parent = os.open(os.path.join(place, REPOSITORY), _OPEN)
    except OSError:  # not a repository, or a file or link that leads to one
        return
    try:
        with suppress(OSError):
            os.mkdir("hooks", dir_fd=parent)
    finally:
        os.close(parent)


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
