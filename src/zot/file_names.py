"""Names found by some of their letters, such as those of the files below a directory: for mentions in prompts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

from zot.text import escaped

_MAX_FILES = 20_000
_FRESH_S = 10.0
_SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}


def is_mentionable(path: str) -> bool:
    """True if an editor shows a path unescaped: no control characters or direction marks."""
    return "\n" not in path and "\t" not in path and escaped(path) == path


class FileNames:
    """The files below ``directory``, listed again when the list is no longer fresh. Blocks while it lists."""

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self._clock = clock
        self._known: list[str] = []
        self._until = float("-inf")

    def find(self, letters: str, limit: int) -> list[str]:
        """Return up to ``limit`` paths that contain ``letters`` in order, the best match first."""
        if self._clock() > self._until:
            self._known = [*self._walk()]
            self._until = self._clock() + _FRESH_S
        return best_matches(self._known, letters, limit)

    def _walk(self) -> Iterator[str]:
        count = 0
        for place, directories, files in os.walk(self.directory):
            directories[:] = sorted(name for name in directories if name not in _SKIPPED)
            inside = os.path.relpath(place, self.directory)
            for name in sorted(files):
                count += 1
                if count > _MAX_FILES:
                    return
                path = name if inside == "." else os.path.join(inside, name)
                if is_mentionable(path):
                    yield path


def best_matches(names: Iterable[str], letters: str, limit: int) -> list[str]:
    """Return up to ``limit`` of the ``names`` that contain ``letters`` in order, the best match first."""
    wanted = letters.lower()
    fits = [(_rank(one.lower(), wanted), len(one), one) for one in names if _fits(one.lower(), wanted)]
    return [name for _, _, name in sorted(fits)[:limit]]


def _fits(path: str, wanted: str) -> bool:
    letters = iter(path)
    return all(letter in letters for letter in wanted)


def _rank(path: str, wanted: str) -> int:
    name = os.path.basename(path)
    if name.startswith(wanted):
        return 0
    if path.startswith(wanted):
        return 1
    return 2 if wanted in path else 3
