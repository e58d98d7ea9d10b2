"""What is kept of sessions, for clients that look without using them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from zot.errors import NoSuchSession
from zot.events import AgentEvent, ApprovalRequest
from zot.journal import queries, replay
from zot.journal.journal import Journal
from zot.journal.queries import SessionRecord
from zot.messages import Message, timestamp
from zot.serve.daemon.costs import Span, added_up
from zot.serve.daemon.ledger import Ledger
from zot.session.transcripts import Endings, endings, everything, standing
from zot.store import Change, Row
from zot.wire.daemon_server import Costs


class Entry(msgspec.Struct, frozen=True):
    """A session in a list: what is recorded of it, its newest row, its agent, and if somebody runs it; and if a run of
    another process, which may be dead, waits for a person."""

    record: SessionRecord
    last_seq: int
    agent: str
    is_running: bool = False
    is_asked: bool = False


class Shelf:
    """The sessions of a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ledger = Ledger()

    async def standing(self, session_id: str) -> tuple[int, int]:
        """Return the number of a session's newest row, and its epoch. Raise NoSuchSession."""

        def look(connection: sqlite3.Connection) -> tuple[SessionRecord, int]:
            record = queries.get(connection, session_id)
            return record, queries.last_seq(connection, record.number)

        record, last = await self._journal.reading(look)
        if not self._journal.has_lost(record, last):
            return last, record.epoch
        found = await self._journal.record(session_id, create=False)  # With that it gets another epoch.
        return found.last_seq, found.epoch

    async def listed(
        self, *, query: str = "", cwd: str | None = None, agent: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return sessions, the newest first; of those, the ones in which ``query`` was said."""
        found = [hit.session for hit in await self._journal.search(query)] if query else None

        def look(connection: sqlite3.Connection) -> list[Entry]:
            entries: list[Entry] = []
            for record in queries.listed(connection, cwd=cwd):
                if limit is not None and len(entries) >= limit:
                    break
                if found is not None and record.id not in found:
                    continue
                entry = Entry(
                    record,
                    queries.last_seq(connection, record.number),
                    replay.agent_of(connection, record),
                    self._is_run(record),
                    self._question(connection, record) is not None,
                )
                if agent is None or entry.agent == agent:
                    entries.append(entry)
            return entries

        return await self._journal.reading(look)

    async def spent(self, span: Span, *, agent: str | None = None) -> Costs:
        """Return what all sessions have spent, or those of an agent. There may be many: it is added up elsewhere."""
        now = timestamp()
        return await self._journal.reading(lambda one: added_up(self._ledger.calls(one, span, agent), span, now))

    async def messages(self, session_id: str, *, every: bool = False) -> list[Message]:
        """Return a conversation as it was recorded; ``every`` message of it also if it has been compacted.

        Raise NoSuchSession.
        """

        def look(connection: sqlite3.Connection) -> list[Message]:
            _, rows = queries.all_changes(connection, queries.get(connection, session_id).number)
            changes = [row for row in rows if isinstance(row, Change)]
            return everything(changes) if every else standing(changes)

        return await self._journal.reading(look)

    async def endings(self, session_id: str) -> Endings:
        """Return how turns ended that came to no good end. Raise NoSuchSession."""

        def look(connection: sqlite3.Connection) -> list[Row]:
            return replay.troubled(connection, queries.get(connection, session_id).number)

        return endings(await self._journal.reading(look))

    async def find(self, session_id: str) -> SessionRecord:
        """Return what is recorded of a session. Raise NoSuchSession."""
        return await self._journal.find(session_id)

    async def sessions(self) -> list[SessionRecord]:
        """Return all sessions, the newest first."""
        return await self._journal.sessions()

    async def rename(self, session_id: str, title: str) -> None:
        """Give a session a title. Raise NoSuchSession."""
        await self._journal.rename(session_id, title)

    async def delete(self, session_id: str) -> int:
        """Remove a session for good; return its epoch. Raise NoSuchSession, SessionBusy."""
        return (await self._journal.delete(session_id)).epoch

    async def check(self) -> None:
        """Raise StoreFailed if nothing could be recorded now."""
        await self._journal.check_writing()

    async def asked_at(self, session_id: str, request_id: str) -> int:
        """Return the number of a question that the newest run asked; 0 if that is not on record."""
        return await self._journal.reading(lambda connection: replay.asked_at(connection, session_id, request_id))

    async def last_told(self, session_id: str, upto: int) -> int:
        """Return the number of the newest event, not above a number; 0 if there is none. Raise NoSuchSession."""
        return await self._journal.reading(lambda connection: replay.last_told(connection, session_id, upto))

    def _question(self, connection: sqlite3.Connection, record: SessionRecord) -> ApprovalRequest | None:
        if record.owner is None or self._journal.is_run_here(record):
            return None  # Who runs it here knows.
        return replay.question(connection, record, timestamp())

    async def doing(self, session_id: str) -> tuple[bool, ApprovalRequest | None]:
        """Return if somebody runs a session, here or in another process, and the question that a run of another one,
        which may be dead, waits with. Raise NoSuchSession."""

        def look(connection: sqlite3.Connection) -> tuple[bool, ApprovalRequest | None]:
            record = queries.get(connection, session_id)
            return self._is_run(record), self._question(connection, record)

        return await self._journal.reading(look)

    def _is_run(self, record: SessionRecord) -> bool:
        return record.owner is not None and self._journal.is_running(record)

    async def is_left_behind(self, session_id: str) -> bool:
        """True if the newest run of a session has no end because its process is gone. Raise NoSuchSession."""
        record = await self._journal.find(session_id)
        return record.owner is not None and session_id in await self._journal.left_behind()

    async def check_elsewhere(self, session_id: str) -> None:
        """Raise SessionBusy, with its owner, if another process runs a session; NoSuchSession."""
        await self._journal.check_elsewhere(session_id)

    def past(self, session_id: str) -> RecordedPast:
        """Return what is recorded of one session."""
        return RecordedPast(self._journal, session_id)


class RecordedPast:
    """What is recorded of one session (`feed.Past`)."""

    def __init__(self, journal: Journal, session_id: str) -> None:
        self._journal = journal
        self._session_id = session_id

    async def events_after(self, after: int, limit: int, epoch: int = 0) -> Sequence[tuple[int, AgentEvent]]:
        """Return up to ``limit`` events above a number, with their numbers; none of a session that was deleted, or of
        another ``epoch``, if one is given.

        Among them is when the conversation became another one.
        """

        def look(connection: sqlite3.Connection) -> list[tuple[int, AgentEvent]]:
            if epoch not in (0, queries.get(connection, self._session_id).epoch):
                return []
            events = replay.events_after(connection, self._session_id, after, limit)
            upto = events[-1][0] if len(events) == limit else None
            replaced = replay.replacements(connection, self._session_id, after, upto)
            return sorted([*events, *replaced], key=lambda one: one[0])[:limit] if replaced else events

        with suppress(NoSuchSession):
            return await self._journal.reading(look)
        return ()

    async def run_so_far(self, upto: int) -> Sequence[AgentEvent]:
        """Return the events, not above a number, of the run that it belongs to."""
        with suppress(NoSuchSession):
            return await self._journal.reading(lambda connection: replay.run_so_far(connection, self._session_id, upto))
        return ()
