"""What is written for many sessions at a time, in few statements: each lets go of the interpreter, and may wait for it
afterwards. Each function takes a connection and is called in its thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from zot.journal.chunks import Chunk
from zot.journal.summary import Summary

Values: TypeAlias = tuple[Any, ...]

#: So many rows are written by one statement, as long as there are so many: few sizes, so that few are prepared.
_AT_ONCE = (64, 8, 1)
_INSERT = "INSERT INTO chunks (session, kind, first, count, run, crc, body) VALUES {}"
_SUM_UP = """
WITH more (number, messages, words, totals, cwd, mark) AS (VALUES {})
UPDATE sessions SET updated = max(updated, ?), (messages, title, totals, cwd, owner) = (
    SELECT sessions.messages + more.messages, CASE title WHEN '' THEN words ELSE title END,
        coalesce(more.totals, sessions.totals), coalesce(more.cwd, sessions.cwd),
        CASE owner WHEN mark THEN x'' ELSE owner END
    FROM more WHERE more.number = sessions.number
) WHERE number IN (SELECT number FROM more)"""


def insert_chunks(connection: sqlite3.Connection, chunks: Iterable[Chunk]) -> None:
    """Write chunks; one is a transaction by itself, if there is no other."""
    rows = [(chunk.session, chunk.kind, chunk.first, chunk.count, chunk.run, chunk.crc, chunk.body) for chunk in chunks]
    _write(connection, _INSERT, rows)


def summed_up(connection: sqlite3.Connection, summaries: Mapping[int, Summary], now: str) -> None:
    """Change what is known of sessions, by number. A title is never overwritten, nor any mark of an owner but that of
    who has left."""
    _write(connection, _SUM_UP, [(number, *summary.values()) for number, summary in summaries.items()], now)


def _write(connection: sqlite3.Connection, query: str, rows: Sequence[Values], *behind: Any) -> None:
    """Do ``query``, which takes a list of rows and the values ``behind`` them, for all ``rows``."""
    for some in _pieces(rows):
        places = ", ".join([f"({', '.join('?' * len(some[0]))})"] * len(some))
        connection.execute(query.format(places), [*(value for row in some for value in row), *behind])


def _pieces(rows: Sequence[Values]) -> Iterator[Sequence[Values]]:
    at = 0
    for count in _AT_ONCE:
        while len(rows) - at >= count:
            yield rows[at : at + count]
            at += count
