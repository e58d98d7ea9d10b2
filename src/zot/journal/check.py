"""Is everything there, and as it was written?"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from zot.errors import JournalDamaged, StoreFailed
from zot.journal.chunks import referred, unpack, verified
from zot.journal.database import STEPS
from zot.journal.tables import CHUNK, SessionRecord, listed


class Report(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong with it, in words; nothing if all is well."""

    sessions: int
    rows: int
    problems: tuple[str, ...]


class _Count:
    rows = 0


def look_at(path: str) -> Report:
    """Look at a journal without opening it for anything else: one that is damaged stays as it is.

    Raise FileNotFoundError.
    """
    os.stat(path)
    try:
        connection = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as problem:
        return Report(0, 0, (f"the file: {problem}",))
    try:
        connection.execute("BEGIN")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(STEPS):
            return Report(0, 0, (f"the file: a later zot wrote it (its version is {version}): update zot",))
        return inspect(connection) if version else Report(0, 0, ())
    except sqlite3.Error as problem:
        return Report(0, 0, (f"the file: {problem}",))
    finally:
        connection.close()


def inspect(connection: sqlite3.Connection) -> Report:
    """Look at every page, chunk and blob."""
    count = _Count()
    problems: list[str] = []
    sessions: list[SessionRecord] = []
    try:
        verdicts = [row[0] for row in connection.execute("PRAGMA integrity_check(20)")]
        problems += [f"the file: {verdict}" for verdict in verdicts if verdict != "ok"]
        problems += [f"the file: {row[0]} refers to nothing" for row in connection.execute("PRAGMA foreign_key_check")]
        sessions += listed(connection)
        for session in sessions:
            problems += _session(connection, session, count)
        problems += _blobs(connection)
    except (sqlite3.Error, JournalDamaged) as problem:
        problems.append(f"the file: {problem}")
    return Report(len(sessions), count.rows, tuple(problems))


def _session(connection: sqlite3.Connection, session: SessionRecord, count: _Count) -> Iterator[str]:
    expected = 1
    for row in connection.execute(f"SELECT {CHUNK} FROM chunks WHERE session = ? ORDER BY first", (session.number,)):
        try:
            chunk = verified(row)
            rows = unpack(chunk)
        except StoreFailed as problem:
            yield f"session {session.id!r}: {problem}"
            continue
        if chunk.first > expected:
            yield f"session {session.id!r}: rows {expected} to {chunk.first - 1} are missing"
        elif chunk.first < expected:
            yield f"session {session.id!r}: row {chunk.first} is there twice"
        expected = max(expected, chunk.first + chunk.count)
        count.rows += len(rows)
        for digest in {digest for row in rows for digest in referred(row)}:
            query = "SELECT 1 FROM uses JOIN blobs USING (hash) WHERE session = ? AND hash = ?"
            if connection.execute(query, (session.number, digest)).fetchone() is None:
                yield f"session {session.id!r}: an image or file near row {chunk.first} is missing"


def _blobs(connection: sqlite3.Connection) -> Iterator[str]:
    for digest, data in connection.execute("SELECT hash, data FROM blobs"):
        if hashlib.sha256(data).digest() != digest:
            yield f"the image or file {digest.hex()[:12]} is not what was stored"
