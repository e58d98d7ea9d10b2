"""Replay: a session's stored events from any cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from zot.errors import JournalDamaged
from zot.events import (
    AgentEvent,
    ApprovalRequest,
    ConversationReplaced,
    Done,
    ExtNotify,
    QuestionAnswer,
    QuestionRequest,
)
from zot.journal.chunks import Chunk, Kind, unpack, verified
from zot.journal.connection import Connection
from zot.journal.queries import CHUNK, SessionRecord, all_changes, get, last_seq, rows_after, titled
from zot.messages import show, text_of
from zot.store import Change, FileChanged, MessageAdded, MessagesReplaced, Row, SettingsChanged

#: Column indexes of a chunk's table row.
_RUN, _BODY = CHUNK.split(", ").index("run"), CHUNK.split(", ").index("body")
#: Encoded parts of events that report a failure, an abort, a cut-off or a blocked message.
_FAILURE_MARKS = (b'"type":"error"', b'"type":"ext_notify"', b'"stop":"error"', b'"stop":"aborted"', b'"stop":"length"')
#: Chunks of changes in which the last words are looked for.
_LOOKED_AT = 8
#: The greatest possible row number.
_NEWEST = (1 << 63) - 1


def events_after(connection: Connection, session_id: str, after: int, limit: int) -> list[tuple[int, AgentEvent]]:
    """Return up to ``limit`` events of a session after row ``after``, with their numbers.

    Raise NoSuchSession, JournalDamaged.
    """
    return events_of(connection, get(connection, session_id).number, after, limit)


def events_of(connection: Connection, number: int, after: int, limit: int) -> list[tuple[int, AgentEvent]]:
    """Return up to ``limit`` events after row ``after`` of a session, given its number. Raise JournalDamaged."""
    rows = rows_after(connection, number, after, limit, (Kind.EVENTS,))
    return [(seq, row) for seq, row in rows if not isinstance(row, Change)]


def replacements(
    connection: Connection, number: int, after: int, upto: int | None = None
) -> list[tuple[int, AgentEvent]]:
    """Return an event for each time a conversation was cleared, replaced or rewound outside of any run.

    These rows, above ``after`` and up to ``upto``, are changes, but are replayed as events. An undone compaction is not
    reported: clients see the same conversation. Raise JournalDamaged.
    """
    last = _NEWEST if upto is None else upto
    # Bounded on both sides: a replay asks once per page.
    query = (
        f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? AND first BETWEEN COALESCE("
        "(SELECT first FROM chunks WHERE session = ? AND kind = ? AND first <= ? ORDER BY first DESC LIMIT 1), 0)"
        " AND ? AND instr(body, ?) > 0 ORDER BY first"
    )
    values = (number, Kind.CHANGES, number, Kind.CHANGES, after + 1, last, b'"spliced"')
    return [
        told
        for chunk in map(verified, connection.execute(query, values).fetchall())
        if _is_between_runs(connection, chunk)
        for told in _replaced(chunk)
        if after < told[0] <= last
    ]


def _is_between_runs(connection: Connection, chunk: Chunk) -> bool:
    """True if the run of these changes had ended before them: changes inside a run have events of their own."""
    query = f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? AND first < ? ORDER BY first DESC LIMIT 1"
    found = connection.execute(query, (chunk.session, Kind.EVENTS, chunk.first)).fetchone()
    if found is None:
        return chunk.run == 0
    before = verified(found)
    return before.run == chunk.run and isinstance(unpack(before)[-1], Done)


def _replaced(chunk: Chunk) -> Iterator[tuple[int, AgentEvent]]:
    """Yield the events for changes between two runs, with the numbers they had when delivered live."""
    rows = unpack(chunk)
    for at, row in enumerate(rows):
        if isinstance(row, MessagesReplaced) and not row.why:
            # The file changes of a rewind follow its splice and belong to it.
            files = takewhile(lambda one: isinstance(one, FileChanged) and one.call is None, rows[at + 1 :])
            yield chunk.first + at + len(list(files)), ConversationReplaced(row.start + len(row.messages))


def failed_runs(connection: Connection, number: int) -> list[Row]:
    """Return a session's transcript changes merged with the events of runs that failed or were cut off; nothing if no
    run did.

    An unreadable run is omitted: resuming does not need it. Raise JournalDamaged.
    """
    query = f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? ORDER BY first"
    events: list[tuple[int, Row]] = []
    for _, rows in groupby(connection.execute(query, (number, Kind.EVENTS)), itemgetter(_RUN)):
        if _may_have_failed(run := list(rows)):
            with suppress(JournalDamaged):
                events += [one for chunk in map(verified, run) for one in enumerate(unpack(chunk), chunk.first)]
    if not events:
        return []
    changes = zip(*all_changes(connection, number), strict=True)
    return [row for _, row in sorted([*changes, *events], key=itemgetter(0))]


def _may_have_failed(run: Sequence[tuple[Any, ...]]) -> bool:
    """Test, without decoding, whether a run may have failed. Faster here than in SQLite."""
    bodies = [row[_BODY] for row in run if isinstance(row[_BODY], bytes)]
    return any(word in body for body in bodies for word in _FAILURE_MARKS)


def last_event(connection: Connection, session_id: str, upto: int) -> int:
    """Return the number of the newest event up to row ``upto``, where a replay ends; 0 if there is none.

    Raise NoSuchSession, JournalDamaged.
    """
    number = get(connection, session_id).number
    query = (
        "SELECT first + count - 1 FROM chunks WHERE session = ? AND kind = ? AND first <= ? ORDER BY first DESC LIMIT 1"
    )
    found = connection.execute(query, (number, Kind.EVENTS, upto)).fetchone()
    newest = 0 if found is None else min(found[0], upto)
    replaced = replacements(connection, number, newest, upto)
    return replaced[-1][0] if replaced else newest


def run_so_far(connection: Connection, session_id: str, upto: int) -> Sequence[AgentEvent]:
    """Return the events up to row ``upto`` of the run it belongs to.

    Raise NoSuchSession, JournalDamaged.
    """
    return [event for _, event in _numbered_run(connection, session_id, upto)]


def request_row(connection: Connection, session_id: str, request_id: str) -> int:
    """Return the row of an approval request or a question in the newest run; 0 if it is not on record.

    Raise NoSuchSession, JournalDamaged.
    """
    upto = last_seq(connection, get(connection, session_id).number)
    events = _numbered_run(connection, session_id, upto)
    asked = ApprovalRequest | QuestionRequest
    return next((seq for seq, event in events if isinstance(event, asked) and event.id == request_id), 0)


def open_approval(connection: Connection, record: SessionRecord, now: str) -> ApprovalRequest | None:
    """Return the approval request that a session's newest run waits for, if its deadline is after ``now``.

    Raise JournalDamaged.
    """
    events = _numbered_run(connection, record.id, last_seq(connection, record.number))
    newest = next((event for _, event in reversed(events) if not isinstance(event, ExtNotify)), None)
    return newest if isinstance(newest, ApprovalRequest) and newest.deadline > now else None


def open_questions(connection: Connection, record: SessionRecord) -> tuple[QuestionRequest, ...]:
    """Return the questions of a session's newest run that have no answer. Raise JournalDamaged."""
    events = [event for _, event in _numbered_run(connection, record.id, last_seq(connection, record.number))]
    answered = {event.id for event in events if isinstance(event, QuestionAnswer)}
    return tuple(event for event in events if isinstance(event, QuestionRequest) and event.id not in answered)


def _numbered_run(connection: Connection, session_id: str, upto: int) -> list[tuple[int, AgentEvent]]:
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


def agent_of(connection: Connection, record: SessionRecord) -> str:
    """Return the name of a session's agent, recorded at its beginning. Raise JournalDamaged."""
    rows = rows_after(connection, record.number, 0, 2, (Kind.CHANGES,))
    return next((row.agent for _, row in rows if isinstance(row, SettingsChanged) and row.agent), "default")


def last_words(connection: Connection, number: int) -> str:
    """Return the last text of a conversation, by the user or the model, as one short line; "" if it is far back.

    Raise JournalDamaged.
    """
    query = f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? ORDER BY first DESC LIMIT ?"
    for chunk in map(verified, connection.execute(query, (number, Kind.CHANGES, _LOOKED_AT)).fetchall()):
        for row in reversed(unpack(chunk)):
            if isinstance(row, MessagesReplaced) and not row.messages:
                return ""  # It was cleared or rewound.
            if (
                isinstance(row, MessageAdded)
                and row.message.role != "tool"
                and (text := text_of(show(row.message).content))
            ):
                return titled(text)
    return ""
