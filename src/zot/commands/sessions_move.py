"""`zot sessions move`: from one store to another, row by row, with the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zot.commands.subcommands import CommandRequest, find_session, print_note
from zot.errors import UsageError, UserError
from zot.journal.chunks import Chunk
from zot.journal.connection import Connection
from zot.journal.opening import open_journal
from zot.journal.queries import (
    SessionRecord,
    SessionSummary,
    chunks_after,
    create,
    find,
    key_of,
    mark_closed,
    put,
    update_summary,
)
from zot.journal.recorded_sessions import SessionJournal


class _Moved(msgspec.Struct, frozen=True):
    """A session with all that is stored of it."""

    session: SessionRecord
    chunks: Sequence[Chunk]
    blobs: Sequence[tuple[bytes, int, bytes]]
    answers: Sequence[tuple[object, ...]]
    closed: str | None


_ANSWER = "key, request, first_run, latest_run, began, answer, answered, delivered"


async def move(journal: SessionJournal, request: CommandRequest) -> int:
    """Move sessions to the store that --to names."""
    place: str | None = request.settings.get("to")
    if place is None:
        raise UsageError("zot sessions move needs --to URL")
    target = await open_journal(place)
    try:
        if target is journal:
            raise UserError("the sessions are there already")
        for name in request.words:
            session = await find_session(journal, name)
            await _move(journal, target, session, copies=bool(request.settings.get("copy")))
            print_note(f"{session.id} is in {target.path}")
    finally:
        await target.close()
    return 0


async def _move(journal: SessionJournal, target: SessionJournal, session: SessionRecord, *, copies: bool) -> None:
    """Move one session, while no process runs it. Raise SessionBusy, UserError if the target has one of this name."""
    record = await journal.record(session.id, create=False)
    await record.begin()
    try:
        await target.writing(_put, await journal.reading(_get, session))
    finally:
        record.end(parked=session.owner is not None)
    if not copies:
        await journal.delete(session.id)


def _get(connection: Connection, session: SessionRecord) -> _Moved:
    """Return all that is stored of a session."""
    query = "SELECT uses.hash, seq, data FROM uses JOIN blobs ON blobs.hash = uses.hash WHERE session = ?"
    blobs = connection.execute(query, (session.number,)).fetchall()
    answers = connection.execute(f"SELECT {_ANSWER} FROM answers WHERE session = ?", (session.number,)).fetchall()
    closed = connection.execute("SELECT since FROM closed WHERE session = ?", (session.number,)).fetchone()
    chunks = [*chunks_after(connection, session.number, 0)]
    return _Moved(session, chunks, blobs, answers, None if closed is None else closed[0])


def _put(connection: Connection, moved: _Moved) -> None:
    """Store a session that was read elsewhere. Raise UserError if there is one of its name."""
    session = moved.session
    if find(connection, session.id) is not None:
        raise UserError(f"there is a session {session.id!r} already")
    made = create(connection, session.id, cwd=session.cwd, title=session.title, now=session.created)
    for chunk in moved.chunks:
        put(connection, msgspec.structs.replace(chunk, session=made.number))
    query = "INSERT INTO blobs (hash, data) VALUES (?, ?) ON CONFLICT DO NOTHING"
    connection.executemany(query, [(digest, data) for digest, _, data in moved.blobs])
    query = "INSERT INTO uses (session, hash, seq) VALUES (?, ?, ?)"
    connection.executemany(query, [(made.number, digest, seq) for digest, seq, _ in moved.blobs])
    query = f"INSERT INTO answers (session, {_ANSWER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    connection.executemany(query, [(made.number, *answer) for answer in moved.answers])
    summary = SessionSummary(session.messages, session.totals, session.title, session.cwd)
    update_summary(connection, made.number, summary, session.updated)
    parent = None if session.parent is None else key_of(session.parent)
    owner = b"" if session.owner is None else msgspec.json.encode(session.owner)
    query = "UPDATE sessions SET parent = ?, fork_seq = ?, owner = ? WHERE number = ?"
    connection.execute(query, (parent, session.fork_seq, owner, made.number))
    if moved.closed is not None:
        mark_closed(connection, session.id, moved.closed)
