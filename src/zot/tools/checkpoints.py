"""Checkpoints of file contents before a change, and their restoration."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from zot.errors import ToolFailed
from zot.store import UNKEPT, Wrote
from zot.text import has_half
from zot.tools.files import Place, read_at
from zot.tools.paths import Paths
from zot.tools.read_state import Seen, version_of

#: Larger contents are not kept.
MAX_KEPT_BYTES = 8 * 1024 * 1024


class Content(NamedTuple):
    """A content by its digest: None is no file, `UNKEPT` one that is too large, or cannot be read."""

    digest: str | None
    data: bytes = b""
    about: os.stat_result | None = None


NOTHING = Content(None)


def content_of(data: bytes) -> Content:
    """Return what is kept of a content."""
    if len(data) > MAX_KEPT_BYTES:
        return Content(UNKEPT)
    from hashlib import sha256  # Loaded with the first file, not at every start.

    return Content(sha256(data).hexdigest(), data)


def content_at(place: Place) -> Content:
    """Return what is in a file now. Raise ToolFailed if there is something else than a file."""
    if not place.exists():
        return NOTHING
    try:
        with place.open() as fd:
            about = os.fstat(fd)
            if about.st_size > MAX_KEPT_BYTES:
                return Content(UNKEPT, about=about)
            return content_of(read_at(fd, MAX_KEPT_BYTES + 1, 0))._replace(about=about)
    except ToolFailed as problem:
        if isinstance(problem.__cause__, PermissionError):  # who may not read a file may still replace it
            return Content(UNKEPT)
        raise


def wrote(path: str, cwd: str, before: Content, after: Content) -> Wrote:
    """Return the record of a change: ``path`` is where the file really is."""
    where = _from_directory(path, os.path.realpath(cwd))
    if has_half(where):  # a name that no text can say: it is known that the file changed, not what it was
        return Wrote(os.fsencode(where).decode("utf-8", "backslashreplace"), UNKEPT, UNKEPT)
    contents = {content.digest: content.data for content in (before, after) if content.digest}
    return Wrote(where, before.digest, after.digest, contents=contents)


def _from_directory(path: str, root: str) -> str:
    """Return ``path`` relative to ``root`` where it is below it, else as it is."""
    above = f"{root.rstrip('/')}/"
    return path[len(above) :] if path.startswith(above) else path


class Restorer:
    """Restores the files that ``paths`` leads to; what the model has ``seen`` of them is what is restored."""

    def __init__(self, paths: Paths, seen: Seen | None = None) -> None:
        self._paths = paths
        self._seen = Seen() if seen is None else seen

    def problem(self, root: str, path: str, *, found: Sequence[str | None], then: str | None) -> str | None:
        """Return why a file, which must be one of ``found``, cannot become ``then``; None if it can.

        One that is ``then`` already can: there is nothing to overwrite.
        """
        try:
            digest = self._look(os.path.join(root, path)).digest
        except ToolFailed as problem:
            return str(problem)
        if UNKEPT in (digest, *found, then):
            return "its content was not kept"
        return None if digest in (*found, then) else "somebody else changed it"

    def restore(
        self, root: str, path: str, data: bytes | None, *, found: Sequence[str | None], then: str | None, mode: int
    ) -> tuple[str | None, int] | None:
        """Make ``data``, whose digest is ``then``, the content of a file that is one of ``found``; None removes it.

        Return the digest and the permissions of what was there; None if it was so already. Raise ToolFailed, and then
        the file is as it was.
        """
        where = os.path.join(root, path)
        there = self._look(where)
        if there.digest == then:
            return None
        # Only a file that is to be made may need directories.
        with self._paths.find(where, "/", make_parents=there.digest is None) as place:
            there = content_at(place)
            if there.digest not in found:
                raise ToolFailed("somebody else changed it")
            self._put(place, data, there, mode)
        return there.digest, mode if there.about is None else stat.S_IMODE(there.about.st_mode)

    def _look(self, path: str) -> Content:
        """Return what is at ``path``. Raise ToolFailed if it is no file, or somewhere else than it was."""
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

    def _put(self, place: Place, data: bytes | None, found: Content, mode: int) -> None:
        if data is None:
            assert found.about is not None
            place.remove(expected=found.about)
            self._seen.forget(place.keys)
        else:
            replaced = place.replace(data, expected=found.about, mode=mode)
            self._seen.note(place.keys, version_of(data, replaced.about))
