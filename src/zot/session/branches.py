"""Two sessions that began as one: what each has said and written since. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zot.agent.transcript import Transcript
from zot.messages import Message
from zot.store import UNKEPT, Change, Wrote


class FilePair(msgspec.Struct, frozen=True):
    """A file as two sessions last knew it: digests as in `Wrote`."""

    path: str
    one: str | None
    other: str | None


class Branches(msgspec.Struct, frozen=True):
    """What two sessions share, and what only ``one`` or the ``other`` has: messages, and files that differ.

    ``seq`` is the number of the last row that they share.
    """

    seq: int
    shared: int
    one: Sequence[Message]
    other: Sequence[Message]
    files: Sequence[FilePair]


def compared(one: Sequence[tuple[int, Change]], other: Sequence[tuple[int, Change]]) -> Branches:
    """Compare two sessions by their rows: a fork has those of its origin, under the same numbers."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    mine, theirs = _transcript(one), _transcript(other)
    shared = 0
    while shared < min(len(mine), len(theirs)) and mine[shared] == theirs[shared]:
        shared += 1
    return Branches(one[same - 1][0] if same else 0, shared, mine[shared:], theirs[shared:], _files(one, other, same))


def _transcript(changes: Sequence[tuple[int, Change]]) -> Sequence[Message]:
    transcript = Transcript()
    for _, change in changes:
        transcript.apply(change)
    return transcript.messages


def _files(one: Sequence[tuple[int, Change]], other: Sequence[tuple[int, Change]], same: int) -> list[FilePair]:
    """Return the files that one of them has changed since, and that are not the same now."""
    mine, theirs = _last(one[same:]), _last(other[same:])
    # A session that left a file alone has it as the other found it.
    found = {**_first(other[same:]), **_first(one[same:])}
    pairs = (FilePair(path, mine.get(path, found[path]), theirs.get(path, found[path])) for path in sorted(found))
    # Of what was not kept nobody knows if it differs.
    return [pair for pair in pairs if pair.one != pair.other or pair.one == UNKEPT]


def _first(changes: Sequence[tuple[int, Change]]) -> dict[str, str | None]:
    """Return what each file was before the first of these changes."""
    return {change.path: change.before for _, change in reversed(changes) if isinstance(change, Wrote)}


def _last(changes: Sequence[tuple[int, Change]]) -> dict[str, str | None]:
    """Return what each file was after the last of these changes."""
    return {change.path: change.after for _, change in changes if isinstance(change, Wrote)}
