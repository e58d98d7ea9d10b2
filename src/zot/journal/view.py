"""What clients saw of a session: its events, from any number on."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from zot.events import AgentEvent, ApprovalRequest, ConversationReplaced
from zot.journal.chunks import Kind, unpack, verified
from zot.journal.tables import CHUNK, SessionRecord, get, last_seq, rows_after
from zot.store import Change, Configured, Spliced


def events_after(
    connection: sqlite3.Connection, session_id: str, after: int, limit: int
) -> list[tuple[int, AgentEvent]]:
    """Return up to ``limit`` events of a session above the row ``after``, with their numbers.

    Raise NoSuchSession, JournalDamaged.
    """
    rows = rows_after(connection, get(connection, session_id).number, after, limit, (Kind.EVENTS,))
    return [(seq, row) for seq, row in rows if not isinstance(row, Change)]


def clearings_after(connection: sqlite3.Connection, session_id: str, after: int) -> list[tuple[int, AgentEvent]]:
    """Return when a conversation was cleared above the row ``after``: those rows are no events, but are told as such.

    Raise NoSuchSession, JournalDamaged.
    """
    query = (
        f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? AND first + count > ?"
        """ AND instr(body, CAST('"spliced"' AS BLOB)) ORDER BY first"""
    )
    values = (get(connection, session_id).number, Kind.CHANGES, after + 1)
    return [
        (seq, ConversationReplaced(0))
        for chunk in map(verified, connection.execute(query, values))
        for seq, row in enumerate(unpack(chunk), chunk.first)
        if seq > after and isinstance(row, Spliced) and row.is_clearing
    ]


def run_so_far(connection: sqlite3.Connection, session_id: str, upto: int) -> Sequence[AgentEvent]:
    """Return the events, not behind row ``upto``, of the run that it belongs to.

    Raise NoSuchSession, JournalDamaged.
    """
    return [event for _, event in _numbered_run(connection, session_id, upto)]


def asked_at(connection: sqlite3.Connection, session_id: str, request_id: str) -> int:
    """Return the number of a question of the newest run; 0 if it is not on record.

    Raise NoSuchSession, JournalDamaged.
    """
    upto = last_seq(connection, get(connection, session_id).number)
    events = _numbered_run(connection, session_id, upto)
    return next((seq for seq, event in events if isinstance(event, ApprovalRequest) and event.id == request_id), 0)


def _numbered_run(connection: sqlite3.Connection, session_id: str, upto: int) -> list[tuple[int, AgentEvent]]:
    number = get(connection, session_id).number
    place = "FROM chunks WHERE session = ? AND kind = ?"
    query = f"SELECT run {place} AND first <= ? ORDER BY first DESC LIMIT 1"
    found = connection.execute(query, (number, Kind.EVENTS, upto)).fetchone()
    if found is None:
        return []
    (first,) = connection.execute(f"SELECT MIN(first) {place} AND run = ?", (number, Kind.EVENTS, *found)).fetchone()
    return [
        (seq, event) for seq, event in events_after(connection, session_id, first - 1, upto - first + 1) if seq <= upto
    ]


def agent_of(connection: sqlite3.Connection, record: SessionRecord) -> str:
    """Return the name of a session's agent, which it has from its beginning on. Raise JournalDamaged."""
    rows = rows_after(connection, record.number, 0, 2, (Kind.CHANGES,))
    return next((row.agent for _, row in rows if isinstance(row, Configured) and row.agent), "default")
