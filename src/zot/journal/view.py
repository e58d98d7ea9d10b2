"""What clients saw of a session: its events, from any number on."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from zot.events import AgentEvent
from zot.journal.chunks import Kind
from zot.journal.tables import SessionRecord, get, rows_after
from zot.store import Change, Configured


def events_after(
    connection: sqlite3.Connection, session_id: str, after: int, limit: int
) -> list[tuple[int, AgentEvent]]:
    """Return up to ``limit`` events of a session above the row ``after``, with their numbers.

    Raise NoSuchSession, JournalDamaged.
    """
    rows = rows_after(connection, get(connection, session_id).number, after, limit, (Kind.EVENTS,))
    return [(seq, row) for seq, row in rows if not isinstance(row, Change)]


def run_so_far(connection: sqlite3.Connection, session_id: str, upto: int) -> Sequence[AgentEvent]:
    """Return the events, not behind row ``upto``, of the run that it belongs to.

    Raise NoSuchSession, JournalDamaged.
    """
    number = get(connection, session_id).number
    place = "FROM chunks WHERE session = ? AND kind = ?"
    query = f"SELECT run {place} AND first <= ? ORDER BY first DESC LIMIT 1"
    found = connection.execute(query, (number, Kind.EVENTS, upto)).fetchone()
    if found is None:
        return ()
    (first,) = connection.execute(f"SELECT MIN(first) {place} AND run = ?", (number, Kind.EVENTS, *found)).fetchone()
    return [event for seq, event in events_after(connection, session_id, first - 1, upto - first + 1) if seq <= upto]


def agent_of(connection: sqlite3.Connection, record: SessionRecord) -> str:
    """Return the name of a session's agent, which it has from its beginning on. Raise JournalDamaged."""
    rows = rows_after(connection, record.number, 0, 2, (Kind.CHANGES,))
    return next((row.agent for _, row in rows if isinstance(row, Configured) and row.agent), "default")
