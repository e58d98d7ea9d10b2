"""The pool of a session: which workers run its prompts, and recover it."""

from __future__ import annotations

from zot.journal.connection import Connection
from zot.journal.queries import columns, record_of


def place(connection: Connection, session: int, pool: str) -> None:
    """Note the pool of a session."""
    connection.execute("UPDATE sessions SET pool = ? WHERE number = ? AND pool <> ?", (pool, session, pool))


def abandoned(connection: Connection, pool: str) -> list[str]:
    """Return the sessions of a pool, and those without one, whose run has no end and no living process."""
    query = f"SELECT {columns(connection)} FROM sessions WHERE owner <> ? AND pool IN ('', ?) ORDER BY number"
    found = map(record_of, connection.execute(query, (b"", pool)).fetchall())
    return [session.id for session in found if not session.is_leased]
