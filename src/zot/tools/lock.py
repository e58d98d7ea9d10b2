"""Paths that stay inside one directory, whatever links, dots and races are tried on the way."""

from __future__ import annotations

import os
from contextlib import suppress

from zot.errors import ToolFailed
from zot.tools.files import Place, failure
from zot.tools.paths import MAX_LINKS, OPEN_DIRECTORY, checked, link_target, too_many_links

_OPEN_BENEATH = OPEN_DIRECTORY | os.O_NOFOLLOW


class Lock:
    """Follows paths only to places in ``root`` and below.

    Goes from directory to directory by descriptor and lets the kernel follow no link: links are read and followed
    here, beneath the root. A link that is put in the way meanwhile is therefore not followed, either.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self._spellings = {self.root, os.path.abspath(root)}

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> Place:
        """Return where ``path`` leads, as `Paths.find` promises. Raise ToolFailed if that is outside."""
        names = self._beneath(os.path.join(cwd, checked(path)), path)
        try:
            walk = _Walk(os.open(self.root, _OPEN_BENEATH), make_parents=make_parents)
        except OSError as exc:
            raise failure("open", self.root, exc) from exc
        try:
            return Place(*self._follow(walk, names, path), path)
        except OSError as exc:
            raise failure("write" if make_parents else "read", path, exc) from exc
        finally:
            walk.close()

    def _follow(self, walk: _Walk, names: list[str], shown: str) -> tuple[int, str]:
        """Walk along ``names``; return a descriptor of the last directory and the name that is left."""
        left, links = names[::-1], 0
        while left:
            name = left.pop()
            if name == "..":
                if not walk.up():
                    raise self._outside(shown)
                continue
            target = link_target(name, walk.here)
            if target is None:
                if not left:
                    return walk.take(), name
                walk.down(name)
                continue
            links += 1
            if links > MAX_LINKS:
                raise too_many_links()
            if target.startswith("/"):
                walk.to_root()
                left += self._beneath(target, shown)[::-1]
            else:
                left += _names(target)[::-1]
        return walk.take(), "."

    def _beneath(self, path: str, shown: str) -> list[str]:
        """Return the names that lead from the root to an absolute path. Raise ToolFailed if it is outside."""
        for root in self._spellings:
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                return _names(path[len(root) :])
        raise self._outside(shown)

    def _outside(self, shown: str) -> ToolFailed:
        return ToolFailed(
            f"{shown} is outside of {self.root}; the tools are locked to this directory and what is below it"
        )


class _Walk:
    """The way from a root to where we are: one open descriptor a step, so that going up follows nothing."""

    def __init__(self, root: int, *, make_parents: bool) -> None:
        self._way = [root]
        self._make_parents = make_parents

    @property
    def here(self) -> int:
        return self._way[-1]

    def down(self, name: str) -> None:
        try:
            self._way.append(os.open(name, _OPEN_BENEATH, dir_fd=self.here))
        except FileNotFoundError:
            if not self._make_parents:
                raise
            with suppress(FileExistsError):  # somebody was faster
                os.mkdir(name, dir_fd=self.here)
            self._way.append(os.open(name, _OPEN_BENEATH, dir_fd=self.here))

    def up(self) -> bool:
        """Go up; False at the root."""
        if len(self._way) == 1:
            return False
        os.close(self._way.pop())
        return True

    def to_root(self) -> None:
        while self.up():
            pass

    def take(self) -> int:
        """Return the descriptor of where we are; whoever takes it closes it."""
        return self._way.pop()

    def close(self) -> None:
        while self._way:
            os.close(self._way.pop())


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
