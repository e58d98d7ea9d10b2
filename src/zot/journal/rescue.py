"""Moving what is readable from a damaged file to a fresh one.

A chunk that cannot be read costs itself. Sessions keep their numbers and rows theirs; a hole stays a hole, and every
session gets a new epoch, for nobody knows what stood behind the newest row that is left.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from zot.errors import JournalDamaged
from zot.journal.chunks import Chunk, Kind, images, unpack
from zot.journal.summary import Summary
from zot.journal.tables import SessionRecord, key_of, numbered, put, summed_up, used
from zot.store import Row

#: No key is beyond this.
_FAR = 1 << 48


def rescue(old: sqlite3.Connection, new: sqlite3.Connection) -> list[str]:
    """Move what is readable; return what was lost, in words."""
    lost: list[str] = []
    for number in _numbers(old):
        lost += _move_session(old, new, number)
    _move_blobs(old, new)
    query = (
        "SELECT sessions.id, COUNT(*) FROM uses JOIN sessions ON number = session "
        "WHERE hash NOT IN (SELECT hash FROM blobs) GROUP BY number"
    )
    for key, count in new.execute(query):
        lost.append(f"session {key.decode('utf-8', 'surrogatepass')!r}: {count} of its images were lost")
    return lost


def _numbers(old: sqlite3.Connection) -> list[int]:
    """Return the numbers of all sessions that left a trace."""
    queries = (
        "SELECT number FROM sessions WHERE number > ? ORDER BY number LIMIT 1",
        "SELECT session FROM chunks WHERE session > ? ORDER BY session LIMIT 1",
    )
    return sorted({row[0] for query in queries for row in _readable(old, query)})


def _move_session(old: sqlite3.Connection, new: sqlite3.Connection, number: int) -> list[str]:
    session = _session(old, number)
    name = session.id if session is not None else f"recovered-{number}"
    rows = list(_chunks(old, number))
    if session is None and not rows:
        return []  # a number that damage made up
    try:
        _put_session(new, number, session, name)
    except sqlite3.IntegrityError:  # two sessions cannot have one name: one of them is not what it was
        session, name = None, f"recovered-{number}"
        _put_session(new, number, None, name)
    summary = Summary()
    for chunk, own in sorted(rows, key=lambda pair: pair[0].first):
        put(new, chunk)
        summary.add(own)
        used(new, number, chunk.first, {digest for row in own for digest in images(row)})
    summed_up(new, number, summary.assignments(session.updated if session is not None else ""))
    lost = [f"session {name!r}: {hole}" for hole in _holes(new, number)]
    return lost if session is not None else [f"session {name!r}: what it was called was lost", *lost]


def _session(old: sqlite3.Connection, number: int) -> SessionRecord | None:
    try:
        return numbered(old, number)
    except (sqlite3.DatabaseError, msgspec.MsgspecError, UnicodeDecodeError, AttributeError, TypeError):
        return None  # the columns may hold anything


def _put_session(new: sqlite3.Connection, number: int, session: SessionRecord | None, name: str) -> None:
    kept = session or SessionRecord(number, name, "", "", "", "", None, 0)
    parent = None if kept.parent is None else key_of(kept.parent)
    new.execute(
        "INSERT INTO sessions (number, id, created, updated, cwd, title, parent, fork_seq, epoch) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, key_of(name), kept.created, kept.updated, key_of(kept.cwd), kept.title, parent, kept.fork_seq,
         kept.epoch + 1),
    )  # fmt: skip


def _chunks(old: sqlite3.Connection, number: int) -> Iterator[tuple[Chunk, list[Row]]]:
    """Yield the chunks of a session that are what was written, with their rows."""
    for kind in Kind:
        query = (
            "SELECT first, session, kind, first, count, run, body, crc FROM chunks "
            f"WHERE first > ? AND session = {number} AND kind = {kind.value} ORDER BY first LIMIT 1"
        )
        for _, *row, crc in _readable(old, query):
            try:
                chunk = Chunk(*row)
                yield chunk, unpack(chunk, crc)
            except (JournalDamaged, TypeError, OverflowError, msgspec.MsgspecError):
                continue  # the hole is reported when all is there


def _readable(old: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield what ``query`` finds above a growing key, the first column, over places that cannot be read."""
    at, leap = 0, 0
    while at < _FAR:
        row = _ask(old, query, at)
        if row == ():
            leap = max(1, 2 * leap)
            at += leap
        elif leap > 1:
            at, leap = _first_readable(old, query, at - leap, at), 0
        elif row is None:
            return
        else:
            leap = 0
            yield row
            at = row[0]


def _first_readable(old: sqlite3.Connection, query: str, low: int, high: int) -> int:
    """Return the smallest key that can be asked for, above ``low``, which cannot, and up to ``high``, which can."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _ask(old, query, middle) == () else (low, middle)
    return high


def _ask(old: sqlite3.Connection, query: str, above: int) -> tuple[Any, ...] | None:
    """Return the next row, None if there is none, () if that cannot be said."""
    try:
        row: tuple[Any, ...] | None = old.execute(query, (above,)).fetchone()
    except sqlite3.Error:
        return ()
    # A damaged page may hold any key; one that does not grow would keep us here for ever.
    return row if row is None or (isinstance(row[0], int) and row[0] > above) else ()


def _holes(new: sqlite3.Connection, number: int) -> list[str]:
    """Return the rows that are not there, in words."""
    expected, holes = 1, []
    for first, count in new.execute("SELECT first, count FROM chunks WHERE session = ? ORDER BY first", (number,)):
        if first > expected:
            holes.append(f"rows {expected} to {first - 1} were lost")
        expected = max(expected, first + count)
    return holes


def _move_blobs(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Move the images that are what their hash says."""
    for _, digest, data in _readable(old, "SELECT rowid, hash, data FROM blobs WHERE rowid > ? ORDER BY rowid LIMIT 1"):
        if isinstance(data, bytes) and hashlib.sha256(data).digest() == digest:
            new.execute("INSERT OR IGNORE INTO blobs (hash, data) VALUES (?, ?)", (digest, data))
