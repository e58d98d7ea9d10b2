"""Is everything there, and as it was written?"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from zot.errors import JournalDamaged, StoreFailed
from zot.journal.chunks import referred, unpack, verified
from zot.journal.database import STEPS, connect_to_look, is_damage, is_of_later
from zot.journal.lease import read_marks
from zot.journal.tables import CHUNK, SessionRecord, listed, losses


class Report(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong with it, in words; nothing if all is well.

    ``repaired`` tells what was lost once, and when the rest of it was saved: nothing is wrong with that any more.
    ``damaged`` is true if the contents are not what was written, which opening the file may not notice.
    """

    sessions: int
    rows: int
    problems: tuple[str, ...]
    repaired: tuple[str, ...] = ()
    damaged: bool = False


class _Findings:
    def __init__(self) -> None:
        self.rows = 0
        self.problems: list[str] = []
        self.repaired: list[str] = []
        #: What is missing at the end of sessions: no repair brings it back.
        self.ends: list[str] = []

    def missing(self, session: SessionRecord, what: str, *, repaired: str | None) -> None:
        if repaired is None:
            self.problems.append(f"session {session.id!r}: {what} missing")
        else:
            self.repaired.append(f"session {session.id!r}: {what} missing since the repair of {repaired}")


def look_at(path: str) -> Report:
    """Look at a journal without opening it for anything else: one that is damaged stays as it is.

    Raise FileNotFoundError.
    """
    os.stat(path)
    marks = read_marks(f"{path}.lock")  # before the rows: whoever writes them marks them afterwards
    try:
        connection = connect_to_look(path)
    except sqlite3.Error as problem:
        return Report(0, 0, (f"the file: {problem}",))
    try:
        connection.execute("BEGIN")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if is_of_later(connection):
            return Report(0, 0, (f"the file: a later zot wrote it (its version is {version}): update zot",))
        if version > len(STEPS):
            return Report(0, 0, ("the file: its version is lost",))
        if not version and any(marks[1:]):
            return Report(0, 0, ("the file: it is empty, although sessions were kept in it",))
        return inspect(connection, marks) if version else Report(0, 0, ())
    except sqlite3.Error as problem:
        return Report(0, 0, (f"the file: {problem}",))
    finally:
        connection.close()


def inspect(connection: sqlite3.Connection, marks: Sequence[int] = ()) -> Report:
    """Look at every page, chunk and blob. ``marks`` say up to which row each session was once safe."""
    found, unreadable = _Findings(), False
    sessions: list[SessionRecord] = []
    try:
        verdicts = [row[0] for row in connection.execute("PRAGMA integrity_check(20)")]
        found.problems += [f"the file: {verdict}" for verdict in verdicts if verdict != "ok"]
        dangling = connection.execute("PRAGMA foreign_key_check")
        found.problems += [f"the file: {row[0]} refers to nothing" for row in dangling]
        sessions += listed(connection)
        for session in sessions:
            last = _session(connection, session, found)
            if session.number < len(marks) and marks[session.number] > last:
                found.ends.append(f"session {session.id!r}: rows {last + 1} to {marks[session.number]} are missing")
        found.problems += _blobs(connection)
    except (sqlite3.Error, JournalDamaged) as problem:
        # An error of the disk is no damage: what cannot be read now may be there.
        unreadable = isinstance(problem, sqlite3.Error) and not is_damage(problem)
        found.problems.append(f"the file: {problem}")
    damaged = bool(found.problems) and not unreadable
    problems = (*found.problems, *found.ends)
    return Report(len(sessions), found.rows, problems, tuple(found.repaired), damaged)


def _session(connection: sqlite3.Connection, session: SessionRecord, found: _Findings) -> int:
    """Look at a session; return the number of its last row that can be read."""
    expected, known = 1, losses(connection, session.number)
    for row in connection.execute(f"SELECT {CHUNK} FROM chunks WHERE session = ? ORDER BY first", (session.number,)):
        try:
            chunk = verified(row)
            rows = unpack(chunk)
        except StoreFailed as problem:
            found.problems.append(f"session {session.id!r}: {problem}")
            continue
        if chunk.first > expected:
            repaired = known.get(("rows", expected, chunk.first - 1))
            found.missing(session, f"rows {expected} to {chunk.first - 1} are", repaired=repaired)
        elif chunk.first < expected:
            found.problems.append(f"session {session.id!r}: row {chunk.first} is there twice")
        expected = max(expected, chunk.first + chunk.count)
        found.rows += len(rows)
        for digest in {digest for row in rows for digest in referred(row)}:
            query = "SELECT 1 FROM uses JOIN blobs USING (hash) WHERE session = ? AND hash = ?"
            if connection.execute(query, (session.number, digest)).fetchone() is None:
                repaired = known.get(("files", chunk.first, chunk.first + chunk.count - 1))
                found.missing(session, f"an image or file near row {chunk.first} is", repaired=repaired)
    return expected - 1


def _blobs(connection: sqlite3.Connection) -> Iterator[str]:
    for digest, data in connection.execute("SELECT hash, data FROM blobs"):
        if hashlib.sha256(data).digest() != digest:
            yield f"the image or file {digest.hex()[:12]} is not what was stored"
