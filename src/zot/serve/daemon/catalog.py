"""Catalogue of stored sessions: list, search, messages, costs and git state."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from zot.encoding import encode
from zot.errors import DirectoryGone, NoSuchAgent, NoSuchSession, UserError
from zot.events import AgentEvent, ApprovalRequest, status_of
from zot.files import read_chunks
from zot.journal import queries, replay
from zot.journal.journal import Journal
from zot.journal.queries import SessionRecord
from zot.journal.search import Spent, spent
from zot.messages import ZERO, Message, show, timestamp
from zot.runtime.pool import SessionPool
from zot.serve.daemon.access import check_use
from zot.serve.daemon.connection import ClientConnection, Handler
from zot.session.transcripts import Endings, all_messages, current_messages, endings, past_message
from zot.store import Change, Row
from zot.wire import daemon_types
from zot.wire.daemon import Grant
from zot.wire.daemon_types import Costs, MessageEntry, Messages
from zot.wire.spelling import Spelled, Spelling, spelled

#: Prefix lengths of a timestamp that give the day and the month.
DAY, _MONTH = len("2026-01-31"), len("2026-01")

#: Length of an abbreviated commit id.
_SHORT = 7
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MAX_PACKED_BYTES = 16 << 20
#: Placeholder in HEAD of a repository with reftables, which we cannot read.
_UNREADABLE = "refs/heads/.invalid"

#: How long a list waits for the recovery of sessions that a dead process left.
_RECOVERY_S = 5.0
#: Bytes encoded per turn of the loop.
_PIECE_BYTES = 256 << 10


class Span:
    """Period of time, both ends included: each a time in RFC 3339, a whole day in UTC, or unbounded."""

    def __init__(self, since: str | None, until: str | None) -> None:
        """Raise UserError for anything else."""
        self.since = "" if since is None else _moment("from", since, "T00:00:00.000Z")
        self._until = "~" if until is None else _moment("to", until, "T23:59:59.999Z")

    def __contains__(self, time: str) -> bool:
        return self.since <= time <= self._until

    def divides(self, first: str, last: str) -> bool:
        """True if the period from ``first`` to ``last`` may lie only partly inside."""
        return first < self.since <= last or first <= self._until < last


def added_up(calls: Iterable[tuple[str, Spent]], span: Span, now: str) -> daemon_types.Costs:
    """Add up the agents' model calls within ``span``; ``now`` gives the current day and month."""
    whole, day, month = daemon_types.Spending(), daemon_types.Spending(), daemon_types.Spending()
    by_model: dict[str, daemon_types.Spending] = {}
    by_agent: dict[str, daemon_types.Spending] = {}
    for agent, call in calls:
        if call.time not in span:
            continue
        one = _spending(call)
        whole += one
        day += one if call.time[:DAY] == now[:DAY] else daemon_types.Spending()
        month += one if call.time[:_MONTH] == now[:_MONTH] else daemon_types.Spending()
        by_model[call.model] = by_model.get(call.model, daemon_types.Spending()) + one
        by_agent[agent] = by_agent.get(agent, daemon_types.Spending()) + one
    return daemon_types.Costs(
        session_cost_usd=whole.cost_usd,
        daily_cost_usd=day.cost_usd,
        monthly_cost_usd=month.cost_usd,
        total_tokens=whole.total_tokens,
        request_count=whole.request_count,
        by_model=by_model,
        by_agent=by_agent,
    )


def _spending(call: Spent) -> daemon_types.Spending:
    used = call.counters
    return daemon_types.Spending(
        used.cost_usd, used.input + used.output + used.cache_read + used.cache_write, call.calls
    )


def _moment(name: str, text: str, rest_of_day: str) -> str:
    """Return a time in the journal's format. Raise UserError if ``text`` is neither a time nor a day."""
    try:
        moment = datetime.fromisoformat(text + rest_of_day if len(text) == DAY else text)
        return timestamp((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise UserError(f"{name}: {text[:40]!r} is no time in RFC 3339, nor a day such as 2026-01-31") from None


class _Day(msgspec.Struct, frozen=True, gc=False):
    """Sum of one model's calls on one day, with the times of the first and the last."""

    first: str
    last: str
    calls: Spent


class _Page(msgspec.Struct, frozen=True):
    """Spending of a session as of the state ``seen``."""

    seen: tuple[str, int, int]
    agent: str
    days: tuple[_Day, ...]


class SpendingCache:
    """Cache of every session's spending. Usable in any thread, with any connection to the same journal."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pages: dict[int, _Page] = {}

    def calls(
        self, connection: sqlite3.Connection, span: Span, agent: str | None, only: Collection[str] | None = None
    ) -> Iterator[tuple[str, Spent]]:
        """Yield the model calls of one agent or of all that may lie in a span, with their agents.

        With ``only``, those of these sessions. Calls of a whole day are merged into one. Raise JournalDamaged.
        """
        with self._guard:
            records = {record.number: record for record in queries.listed(connection) if record.totals != ZERO}
            self._pages = {number: page for number, page in self._pages.items() if number in records}
            for record in records.values():
                if record.updated < span.since or (only is not None and record.id not in only):
                    continue
                page = self._page(connection, record)
                if agent not in (None, page.agent):
                    continue
                if any(span.divides(day.first, day.last) for day in page.days):
                    yield from ((page.agent, one) for one in spent(connection, record))
                else:
                    yield from ((page.agent, day.calls) for day in page.days)

    def _page(self, connection: sqlite3.Connection, record: SessionRecord) -> _Page:
        seen = record.updated, record.epoch, queries.last_seq(connection, record.number)
        page = self._pages.get(record.number)
        if page is None or page.seen != seen:
            days = _by_day(spent(connection, record))
            page = self._pages[record.number] = _Page(seen, replay.agent_of(connection, record), days)
        return page


def _by_day(calls: Iterable[Spent]) -> tuple[_Day, ...]:
    days: dict[tuple[str, str], list[Spent]] = {}
    for call in calls:
        days.setdefault((call.time[:DAY], call.model), []).append(call)
    return tuple(_merged(some) for some in days.values())


def _merged(calls: list[Spent]) -> _Day:
    times = [call.time for call in calls]
    whole = sum((call.counters for call in calls), ZERO)
    return _Day(min(times), max(times), Spent(times[0], calls[0].model, whole, len(calls)))


class CatalogEntry(msgspec.Struct, frozen=True):
    """A listed session: its record, newest row, agent, whether any process runs it, the open approval request of a run
    in another process, dead or alive, and whether it was closed and not resumed."""

    record: SessionRecord
    last_seq: int
    agent: str
    is_running: bool = False
    pending: ApprovalRequest | None = None
    is_closed: bool = False


class SessionCatalog:
    """Sessions stored in a journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._ledger = SpendingCache()

    async def standing(self, session_id: str) -> tuple[int, int]:
        """Return the number of a session's newest row, and its epoch. Raise NoSuchSession."""

        def look(connection: sqlite3.Connection) -> tuple[SessionRecord, int]:
            record = queries.get(connection, session_id)
            return record, queries.last_seq(connection, record.number)

        record, last = await self.journal.reading(look)
        if not self.journal.has_lost(record, last):
            return last, record.epoch
        found = await self.journal.record(session_id, create=False)  # Rows were lost: this gives it a new epoch.
        return found.last_seq, found.epoch

    async def listed(
        self,
        *,
        query: str = "",
        cwd: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
        only: Collection[str] | None = None,
    ) -> list[CatalogEntry]:
        """Return sessions, newest first; with ``query``, only those with a matching message; ``only`` those ids."""
        found = [hit.session for hit in await self.journal.search(query)] if query else None

        def look(connection: sqlite3.Connection) -> list[CatalogEntry]:
            entries: list[CatalogEntry] = []
            closed = queries.closed_ids(connection)
            for record in queries.listed(connection, cwd=cwd):
                if limit is not None and len(entries) >= limit:
                    break
                if (found is not None and record.id not in found) or (only is not None and record.id not in only):
                    continue
                entry = CatalogEntry(
                    record,
                    queries.last_seq(connection, record.number),
                    replay.agent_of(connection, record),
                    self._is_running(record),
                    self._pending_approval(connection, record),
                    record.id in closed,
                )
                if agent is None or entry.agent == agent:
                    entries.append(entry)
            return entries

        return await self.journal.reading(look)

    async def spent(self, span: Span, *, agent: str | None = None, only: Collection[str] | None = None) -> Costs:
        """Return the spending of all sessions, or of one agent's. Computed in a thread: there may be many.

        With ``only``, that of these sessions.
        """
        now = timestamp()
        return await self.journal.reading(lambda one: added_up(self._ledger.calls(one, span, agent, only), span, now))

    async def messages(self, session_id: str, *, every: bool = False) -> list[Message]:
        """Return a session's recorded messages; with ``every``, also those that were compacted.

        Raise NoSuchSession.
        """

        def look(connection: sqlite3.Connection) -> list[Message]:
            _, rows = queries.all_changes(connection, queries.get(connection, session_id).number)
            changes = [row for row in rows if isinstance(row, Change)]
            return all_messages(changes) if every else current_messages(changes)

        return await self.journal.reading(look)

    async def endings(self, session_id: str) -> Endings:
        """Return the endings of unsuccessful runs. Raise NoSuchSession."""

        def look(connection: sqlite3.Connection) -> list[Row]:
            return replay.failed_runs(connection, queries.get(connection, session_id).number)

        return endings(await self.journal.reading(look))

    async def delete(self, session_id: str) -> int:
        """Delete a session permanently; return its epoch. Raise NoSuchSession, SessionBusy."""
        return (await self.journal.delete(session_id)).epoch

    async def check(self) -> None:
        """Raise StoreFailed if the journal is not writable now."""
        await self.journal.check_writing()

    async def asked_at(self, session_id: str, request_id: str) -> int:
        """Return the row of an approval request of the newest run; 0 if it is not recorded."""
        return await self.journal.reading(lambda connection: replay.approval_row(connection, session_id, request_id))

    async def last_told(self, session_id: str, upto: int) -> int:
        """Return the number of the newest event up to ``upto``; 0 if there is none. Raise NoSuchSession."""
        return await self.journal.reading(lambda connection: replay.last_event(connection, session_id, upto))

    def _pending_approval(self, connection: sqlite3.Connection, record: SessionRecord) -> ApprovalRequest | None:
        if record.owner is None or self.journal.is_run_here(record):
            return None  # The session's own worker knows.
        return replay.open_approval(connection, record, timestamp())

    async def doing(self, session_id: str) -> tuple[bool, ApprovalRequest | None]:
        """Return whether any process runs a session, and the approval request of a run in another process, dead or
        alive. Raise NoSuchSession."""

        def look(connection: sqlite3.Connection) -> tuple[bool, ApprovalRequest | None]:
            record = queries.get(connection, session_id)
            return self._is_running(record), self._pending_approval(connection, record)

        return await self.journal.reading(look)

    def _is_running(self, record: SessionRecord) -> bool:
        return record.owner is not None and self.journal.is_running(record)

    async def is_left_behind(self, session_id: str) -> bool:
        """True if the newest run of a session has no end because its process died. Raise NoSuchSession."""
        record = await self.journal.find(session_id)
        return record.owner is not None and session_id in await self.journal.left_behind()

    def past(self, session_id: str) -> RecordedEvents:
        """Return the recorded events of one session."""
        return RecordedEvents(self.journal, session_id)


class RecordedEvents:
    """Recorded events of one session (`feed.ReplaySource`)."""

    def __init__(self, journal: Journal, session_id: str) -> None:
        self._journal = journal
        self._session_id = session_id

    async def events_after(self, after: int, limit: int, epoch: int = 0) -> Sequence[tuple[int, AgentEvent]]:
        """Return up to ``limit`` events after a number, with their numbers; none if the session was deleted or has
        another ``epoch``, if one is given.

        Replacements of the whole conversation are among them.
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
        """Return the events up to ``upto`` of the run to which that number belongs."""
        with suppress(NoSuchSession):
            return await self._journal.reading(lambda connection: replay.run_so_far(connection, self._session_id, upto))
        return ()


class CheckedOut(NamedTuple):
    """A branch and a commit; each "" if there is none."""

    branch: str = ""
    commit: str = ""


def checked_out(directory: str) -> CheckedOut:
    """Return the branch and commit of the working tree around ``directory``; no commit before the first one.

    The repository may be anybody's: only regular files are read, and only references inside it.
    """
    try:
        if (git := _git_directory(directory)) is None:
            return CheckedOut()
        head = _line(os.path.join(git, "HEAD"))
    except OSError:
        return CheckedOut()
    name = head.removeprefix("ref: ")
    if name == head:
        return CheckedOut(commit=head[:_SHORT] if _COMMIT.fullmatch(head) else "")
    if name == _UNREADABLE or not _is_reference(name):
        return CheckedOut()
    commit = _commit(git, name)
    return CheckedOut(name.removeprefix("refs/heads/"), commit[:_SHORT] if _COMMIT.fullmatch(commit) else "")


def _is_reference(name: str) -> bool:
    """True if git would accept the name of a reference, as far as that keeps it inside the repository."""
    parts = name.split("/")
    return (
        parts[0] == "refs"
        and len(parts) > 1
        and name.isprintable()
        and not any(not part or part.startswith(".") or ".." in part for part in parts)
    )


def _git_directory(directory: str) -> str | None:
    """Return the git directory of the working tree around ``directory``; None if there is none."""
    while not os.path.exists(git := os.path.join(directory, ".git")):
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above
    if os.path.isdir(git):
        return git
    return os.path.join(directory, _line(git).removeprefix("gitdir: "))  # A worktree or a submodule.


def _commit(git: str, name: str) -> str:
    """Return the commit of a reference, loose or packed; "" if there is none yet."""
    common = git
    with suppress(OSError):
        common = os.path.join(git, _line(os.path.join(git, "commondir")))  # Worktrees share their branches.
    for place in (git, common):
        with suppress(OSError):
            return _line(os.path.join(place, name))
    with suppress(OSError):
        packed = b"".join(read_chunks(os.path.join(common, "packed-refs"), max_bytes=_MAX_PACKED_BYTES))
        for line in packed.decode("utf-8", "replace").split("\n"):
            commit, _, named = line.partition(" ")
            if named == name:
                return commit
    return ""


def _line(path: str) -> str:
    """Return the first line of a regular file. Raise OSError, also for a pipe or a device, and never wait."""
    data = next(read_chunks(path), b"")
    return data[:4096].decode("utf-8", "replace").partition("\n")[0].strip()


class _EncodedPage(Spelled, frozen=True):
    """A `MessagePage` whose messages were encoded one by one."""

    session_id: str
    messages: tuple[msgspec.Raw, ...]
    total: int
    start: int
    last_seq: int | daemon_types.Absent = daemon_types.ABSENT


class CatalogMethods:
    """Handlers of the methods on stored sessions."""

    def __init__(self, pool: SessionPool, catalog: SessionCatalog, is_recovered: asyncio.Event) -> None:
        self._pool = pool
        self._catalog = catalog
        self._is_recovered = is_recovered

    @property
    def table(self) -> Mapping[str, Handler]:
        """Handlers by method."""
        return {
            "session/list": self._list,
            "session/list-acp": self._list,
            "session/messages": self._messages,
            "session/delete": self._delete,
            "session/rename": self._rename,
            "session/git_branch": self._git_branch,
        }

    async def _list(self, connection: ClientConnection, asked: daemon_types.List) -> daemon_types.Sessions:
        with suppress(TimeoutError):  # Recovery shows which sessions wait for an approval.
            async with asyncio.timeout(_RECOVERY_S):
                await self._is_recovered.wait()
        entries = await self._catalog.listed(
            query=asked.query or "",
            cwd=asked.cwd,
            agent=asked.agent_alias,
            limit=asked.limit,
            only=connection.grant.sessions,
        )
        return daemon_types.Sessions(tuple(self._entry(entry, connection.grant) for entry in entries))

    def _entry(self, entry: CatalogEntry, grant: Grant) -> daemon_types.SessionEntry:
        record, session = entry.record, self._pool.session(entry.record.id)
        pending, busy = entry.pending, entry.is_running
        if session is not None and session.worker.busy:
            pending, busy = session.approvals.pending, True
        return daemon_types.SessionEntry(
            session_id=record.id,
            session_key=record.id,
            agent_alias=entry.agent,
            cwd=record.cwd,
            title=record.title,
            name=record.title,
            created_at=record.created,
            last_activity=record.updated,
            message_count=record.messages,
            state=status_of(pending, busy=busy),
            last_seq=entry.last_seq,
            parent_id=record.parent if record.parent and grant.sees(record.parent) else daemon_types.ABSENT,
            closed=entry.is_closed,
        )

    async def _messages(self, connection: ClientConnection, asked: Messages) -> _EncodedPage:
        last_seq: int | daemon_types.Absent = daemon_types.ABSENT
        ended: Endings | None = None
        try:
            seq, epoch = await self._catalog.standing(asked.session_id)
            await self._pool.refresh(asked.session_id, seq, epoch)
            async with self._pool.use(asked.session_id, looks=True) as session:
                before = session.before
                messages = list(session.history.transcript.messages)
                if asked.view == "past":
                    messages, last_seq = list(before.messages), before.seq
                    ended = await self._catalog.endings(asked.session_id)
                if asked.view == "full":
                    kept = await session.all_messages()
                    messages = [msgspec.structs.replace(message, shown_text=None) for message in kept]
        except (NoSuchAgent, DirectoryGone):  # Unusable, but readable.
            messages = await self._recorded(asked)
            if asked.view == "past":
                last_seq, ended = seq, await self._catalog.endings(asked.session_id)
        except NoSuchSession:
            messages = []
        stop = len(messages) if asked.before_index is None else min(asked.before_index, len(messages))
        start = 0 if asked.limit is None else max(0, stop - asked.limit)
        page = await _encoded(messages[start:stop], connection.spelling, ended)
        return _EncodedPage(asked.session_id, tuple(page), len(messages), start, last_seq)

    async def _recorded(self, asked: Messages) -> list[Message]:
        """Return the messages of a session that cannot be loaded."""
        kept = await self._catalog.messages(asked.session_id, every=asked.view == "full")
        return [msgspec.structs.replace(one, shown_text=None) for one in kept] if asked.view == "full" else kept

    async def _delete(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.Deleted:
        with suppress(NoSuchSession):  # Already deleted: nothing to do.
            await check_use(self._pool, connection, asked.session_id)
            await self._pool.let_go(asked.session_id)
            feed = connection.daemon.feed(asked.session_id)
            await feed.caught_up()
            await self._pool.let_go(asked.session_id)  # A client may have loaded it again meanwhile.
            feed.bury(await self._catalog.delete(asked.session_id))
        connection.unfollow(asked.session_id)
        return daemon_types.Deleted(asked.session_id)

    async def _rename(self, connection: ClientConnection, asked: daemon_types.Rename) -> daemon_types.Renamed:
        await self._pool.check_not_closed(asked.session_id)
        await check_use(self._pool, connection, asked.session_id)
        await self._catalog.journal.rename(asked.session_id, asked.title)
        return daemon_types.Renamed(asked.session_id, (await self._catalog.journal.find(asked.session_id)).title)

    async def _git_branch(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.GitBranch:
        del connection
        record = await self._catalog.journal.find(asked.session_id)
        branch, commit = await asyncio.to_thread(checked_out, record.cwd)
        return daemon_types.GitBranch(asked.session_id, branch or msgspec.UNSET, commit or msgspec.UNSET)


async def _encoded(messages: Sequence[Message], spelling: Spelling, ended: Endings | None) -> list[msgspec.Raw]:
    """Return encoded messages as clients see them; with ``ended``, including details that late clients need. Yields to
    other tasks after each piece.
    """
    found: list[msgspec.Raw] = []
    size = 0
    for message in messages:
        entry = MessageEntry.of(show(message) if ended is None else past_message(message, ended))
        data = encode(spelled(spelling, entry))
        found.append(msgspec.Raw(data))
        size += len(data)
        if size >= _PIECE_BYTES:
            size = 0
            await asyncio.sleep(0)
    return found
