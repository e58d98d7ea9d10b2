"""Paths from the model: resolved, and under a lock confined to one directory against links and races."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from zot.errors import ToolFailed
from zot.tools.files import FileLocation, failure

#: The kernel's own limit.
MAX_LINKS = 40
#: Sufficient to open files inside, even of an unreadable directory.
OPEN_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_OPEN_BENEATH = OPEN_DIRECTORY | os.O_NOFOLLOW


class Paths(Protocol):
    """Resolver of paths, which decides where they may lead."""

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` from ``cwd`` through all symbolic links; the file need not exist.

        With ``make_parents``, creates missing directories on the way. The caller closes the place. Raise ToolFailed if
        the path cannot be resolved or leads to a forbidden place.
        """


class UnrestrictedPaths:
    """Resolves all paths as the system does."""

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` as `Paths.find` specifies."""
        where = os.path.join(cwd, checked(path))
        if make_parents and where.startswith(os.path.join(cwd, "")) and not os.path.isdir(cwd):
            # Creating a removed cwd again would hide that everything in it is gone.
            raise ToolFailed(f"cannot write {path}: the cwd {cwd} no longer exists")
        try:
            for _ in range(MAX_LINKS):
                head, name = os.path.split(where.rstrip("/") or "/")
                if name in ("", ".", ".."):
                    return FileLocation(os.open(where, OPEN_DIRECTORY), ".", path, os.path.realpath(where))
                directory = _open_parent(head, make=make_parents)
                try:
                    target = link_target(name, directory)
                except OSError:
                    os.close(directory)
                    raise
                if target is None:
                    return FileLocation(directory, name, path, os.path.join(os.path.realpath(head), name))
                os.close(directory)
                where = os.path.join(head, target)
            raise too_many_links()
        except OSError as exc:
            raise failure("write" if make_parents else "read", path, exc) from exc


def checked(path: str) -> str:
    """Return ``path``. Raise ToolFailed if it is not valid as a file name."""
    if not path:
        raise ToolFailed("path must not be empty")
    if "\0" in path:
        raise ToolFailed("path must not contain a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as exc:
        raise ToolFailed(f"path cannot be a file name: {exc.reason}") from exc
    return path


def link_target(name: str, directory: int) -> str | None:
    """Return the target of a symbolic link; None if there is no link of this name. Raise OSError."""
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno == errno.EINVAL:  # not a link
            return None
        raise


def too_many_links() -> OSError:
    """Return the kernel's error for circular links."""
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _open_parent(path: str, *, make: bool) -> int:
    try:
        return os.open(path, OPEN_DIRECTORY)
    except FileNotFoundError:
        if not make:
            raise
    real = os.path.realpath(path)  # of a dangling link, its target
    os.makedirs(real, exist_ok=True)
    return os.open(real, OPEN_DIRECTORY)


class LockedPaths:
    """Resolves paths in ``root`` and below only, except for ``hidden`` ones there.

    Walks from directory to directory by descriptor, and never lets the kernel follow a link: links are read and
    resolved here, beneath the root. So a link created during the walk is not followed either.
    """

    def __init__(self, root: str, *, hidden: Sequence[str] = (), protected: Sequence[str] | None = None) -> None:
        """With ``protected``, refuse the protected paths, these in addition to those that zot knows."""
        self.root = os.path.realpath(root)
        self._spellings = {self.root, os.path.abspath(root)}
        within = os.path.join(self.root, "")
        self._hidden = [path for path in map(os.path.realpath, hidden) if path.startswith(within)]
        self._protected = protected
        #: Where protected paths lead; found on first use.
        self._led: Sequence[str] | None = None

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` as `Paths.find` specifies. Raise ToolFailed if it leads outside."""
        names = self._beneath(os.path.join(cwd, checked(path)), path)
        try:
            walk = _Walk(os.open(self.root, _OPEN_BENEATH), self.root, make_parents=make_parents)
        except OSError as exc:
            raise failure("open", self.root, exc) from exc
        try:
            name = self._follow(walk, names, path)
            return FileLocation(walk.take(), name, path, os.path.join(walk.path, name))
        except OSError as exc:
            raise failure("write" if make_parents else "read", path, exc) from exc
        finally:
            walk.close()

    def holds(self, path: str) -> bool:
        """Return whether an absolute path begins with the root; it may still lead out."""
        return any(path == root or path.startswith(os.path.join(root, "")) for root in self._spellings)

    def _follow(self, walk: _Walk, names: list[str], shown: str) -> str:
        """Walk along ``names`` to the last directory; return the remaining name."""
        left, links = names[::-1], 0
        while left:
            name = left.pop()
            if name == "..":
                if not walk.up():
                    raise self._outside(shown)
            elif (target := link_target(name, walk.here)) is not None:
                self._check(os.path.join(walk.path, name), shown)
                links += 1
                if links > MAX_LINKS:
                    raise too_many_links()
                left += self._along(walk, target, shown)[::-1]
            elif walk.make_parents and ".." in left and not walk.has(name):
                left = _without_detours([name, *left[::-1]])[::-1]
            else:
                self._check(os.path.join(walk.path, name), shown)
                if not left:
                    return name
                walk.down(name)
        return "."

    def _along(self, walk: _Walk, target: str, shown: str) -> list[str]:
        """Return the names in a link's target, and move to the root if it is absolute."""
        if not target.startswith("/"):
            return _names(target)
        walk.to_root()
        return self._beneath(target, shown)

    def _beneath(self, path: str, shown: str) -> list[str]:
        """Return the names from the root to an absolute path. Raise ToolFailed if it is outside."""
        for root in self._spellings:
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                return _names(path[len(root) :])
        raise self._outside(shown)

    def _check(self, path: str, shown: str) -> None:
        """Raise ToolFailed for hidden paths. By name: they need not exist yet."""
        if path in self._hidden:
            raise ToolFailed(f"{shown} is in {path}, where zot keeps its own files; locked tools do not touch it")
        if self._protected is None:
            return
        from zot.config.protected_paths import protection_of  # Imported lazily: start-up budget.
        from zot.tools.protection import led_to

        if self._led is None:
            self._led = led_to(self.root, "", self._protected)
        if protection := protection_of(os.path.relpath(path, self.root), [*self._protected, *self._led]):
            raise ToolFailed(f"{shown} is protected: other programs run what is in {protection}; --lock refuses it")

    def _outside(self, shown: str) -> ToolFailed:
        return ToolFailed(
            f"{shown} is outside of {self.root}; the tools are locked to this directory and what is below it"
        )


class LockedPathsForReading:
    """Resolves paths as ``lock`` does, and also in ``more`` directories, each locked separately. For reading only."""

    def __init__(self, lock: LockedPaths, more: Sequence[str]) -> None:
        self._lock = lock
        self._more = [LockedPaths(directory) for directory in more]

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` as `Paths.find` specifies. Raise ToolFailed if it leads outside."""
        where = os.path.join(cwd, checked(path))
        lock = next((lock for lock in self._more if lock.holds(where)), self._lock)
        return lock.find(path, cwd, make_parents=make_parents)


class _Walk:
    """Path walked from a root: an open descriptor for each step, so that going up follows no link."""

    def __init__(self, root: int, path: str, *, make_parents: bool) -> None:
        self.make_parents = make_parents
        self._way = [root]
        self._names = [path]

    @property
    def path(self) -> str:
        return os.path.join(*self._names)

    @property
    def here(self) -> int:
        return self._way[-1]

    def down(self, name: str) -> None:
        try:
            self._way.append(os.open(name, _OPEN_BENEATH, dir_fd=self.here))
        except FileNotFoundError:
            if not self.make_parents:
                raise
            with suppress(FileExistsError):  # created by another process meanwhile
                os.mkdir(name, dir_fd=self.here)
            self._way.append(os.open(name, _OPEN_BENEATH, dir_fd=self.here))
        self._names.append(name)

    def has(self, name: str) -> bool:
        """Return whether an entry of this name exists here."""
        try:
            os.stat(name, dir_fd=self.here, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def up(self) -> bool:
        """Go up; False at the root."""
        if len(self._way) == 1:
            return False
        os.close(self._way.pop())
        self._names.pop()
        return True

    def to_root(self) -> None:
        while self.up():
            pass

    def take(self) -> int:
        """Return the current descriptor, which the caller closes."""
        return self._way.pop()

    def close(self) -> None:
        while self._way:
            os.close(self._way.pop())


def _without_detours(names: list[str]) -> list[str]:
    """Return the names without those cancelled by ``..``. The first does not exist, so none of them is a link."""
    kept: list[str] = []
    for at, name in enumerate(names):
        if name != "..":
            kept.append(name)
            continue
        kept.pop()
        if not kept:
            return names[at + 1 :]
    return kept


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
