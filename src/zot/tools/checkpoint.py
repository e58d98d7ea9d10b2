"""What a file was and what became of it, so that it can be put back (`restore.py`)."""

from __future__ import annotations

import os
from typing import NamedTuple

from zot.errors import ToolFailed
from zot.store import UNKEPT, Wrote
from zot.surrogates import has_half
from zot.tools.files import Place, read_at

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
