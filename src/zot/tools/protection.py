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

from zot.config.protected_paths import IN_DIRECTORIES, IN_REPOSITORY, REPOSITORY, protected_paths
from zot.files import OPEN_DIRECTORY, read_content
from zot.tools.git_config import git_directory, named_paths, repository_of
from zot.tools.mounts import Places, is_in

#: Ending of the name that a file gets when it is moved away.
QUARANTINE = ".zot-quarantine"
_OPEN = OPEN_DIRECTORY | os.O_NOFOLLOW
#: Limits of directories to look into for repositories: once, and after every command.
_MAX_SURVEYED = 50_000
_MAX_SWEPT = 5_000
_MAX_REPOSITORIES = 100
_MAX_BELOW = 200
#: Limit of protected files whose further names are looked for.
_MAX_LINKED = 5_000
#: Directories of packages, which bring such files along and are removed and created as a whole. Their code runs anyway.
_PACKAGES = frozenset({"node_modules", "site-packages", ".venv", "venv", ".tox"})
#: The mode of a submodule in an index of git.
_SUBMODULE = (0o160000).to_bytes(4, "big")
#: What a bare repository runs or obeys, and the file without which it is none.
_IN_BARE = tuple(path.removeprefix(f"{REPOSITORY}/") for path in IN_REPOSITORY)
_BARE = "HEAD"
_MAKE_BARE = (_BARE, "objects", "refs", "commondir")
#: Commands that a person's next `git rebase --continue` runs.
_REBASE = "rebase-merge/git-rebase-todo"
_EXECUTES = re.compile(rb"^[ \t]*(?:x|exec)[ \t].*", re.M)
#: Clocks of file systems are coarser than others.
_TICK_S = 0.1

#: What was found at a path: how many of its names, and a link's target, "" if it is none. None: nothing.
Seen: TypeAlias = tuple[int, str] | None


class ProtectedFiles:
    """The protected paths in ``root`` and in the directories and repositories below; ``more`` are the user's.

    git goes from a repository into one below if its index calls that a submodule, and editors look for them. So the
    repositories that are there are protected as the one in ``root`` is, and new ones are moved away. Further names of a
    protected file, hard links, are protected, too: who writes there writes to the file.
    """

    def __init__(self, root: str, more: Sequence[str] = ()) -> None:
        self._root = os.path.realpath(root)
        named = (*protected_paths(more), *led_to(self._root, "", more))
        self._paths = [tuple(path.split("/")) for path in named]
        self._before: dict[tuple[str, ...], Seen] = {}
        #: Directories with a repository or another protected path, and its name in it; None before the survey.
        self._found: set[tuple[str, str]] | None = None
        self._linked: list[str] | None = None
        #: Commands in the to-do lists of rebases that began before, by path.
        self._rebases: dict[str, frozenset[bytes]] = {}
        self._surveyed_at = 0.0

    def survey(self) -> None:
        """Find repositories and protected paths below, once. May take a moment in a large tree."""
        if self._found is not None:
            return
        self._surveyed_at = time.time()
        repositories: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for place, mark in self._below(_MAX_SURVEYED):
            is_repository = mark in (REPOSITORY, _BARE)
            known = repositories if is_repository else others
            if len(known) < (_MAX_REPOSITORIES if is_repository else _MAX_BELOW):
                known.append((place, mark))
        self._found = {*repositories, *others}
        found: list[str] = []
        for place, mark in sorted(repositories):
            found += [f"{place}/{path}" for path in (_IN_BARE if mark == _BARE else (REPOSITORY, *IN_REPOSITORY))]
            found += led_to(self._root, place) if mark == REPOSITORY else ()
        for place, mark in sorted(others):
            found += [f"{place}/{mark}", *self._target(f"{place}/{mark}")]
        self._paths += [tuple(path.split("/")) for path in found]
        self._paths = [*dict.fromkeys(self._paths)]

    def _target(self, path: str) -> Iterator[str]:
        """Yield where a protected link leads, if that is in the directory."""
        full = os.path.join(self._root, path)
        if os.path.islink(full) and is_in(real := _real(full), [self._root]) and real != self._root:
            yield os.path.relpath(real, self._root)

    def mounts(self) -> Places:
        """Return read-only mounts of those that exist. Remembers the others for `sweep`."""
        for place in ("", *(place for place, mark in self._found or () if mark == REPOSITORY)):
            _make_hooks(os.path.join(self._root, place))
        self._before = self._look()
        self._rebases = self._rebase_commands()
        places: Places = {}
        for names, seen in self._before.items():
            place = os.path.join(self._root, *names)
            is_repository = names[-1] == REPOSITORY and os.path.isdir(place)
            if seen == (len(names), "") and not is_repository:
                places[place] = ("--ro-bind", place)
        if self._linked is None:  # Once: no process in the sandbox can link to a mounted file.
            self._linked = [*self._further_names([*places])]
        return {place: ("--ro-bind", place) for place in self._linked if os.path.lexists(place)} | places

    def _further_names(self, protected: Sequence[str]) -> Iterator[str]:
        """Yield the names in the directory that protected files have besides their own."""
        files = islice((about for place in protected for _, about in _files(place)), _MAX_LINKED)
        linked = {(about.st_dev, about.st_ino) for about in files if about.st_nlink > 1}
        if linked:
            for path, about in _files(self._root):
                if (about.st_dev, about.st_ino) in linked and not is_in(path, protected):
                    yield path

    def sweep(self) -> list[str]:
        """Move away the files, links and repositories that have appeared since `mounts`; return their paths."""
        if not self._before:
            return []
        found = [
            names[: seen[0]] for names, seen in self._look().items() if seen is not None and seen != self._before[names]
        ]
        found += [(*place.split("/"), mark) for place, mark in self._new_below()]
        planted = [todo for todo, now in self._rebase_commands().items() if now - self._rebases.get(todo, frozenset())]
        found += [tuple(todo.split("/")) for todo in planted]
        moved: list[str] = []
        for path in found:
            with suppress(OSError):  # moved already with another path, or not ours to move
                self._move(path)
                moved.append("/".join(path))
        return moved

    def _rebase_commands(self) -> dict[str, frozenset[bytes]]:
        """Return the commands that rebases in progress will run, by the path of the list they are in."""
        places = ["", *(place for place, mark in self._found or () if mark == REPOSITORY)]
        commands: dict[str, frozenset[bytes]] = {}
        for place in places:
            path = _real(os.path.join(git_directory(os.path.join(self._root, place)), _REBASE))
            with suppress(OSError):
                if is_in(path, [self._root]):
                    found = frozenset(_EXECUTES.findall(read_content(path)))
                    commands[os.path.relpath(path, self._root)] = found
        return commands

    def _new_below(self) -> Iterator[tuple[str, str]]:
        if self._found is None:
            return
        # The bytes of the mode of a submodule in an index of any version: then git goes there, however deep it is.
        limit = _MAX_SURVEYED if self._has_submodules() else _MAX_SWEPT
        for place, mark in self._below(limit):
            if (place, mark) in self._found:
                continue
            with suppress(OSError):
                # By the change time, which programs cannot set: a survey of a large tree may have missed it.
                if self._is_new(place, _MAKE_BARE if mark == _BARE else (mark,)):
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
        """Yield the protected names below the root, each with its directory: repositories, the file that makes a bare
        one, and others. The nearest come first."""
        for place, entries in self._directories(limit):
            if not place:
                continue
            names = {entry.name for entry in entries}
            yield from ((place, name) for name in sorted(names) if name == REPOSITORY or _is_protected(place, name))
            if _BARE in names and ("commondir" in names or {"objects", "refs"} <= names):
                yield place, _BARE

    def _directories(self, limit: int) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        """Yield the root and the directories below with their entries, the nearest first. Follows no links, and looks
        into no repository and no protected directory."""
        unseen, count = [""], 0
        for place in unseen:  # grows during the walk
            count += 1
            if count > limit:
                return
            try:
                with self._entries(place) as found:
                    entries = [*found]
                for entry in entries:
                    is_known = entry.name == REPOSITORY or _is_protected(place, entry.name)
                    if not is_known and entry.is_dir(follow_symlinks=False):
                        unseen.append(f"{place}/{entry.name}" if place else entry.name)
            except OSError:  # not ours to look into, or gone
                continue
            yield place, entries

    def _entries(self, place: str) -> os._ScandirIterator[str]:
        path = os.path.join(self._root, place) if place else self._root
        try:
            return os.scandir(path)
        except PermissionError:
            if self._found is None or not self._is_new(place, ("",)):
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

    Leading there are links, a file `.git`, and git's configuration: with directories of hooks, further files, and
    files in commands. A repository above the root counts for the root.
    """
    top = os.path.realpath(root)
    base = os.path.join(top, place) if place else top
    git = git_directory(base)
    named = [_real(os.path.join(git, path)) for path in _IN_BARE]
    named += [_real(os.path.join(base, path)) for path in protected_paths(more) if path != REPOSITORY and not place]
    named += map(_real, named_paths(base if place else repository_of(base)))
    usual = [os.path.join(top, place, path) for path in protected_paths(() if place else more) if path != REPOSITORY]
    found = [path for path in dict.fromkeys(named) if is_in(path, [top]) and path != top and not is_in(path, usual)]
    return [os.path.relpath(path, top) for path in found]


def _is_protected(place: str, name: str) -> bool:
    """True if ``name`` in the directory ``place`` is protected as it would be in the root."""
    path = IN_DIRECTORIES.get(name.casefold())
    if path is None or not f"/{place}/{name}".casefold().endswith(f"/{path}"):
        return False
    return _PACKAGES.isdisjoint(place.split("/"))


def _files(place: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a file, or all files in a directory, with its status. Follows no links."""
    with suppress(OSError):
        if not stat.S_ISDIR((about := os.lstat(place)).st_mode):
            yield place, about
    for directory, _, names in islice(os.walk(place), _MAX_SURVEYED):
        for path in (os.path.join(directory, name) for name in names):
            with suppress(OSError):
                yield path, os.lstat(path)


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


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
