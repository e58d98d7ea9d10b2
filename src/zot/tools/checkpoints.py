"""Checkpoints of file contents before a change, and their restoration."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from zot.errors import ToolFailed
from zot.files import sha256
from zot.store import NOT_KEPT, FileChanged
from zot.text import has_surrogate
from zot.tools.base import ReadState, version_of
from zot.tools.file_access import FileLocation, Paths, read_at

#: Larger contents are not kept.
MAX_KEPT_BYTES = 8 * 1024 * 1024


class FileContent(NamedTuple):
    """Content of a file with its digest: None for no file, `UNKEPT` for one too large or unreadable."""

    digest: str | None
    data: bytes = b""
    about: os.stat_result | None = None


NOTHING = FileContent(None)


def content_of(data: bytes) -> FileContent:
    """Return a content with its digest, or `UNKEPT`."""
    if len(data) > MAX_KEPT_BYTES:
        return FileContent(NOT_KEPT)

    return FileContent(sha256(data).hexdigest(), data)


def content_at(place: FileLocation) -> FileContent:
    """Return the current content of a file. Raise ToolFailed if it is not a regular file."""
    if not place.exists():
        return NOTHING
    try:
        with place.open() as fd:
            about = os.fstat(fd)
            if about.st_size > MAX_KEPT_BYTES:
                return FileContent(NOT_KEPT, about=about)
            return content_of(read_at(fd, MAX_KEPT_BYTES + 1, 0))._replace(about=about)
    except ToolFailed as problem:
        if isinstance(problem.__cause__, PermissionError):  # an unreadable file may still be replaced
            return FileContent(NOT_KEPT)
        raise


def wrote(path: str, cwd: str, before: FileContent, after: FileContent) -> FileChanged:
    """Return the record of a change; ``path`` is the file's real path."""
    where = _from_directory(path, os.path.realpath(cwd))
    if has_surrogate(where):  # not a valid text: record that the file changed, not its contents
        return FileChanged(os.fsencode(where).decode("utf-8", "backslashreplace"), NOT_KEPT, NOT_KEPT)
    contents = {content.digest: content.data for content in (before, after) if content.digest}
    return FileChanged(where, before.digest, after.digest, contents=contents)


def _from_directory(path: str, root: str) -> str:
    """Return ``path`` relative to ``root`` if it is below it, else unchanged."""
    above = f"{root.rstrip('/')}/"
    return path[len(above) :] if path.startswith(above) else path


class Restorer:
    """Restores files within ``paths``, and updates the read state ``seen`` for them."""

    def __init__(self, paths: Paths, seen: ReadState | None = None) -> None:
        self._paths = paths
        self._seen = ReadState() if seen is None else seen

    def problem(self, root: str, path: str, *, found: Sequence[str | None], then: str | None) -> str | None:
        """Return why a file cannot be restored to the digest ``then``; None if it can.

        Its current digest must be one of ``found``, or ``then`` already.
        """
        try:
            digest = self._look(os.path.join(root, path)).digest
        except ToolFailed as problem:
            return str(problem)
        if NOT_KEPT in (digest, *found, then):
            return "its content was not kept"
        return None if digest in (*found, then) else "another program changed it"

    def restore(
        self, root: str, path: str, data: bytes | None, *, found: Sequence[str | None], then: str | None, mode: int
    ) -> tuple[str | None, int] | None:
        """Write ``data`` with the digest ``then`` to a file whose digest is one of ``found``; None removes the file.

        Return the digest and the permissions of the replaced file; None if nothing had to change. Raise ToolFailed,
        leaving the file unchanged.
        """
        where = os.path.join(root, path)
        there = self._look(where)
        if there.digest == then:
            return None
        # Only a new file may need directories.
        with self._paths.find(where, "/", make_parents=there.digest is None) as place:
            there = content_at(place)
            if there.digest not in found:
                raise ToolFailed("another program changed it")
            self._put(place, data, there, mode)
        return there.digest, mode if there.about is None else stat.S_IMODE(there.about.st_mode)

    def _look(self, path: str) -> FileContent:
        """Return the content at ``path``. Raise ToolFailed if it is not a file, or has moved through a link."""
        if os.path.realpath(path) != path:
            raise ToolFailed("a link leads elsewhere now")
        try:
            with self._paths.find(path, "/") as place:
                found = content_at(place)
                if found.digest is not None:
                    place.check_writable()
                return found
        except ToolFailed as problem:
            if isinstance(problem.__cause__, FileNotFoundError):
                return NOTHING
            raise

    def _put(self, place: FileLocation, data: bytes | None, found: FileContent, mode: int) -> None:
        if data is None:
            assert found.about is not None
            place.remove(expected=found.about)
            self._seen.forget(place.keys)
        else:
            replaced = place.replace(data, expected=found.about, mode=mode)
            self._seen.note(place.keys, version_of(data, replaced.about))
