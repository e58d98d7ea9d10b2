"""Protection of files that would run later: read-only in a sandbox, and moved away if a command created them.

A mount cannot cover a path that does not exist without creating it for all programs. So paths that were missing before
a command are looked for after it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

from zot.config.protected_paths import IN_REPOSITORY, REPOSITORY, protected_paths
from zot.files import OPEN_DIRECTORY, read_content
from zot.tools.mounts import Places, is_in

#: Ending of the name that a file gets when it is moved away.
QUARANTINE = ".zot-quarantine"
_OPEN = OPEN_DIRECTORY | os.O_NOFOLLOW
#: Limits of directories to look into for repositories: once, and after every command.
_MAX_SURVEYED = 50_000
_MAX_SWEPT = 5_000
_MAX_REPOSITORIES = 100
#: The mode of a submodule in an index of git.
_SUBMODULE = (0o160000).to_bytes(4, "big")
#: Settings of git that name directories of hooks and further configuration, which may be in the directory.
_NAMED_IN_CONFIG = re.compile(r'^(?:[ \t]*\[[^\]\n]*\])?[ \t]*(hookspath|path)[ \t]*=[ \t]*"?([^"\n#;]+)', re.I | re.M)
_MAX_NAMED = 100
#: What a bare repository runs or obeys, and the file without which it is none.
_IN_BARE = tuple(path.removeprefix(f"{REPOSITORY}/") for path in IN_REPOSITORY)
_BARE = "HEAD"
_MAKE_BARE = (_BARE, "objects", "refs", "commondir")
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
        named = (*protected_paths(more), *led_to(self._root, "", more))
        self._paths = [tuple(path.split("/")) for path in named]
        self._before: dict[tuple[str, ...], Seen] = {}
        #: Directories with a repository, and the name in it that makes it one.
        self._repositories: set[tuple[str, str]] | None = None
        self._surveyed_at = 0.0

    def survey(self) -> None:
        """Find the repositories below, once. May take a moment in a large tree."""
        if self._repositories is None:
            self._surveyed_at = time.time()
            self._repositories = set(islice(self._below(_MAX_SURVEYED), _MAX_REPOSITORIES))
            found: list[str] = []
            for place, mark in sorted(self._repositories):
                found += [f"{place}/{path}" for path in (_IN_BARE if mark == _BARE else (REPOSITORY, *IN_REPOSITORY))]
                found += led_to(self._root, place) if mark == REPOSITORY else ()
            self._paths += [tuple(path.split("/")) for path in found]
            self._paths = [*dict.fromkeys(self._paths)]

    def mounts(self) -> Places:
        """Return read-only mounts of those that exist. Remembers the others for `sweep`."""
        for place in ("", *(place for place, mark in self._repositories or () if mark == REPOSITORY)):
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
        found += [(*place.split("/"), mark) for place, mark in self._new_repositories()]
        moved: list[str] = []
        for path in found:
            with suppress(OSError):  # moved already with another path, or not ours to move
                self._move(path)
                moved.append("/".join(path))
        return moved

    def _new_repositories(self) -> Iterator[tuple[str, str]]:
        if self._repositories is None:
            return
        # The bytes of the mode of a submodule in an index of any version: then git goes there, however deep it is.
        limit = _MAX_SURVEYED if self._has_submodules() else _MAX_SWEPT
        for place, mark in self._below(limit):
            if (place, mark) in self._repositories:
                continue
            with suppress(OSError):
                # By the change time, which programs cannot set: a survey of a large tree may have missed it.
                if self._is_new(place, (mark,) if mark == REPOSITORY else _MAKE_BARE):
                    yield place, mark

    def _is_new(self, place: str, names: Sequence[str]) -> bool:
        paths = [os.path.join(self._root, place, name) for name in names]
        times = [os.lstat(path).st_ctime for path in paths if os.path.lexists(path)]
        return max(times, default=0.0) >= self._surveyed_at - _TICK_S

    def _has_submodules(self) -> bool:
        directory = os.path.join(self._root, REPOSITORY)
        try:
            names = [name for name in os.listdir(directory) if name == "index" or name.startswith("sharedindex.")]
            return any(_SUBMODULE in read_content(os.path.join(directory, name)) for name in names)
        except OSError:
            return False

    def _below(self, limit: int) -> Iterator[tuple[str, str]]:
        """Yield the directories below the root that have a repository or are a bare one, with the name that makes it
        so, the nearest first. Follows no links."""
        unseen, count = [""], 0
        for place in unseen:  # grows during the walk
            count += 1
            if count > limit:
                return
            try:
                names: set[str] = set()
                with self._entries(place) as entries:
                    for entry in entries:
                        names.add(entry.name)
                        if entry.name != REPOSITORY and entry.is_dir(follow_symlinks=False):
                            unseen.append(f"{place}/{entry.name}" if place else entry.name)
                if place and REPOSITORY in names:
                    yield place, REPOSITORY
                if place and _BARE in names and ("commondir" in names or {"objects", "refs"} <= names):
                    yield place, _BARE
            except OSError:  # not ours to look into, or gone
                continue

    def _entries(self, place: str) -> os._ScandirIterator[str]:
        path = os.path.join(self._root, place) if place else self._root
        try:
            return os.scandir(path)
        except PermissionError:
            if self._repositories is None or not self._is_new(place, ("",)):
                raise
            # A command may have made it unreadable: programs still find what they know to be in there.
            directory = self._descend(place.split("/") if place else ())
            try:
                _add_mode(directory, stat.S_IRUSR | stat.S_IXUSR)
            finally:
                os.close(directory)
            return os.scandir(path)

    def _look(self) -> dict[tuple[str, ...], Seen]:
        try:
            root = os.open(self._root, _OPEN)
        except OSError:  # the command may have removed it
            return dict.fromkeys(self._paths)
        try:
            return {names: _seen(root, names) for names in self._paths}
        finally:
            os.close(root)

    def _descend(self, names: Sequence[str]) -> int:
        """Return a descriptor of a directory, which the caller closes. Follows no link. Raise OSError."""
        here = os.open(self._root, _OPEN)
        for name in names:
            try:
                below = os.open(name, _OPEN, dir_fd=here)
            finally:
                os.close(here)
            here = below
        return here

    def _move(self, names: Sequence[str]) -> None:
        """Rename a path. Follows no link on the way: the command may have put one there. Raise OSError."""
        here = self._descend(names[:-1])
        try:
            free = f"{names[-1]}{QUARANTINE}"
            if _mode(free, here) is not None:
                free = f"{names[-1]}.{os.urandom(4).hex()}{QUARANTINE}"
            try:
                os.rename(names[-1], free, src_dir_fd=here, dst_dir_fd=here)
            except PermissionError:  # the command may have made the directory read-only, so that it stays
                _add_mode(here, stat.S_IWUSR | stat.S_IXUSR)
                os.rename(names[-1], free, src_dir_fd=here, dst_dir_fd=here)
        finally:
            os.close(here)


def led_to(root: str, place: str, more: Sequence[str] = ()) -> list[str]:
    """Return the paths in ``root`` to which protected ones in ``place`` lead, relative to ``root``.

    Leading there are links, a file `.git`, and git's configuration, with directories of hooks and further files.
    """
    top, base = os.path.realpath(root), os.path.join(root, place)
    git = _git_directory(base)
    named = [_real(os.path.join(git, path)) for path in _IN_BARE]
    named += [_real(os.path.join(base, path)) for path in protected_paths(more) if path != REPOSITORY and not place]
    named += _named_in_config(base, git)
    usual = [os.path.join(top, place, path) for path in protected_paths(() if place else more) if path != REPOSITORY]
    found = [path for path in dict.fromkeys(named) if is_in(path, [top]) and path != top and not is_in(path, usual)]
    return [os.path.relpath(path, top) for path in found]


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def _git_directory(base: str) -> str:
    """Return the directory of a repository's own files, whatever `.git` is."""
    git = os.path.join(base, REPOSITORY)
    if os.path.isdir(git) or not os.path.isfile(git):
        return git
    try:
        line = read_content(git).decode(errors="replace").strip()
    except OSError:
        return git
    return os.path.join(base, line.removeprefix("gitdir:").strip()) if line.startswith("gitdir:") else git


def _named_in_config(base: str, git: str) -> list[str]:
    try:
        text = read_content(os.path.join(git, "config")).decode(errors="replace")
    except OSError:
        return []
    found: list[str] = []
    for key, value in islice(_NAMED_IN_CONFIG.findall(text), _MAX_NAMED):
        # git counts hooks from the working tree, and files to include from the file that names them.
        start = base if key.lower() == "hookspath" else git
        found.append(_real(os.path.join(start, os.path.expanduser(value.strip()))))
    return found


def _add_mode(directory: int, bits: int) -> None:
    """Add ``bits`` to the mode of a directory, whose descriptor may be one for its path alone. Raise OSError."""
    os.chmod(f"/proc/self/fd/{directory}", stat.S_IMODE(os.stat(directory).st_mode) | bits)


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
