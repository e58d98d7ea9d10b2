"""How a path that the model wrote leads to a place: anywhere, or only within a lock (`lock.py`)."""

from __future__ import annotations

import errno
import os
from typing import Protocol

from zot.errors import ToolFailed
from zot.tools.files import Place, failure

#: As many as the kernel follows.
MAX_LINKS = 40
#: Enough to open what is inside, also of a directory whose names may not be read.
OPEN_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


class Paths(Protocol):
    """Who follows paths, and decides where they may lead."""

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> Place:
        """Return where ``path`` leads from ``cwd``, to the end of its symbolic links; there need not be anything yet.

        With ``make_parents`` missing directories are made on the way. The caller closes the place. Raise
        ToolFailed if it does not lead anywhere, or not to where it may.
        """


class Anywhere:
    """Follows paths as the system does, wherever they lead."""

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> Place:
        """Return where ``path`` leads, as `Paths.find` promises."""
        where = os.path.join(cwd, checked(path))
        if make_parents and where.startswith(os.path.join(cwd, "")) and not os.path.isdir(cwd):
            # Somebody has removed it: making it anew would hide that everything in it is gone.
            raise ToolFailed(f"cannot write {path}: the cwd {cwd} no longer exists")
        try:
            for _ in range(MAX_LINKS):
                head, name = os.path.split(where.rstrip("/") or "/")
                if name in ("", ".", ".."):
                    return Place(os.open(where, OPEN_DIRECTORY), ".", path, os.path.realpath(where))
                directory = _open_parent(head, make=make_parents)
                try:
                    target = link_target(name, directory)
                except OSError:
                    os.close(directory)
                    raise
                if target is None:
                    return Place(directory, name, path, os.path.join(os.path.realpath(head), name))
                os.close(directory)
                where = os.path.join(head, target)
            raise too_many_links()
        except OSError as exc:
            raise failure("write" if make_parents else "read", path, exc) from exc


def checked(path: str) -> str:
    """Return ``path``. Raise ToolFailed if no file can have that name."""
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
    """Return where a symbolic link points; None if there is none of that name. Raise OSError."""
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno == errno.EINVAL:  # it is something else
            return None
        raise


def too_many_links() -> OSError:
    """Return what the kernel says of links that lead in a circle."""
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
