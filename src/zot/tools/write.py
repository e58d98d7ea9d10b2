"""The write tool: a whole file, new or replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import Output, ReadState, ToolContext, decode_args, to_utf8, version, version_of
from zot.tools.checkpoints import content_at, content_of, wrote
from zot.tools.file_access import FileLocation, Paths, UnrestrictedPaths, read_at
from zot.tools.specs import WRITE
from zot.tools.text_encoding import PROBE_BYTES, UTF_8, detect

if TYPE_CHECKING:
    from zot.tools.documents import OpenDocuments


class WriteArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    content: str


class Write:
    """Writes whole files within ``paths`` for the model. Refuses a file that changed since it was ``seen``."""

    spec = WRITE
    read_only = False

    def __init__(
        self, paths: Paths | None = None, seen: ReadState | None = None, documents: OpenDocuments | None = None
    ) -> None:
        self._paths = UnrestrictedPaths() if paths is None else paths
        self._seen = ReadState() if seen is None else seen
        self._documents = documents

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Write the file and report its size. Raise ToolFailed, leaving the file unchanged."""
        wanted = decode_args(args, WriteArgs)
        data = to_utf8(wanted.content, "content")
        if wanted.path.rstrip("/") not in ("", wanted.path):
            raise ToolFailed(f"cannot write {wanted.path}: that names a directory")
        with self._paths.find(wanted.path, context.cwd, make_parents=True) as found:
            place = found if self._documents is None else await self._documents.locate(found, context.reporter)
            known, changed = await self._look(place, wanted.path, data) if place.exists() else (None, [])
            if context.reporter.keeps_changes:
                before = content_at(place)
                await context.reporter.writing(wrote(place.path, context.cwd, before, content_of(data)))
                known = known or before.about
                if before.digest is None and place.exists():
                    raise ToolFailed(f"{wanted.path} was created by another program at the same time; read it first")
            replaced = await place.save(data, expected=known)
            self._seen.note(place.keys, version_of(data, replaced.about))
        lines = data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
        summary = (
            f"{'created' if replaced.created else 'replaced'} {wanted.path}: "
            f"{len(data)} bytes, {lines} line{'' if lines == 1 else 's'}"
        )
        return (TextBlock("".join([summary, *(f"\n[{note}]" for note in [*changed, *replaced.notes])])),)

    async def _look(self, place: FileLocation, shown: str, data: bytes) -> tuple[os.stat_result | None, list[str]]:
        """Return the status of a file that the model has seen, and notes on changes of encoding or line ends.

        Raise ToolFailed if the model has not seen its current version.
        """
        if place.keys not in self._seen:
            return None, []
        with place.open() as fd:
            about = os.fstat(fd)
            if self._seen.is_stale(place.keys, await version(fd)):
                raise ToolFailed(f"{shown} has changed since you last saw it; read it again before you replace it")
            return about, _changed_form(read_at(fd, PROBE_BYTES, 0), data)


def _changed_form(old: bytes, new: bytes) -> list[str]:
    """Return notes on the encoding and line ends of ``old``, the beginning of the file, that ``new`` does not keep."""
    encoding = detect(old, is_whole=len(old) < PROBE_BYTES)
    if encoding is None:
        return []
    notes = []
    if encoding is not UTF_8:
        notes.append(f"it was {encoding.name} and is now UTF-8")
    if encoding.encode("\r\n") in old and b"\n" in new and b"\r\n" not in new:
        notes.append("its lines ended in CRLF and now end in LF")
    return notes
