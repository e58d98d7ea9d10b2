"""Moving what is readable from a damaged file to a fresh one.

A chunk that cannot be read costs itself. Sessions keep their numbers and rows theirs; a hole stays a hole, and every
session gets a new epoch, for nobody knows what stood behind the newest row that is left.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Set

import msgspec

from zot.errors import JournalDamaged, StoreFailed
from zot.journal.chunks import Chunk, referred, unpack, verified
from zot.journal.pages import Found
from zot.journal.queries import ACKNOWLEDGED, TAIL, SessionRecord, lose, put, record_of, used
from zot.journal.statements import summed_up
from zot.journal.summary import Summary, key_of
from zot.store import Row


class Wreck(msgspec.Struct):
    """What was found in a damaged file and is what was written, or at least could be."""

    sessions: dict[int, SessionRecord] = {}
    chunks: dict[tuple[int, int, int], Chunk] = {}
    losses: dict[tuple[int, str, int, int], str] = {}
    blobs: dict[bytes, bytes] = {}

    def take(self, found: Found) -> None:
        """Keep a row if it is one of ours."""
        match found:
            case 0, [session, kind, first, count, run, crc, body]:
                try:
                    chunk = verified([session, kind, first, count, run, body, crc])
                except JournalDamaged:
                    return  # the hole is reported when all is there
                self.chunks[session, kind, first] = chunk
            case 0, [int(session), str(what), int(first), int(last), str(repaired)]:
                self.losses[session, what, first, last] = repaired
            case _, [bytes(digest), bytes(data)] if hashlib.sha256(data).digest() == digest:
                self.blobs[digest] = data
            case number, [None, bytes(), *rest] if len(rest) == 10:
                try:
                    self.sessions[number] = record_of((number, *found[1][1:]))
                except JournalDamaged:
                    return  # its rows are there without it
            case _:
                return


def rescue(found: Iterable[Found], new: sqlite3.Connection, *, now: str) -> list[str]:
    """Write what was found into a fresh file; return what was lost, in words, and was not lost before."""
    wreck = Wreck()
    for row in found:
        wreck.take(row)
    lost: list[str] = []
    new.executemany("INSERT INTO blobs (hash, data) VALUES (?, ?)", wreck.blobs.items())
    for number in sorted({*wreck.sessions, *(session for session, _, _ in wreck.chunks)}):
        lost += _write_session(new, wreck, number, now)
    return lost


def _write_session(new: sqlite3.Connection, wreck: Wreck, number: int, now: str) -> list[str]:
    session = wreck.sessions.get(number)
    lost = []
    if session is None:
        session = SessionRecord(number, f"recovered-{number}", "", "", "", "", None, 0)
        lost.append(f"session {session.id!r}: what it was called was lost")
    _put_session(new, session)
    summary, losses = Summary(), _Losses(wreck, number)
    expected = 1
    for chunk in sorted((c for c in wreck.chunks.values() if c.session == number), key=lambda chunk: chunk.first):
        if chunk.first < expected:  # kept, it would be found damaged again and again
            lost.append(f"session {session.id!r}: row {chunk.first} was there twice; the old file has both")
            continue
        put(new, chunk)
        rows = _rows(chunk)
        summary.add(rows)
        own = {digest for row in rows for digest in referred(row)}
        used(new, number, chunk.first, own)
        if chunk.first > expected:
            losses.add("rows", expected, chunk.first - 1)
        if gone := own - wreck.blobs.keys():
            losses.add("files", chunk.first, chunk.first + chunk.count - 1, gone)
        expected = chunk.first + chunk.count
    summed_up(new, {number: summary}, session.updated)
    for place, repaired in losses.all.items():
        lose(new, number, place, repaired or now)
    for (of, what, first, last), noticed in wreck.losses.items():
        if of == number and what in (TAIL, ACKNOWLEDGED):
            lose(new, number, (what, first, last), noticed)
    return [*lost, *losses.told(session)]


class _Losses:
    """What of a session is not there, and when that was met: "" for what is met now."""

    def __init__(self, wreck: Wreck, number: int) -> None:
        self._wreck = wreck
        self._number = number
        self._files: set[bytes] = set()
        self.all: dict[tuple[str, int, int], str] = {}

    def add(self, what: str, first: int, last: int, files: Set[bytes] = frozenset()) -> None:
        repaired = self.all[what, first, last] = self._wreck.losses.get((self._number, what, first, last), "")
        self._files |= files if not repaired else set()

    def told(self, session: SessionRecord) -> Iterator[str]:
        holes = [place for place, repaired in self.all.items() if place[0] == "rows" and not repaired]
        if holes:
            places = (str(first) if first == last else f"{first}-{last}" for _, first, last in holes)
            yield f"session {session.id!r}: rows were lost: {', '.join(places)}"
        if self._files:
            yield f"session {session.id!r}: {len(self._files)} of its images and files were lost"


def _rows(chunk: Chunk) -> list[Row]:
    """Return the rows of a chunk; none if another zot wrote them in a way we do not know, which is no damage."""
    try:
        return unpack(chunk)
    except StoreFailed:
        return []


def _put_session(new: sqlite3.Connection, session: SessionRecord) -> None:
    query = (
        "INSERT INTO sessions (number, id, created, updated, cwd, title, parent, fork_seq, epoch) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    parent = None if session.parent is None else key_of(session.parent)
    values = (session.created, session.updated, key_of(session.cwd), session.title, parent, session.fork_seq)
    try:
        new.execute(query, (session.number, key_of(session.id), *values, session.epoch + 1))
    except sqlite3.IntegrityError:  # two sessions cannot have one name: one of them is not what it was
        new.execute(query, (session.number, key_of(f"recovered-{session.number}"), *values, session.epoch + 1))
