"""The edit tool: exact replacements in one file, all of them or none.

Everything happens on bytes. What is outside the matches stays as it is, whatever encoding or line ends it has.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import msgspec

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.arguments import decode_args, to_utf8
from zot.tools.base import Output, ToolContext
from zot.tools.checkpoint import content_of, wrote
from zot.tools.diff import Change, Row, Skipped, apply, diff
from zot.tools.excerpt import Excerpt
from zot.tools.files import Place, read_at
from zot.tools.matches import FileText, Match
from zot.tools.paths_part import Anywhere, Paths
from zot.tools.read_state import Seen, version_of
from zot.tools.specs import EDIT
from zot.tools.text_encoding import BROKEN_UTF_8, LATIN_1, UTF_8, WINDOWS_1252, Encoding, detect

MAX_FILE_BYTES = 32 * 1024 * 1024
_MAX_LISTED = 10


class EditPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old_text: str = msgspec.field(name="oldText")
    new_text: str = msgspec.field(name="newText")


class EditArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    edits: tuple[EditPair, ...]


class Edit:
    """Changes parts of files for the model: those that ``paths`` leads to, unless ``seen`` knows another version."""

    spec = EDIT
    read_only = False

    def __init__(self, paths: Paths | None = None, seen: Seen | None = None) -> None:
        self._paths = Anywhere() if paths is None else paths
        self._seen = Seen() if seen is None else seen

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Make all edits and return a diff of them. Raise ToolFailed, and then the file is as it was."""
        wanted = decode_args(args, EditArgs)
        if not wanted.edits:
            raise ToolFailed("at least one edit is required")
        with self._paths.find(wanted.path, context.cwd) as place:
            data, about = _content(place, wanted.path)
            if self._seen.is_stale(place.keys, version_of(data, about)):
                raise ToolFailed(f"{wanted.path} has changed since you last saw it; read it again before you edit it")
            readings = _readings(data, detect(data) or UTF_8)
            changes = _in_order(await _all_placed(readings, wanted.edits))
            shown = (
                _shown(diff(readings[0].units, changes, readings[0].encoding))
                or "[that is what the file already had]\n"
            )
            await asyncio.sleep(0)
            new = apply(data, changes)
            if context.writing is not None:
                await context.writing(wrote(place.path, context.cwd, content_of(data), content_of(new)))
            # From here on nothing waits: an abort must not tell the model that nothing has changed.
            replaced = place.replace(new, expected=about)
            if place.keys in self._seen:
                self._seen.note(place.keys, version_of(new, replaced.about))
        return (TextBlock(shown + "".join(f"[{note}]\n" for note in replaced.notes)),)


def _shown(rows: Iterable[Row]) -> str:
    excerpt = Excerpt()
    for row in rows:
        excerpt.skip(*row) if isinstance(row, Skipped) else excerpt.feed(row)
    return excerpt.text()


class _Edit(NamedTuple):
    """One edit: where its text is, and what changes there."""

    match: Match
    change: Change


def _content(place: Place, shown: str) -> tuple[bytes, os.stat_result]:
    with place.open() as fd:
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            raise ToolFailed(f"cannot edit {shown}: it is a directory")
        if about.st_size > MAX_FILE_BYTES:
            raise ToolFailed(
                f"cannot edit {shown}: it has {about.st_size} bytes and the limit is {MAX_FILE_BYTES}; "
                "change it with bash, for example with sed"
            )
        return read_at(fd, about.st_size, 0), about


async def _all_placed(readings: Sequence[FileText], pairs: Sequence[EditPair]) -> list[_Edit]:
    """Find the places of all edits. Between them other work and an abort get their turn; a thread would not stop."""
    edits = []
    for number, pair in enumerate(pairs, 1):
        edits.append(_placed(readings, pair, f"edit {number}"))
        await asyncio.sleep(0)
    return edits


def _placed(readings: Sequence[FileText], pair: EditPair, label: str) -> _Edit:
    """Find the one place of an edit. Raise ToolFailed that says why there is none, or which there are."""
    old, new = pair.old_text, pair.new_text
    to_utf8(old, f"{label} oldText")
    to_utf8(new, f"{label} newText")
    if not old:
        raise ToolFailed(f"{label}: oldText must not be empty")
    if old == new:
        raise ToolFailed(f"{label}: oldText equals newText")
    for text in readings:
        found = _matches(text, old)
        if len(found) > 1:
            raise ToolFailed(
                f"{label}: oldText matches {_several(text, found)}; give more of the text around one of them"
            )
        if found:
            return _Edit(found[0], _change(text, found[0], pair, label))
    raise ToolFailed(f"{label}: oldText not found; {_nearly(readings[0], old)}")


def _readings(data: bytes, encoding: Encoding) -> list[FileText]:
    """Return the ways to read a file, the likeliest first.

    Of one that is not UTF-8 throughout, the part that the model has seen was taken for what it is by itself.
    """
    is_mixed = encoding in (BROKEN_UTF_8, LATIN_1, WINDOWS_1252)
    others = [one for one in (UTF_8, LATIN_1, WINDOWS_1252) if is_mixed and one.codec != encoding.codec]
    return [FileText(data, one) for one in (encoding, *others)]


def _matches(text: FileText, old: str) -> list[Match]:
    """Return where ``old`` is; at most one place more than we would list."""
    try:
        return list(islice(text.matches(old), _MAX_LISTED + 1))
    except UnicodeEncodeError:  # what the encoding cannot hold is not in the file
        return []


def _change(text: FileText, match: Match, pair: EditPair, label: str) -> Change:
    try:
        return text.change(match, pair.old_text, pair.new_text)
    except UnicodeEncodeError as exc:
        character = exc.object[exc.start]
        raise ToolFailed(
            f"{label}: newText has {character!r} (U+{ord(character):04X}), which cannot be written in "
            f"{text.encoding.name}, as the file seems to be"
        ) from exc


def _nearly(text: FileText, old: str) -> str:
    data, encoding = text.data, text.encoding
    try:
        encoding.encode(old)
    except UnicodeEncodeError as exc:
        character = exc.object[exc.start]
        return f"the file seems to be {encoding.name}, which has no {character!r} (U+{ord(character):04X})"
    from zot.tools.likeness import MAX_COMPARED_CHARACTERS, nearly  # Only a miss needs it.

    start = data[: MAX_COMPARED_CHARACTERS * encoding.unit].removeprefix(encoding.bom)
    return nearly(encoding.decode(start), old)


def _several(text: FileText, found: Sequence[Match]) -> str:
    lines = ", ".join(str(text.line_number(match.start)) for match in found[:_MAX_LISTED])
    if len(found) > _MAX_LISTED:
        return f"more than {_MAX_LISTED} times (lines {lines}, ...)"
    return f"{len(found)} times (lines {lines})"


def _in_order(edits: Sequence[_Edit]) -> list[Change]:
    """Return the changes by position. Raise ToolFailed if two texts share some bytes."""
    numbered = sorted(enumerate(edits, 1), key=lambda item: item[1].match)
    for (one, before), (two, after) in pairwise(numbered):
        if after.match.start < before.match.end:
            first, second = sorted((one, two))
            raise ToolFailed(f"edits {first} and {second} overlap; merge them into one edit")
    return [edit.change for _, edit in numbered]
