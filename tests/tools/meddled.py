"""Files that another process changes at the worst moment."""

from __future__ import annotations

import os
from collections.abc import Callable

from zot.tools.file_access import FileLocation, Replaced


class Meddled:
    """Resolves paths, and changes files between our read and our write."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self._meddle = meddle

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        return MeddledPlace(os.open(cwd, os.O_RDONLY), path, self._meddle)


class MeddledPlace(FileLocation):
    def __init__(self, directory: int, name: str, meddle: Callable[[], object]) -> None:
        super().__init__(directory, name, name, name)
        self._meddle = meddle

    def replace(self, data: bytes, *, expected: os.stat_result | None = None, mode: int | None = None) -> Replaced:
        self._meddle()
        return super().replace(data, expected=expected, mode=mode)
