"""A session's record in PostgreSQL: the `Store` that its rows go through, each append checked against a fence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from zot.errors import LeaseLost, NoSuchSession, SessionBusy, StoreFailed
from zot.journal.answers import SessionAnswers, disown
from zot.journal.connection import Connection
from zot.journal.lease import Owner, WaitingPlace, current_owner
from zot.journal.postgres.connection import PostgresConnection
from zot.journal.postgres.leases import taken_over
from zot.journal.queries import SessionRecord, find, newest_row_and_run, rows_after, used_at
from zot.journal.session_store import ALL, PATIENCE_S, SessionStore, busy
from zot.store import Acquired, FindAnswer

if TYPE_CHECKING:
    from zot.journal.postgres.journal import PostgresJournal


_LOCK = "SELECT 1 FROM sessions WHERE number = ? FOR UPDATE"
#: The fence, the pool, the token of the lease if it holds, and whether there are answers of idempotent requests.
_LOOK = """
SELECT fence, pool, (SELECT token FROM leases WHERE session = ? AND until > clock_timestamp()),
    EXISTS (SELECT 1 FROM answers WHERE answers.session = sessions.number)
FROM sessions WHERE number = ?"""
_CLAIM = """
INSERT INTO leases (session, fence, token, until) VALUES (?, ?, ?, clock_timestamp() + make_interval(secs => ?))
ON CONFLICT (session) DO UPDATE SET fence = excluded.fence, token = excluded.token, until = excluded.until"""
_OWN = """
UPDATE sessions SET fence = ?, next_seq = ?, owner = ?, updated = ?,
    messages = coalesce(CAST(? AS bigint), messages) WHERE number = ?"""


class _Taken(msgspec.Struct, frozen=True):
    """The result of taking a lease: the session's epoch, newest row and newest run, and the lease's fence.

    ``began`` is a time of `time.monotonic` before the lease was taken.
    """

    began: float
    epoch: int
    last: int
    run: int
    fence: int
    acquired: Acquired


class _Front:
    """A place in no line: the first process to acquire the lease runs first."""

    is_first = True

    def leave(self) -> None:
        return


class PostgresRecord(SessionStore):
    """A session in PostgreSQL. Its lease is a row that expires; each append checks the lease's ``fence``."""

    def __init__(
        self, journal: PostgresJournal, session: SessionRecord, last: int, *, patience_s: float = PATIENCE_S
    ) -> None:
        super().__init__(journal, session, last, patience_s=patience_s)
        self._database = journal
        #: Grows with every lease of the session, by any process.
        self.fence = 0
        #: When the lease ends unless it is renewed, by `time.monotonic`: never later than by the database's clock.
        self._holds_until = 0.0
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def journal(self) -> PostgresJournal:
        """The journal that the session is in."""
        return self._database

    async def begin(self, find_answer: FindAnswer | None = None) -> Acquired:
        """Acquire the lease for a run; return the rows that others added since we last read, or a stored answer."""
        self._check()
        owner = current_owner()
        if self._owner is not None:
            raise SessionBusy(f"session {self.id!r} is running here already", pid=owner.pid, host=owner.host)
        taking = self.journal.writer.run(lambda connection: self._take(connection, owner, find_answer), loop=self.loop)
        try:
            async with asyncio.timeout(self._patience_s):
                taken = await self.journal.writer.callbacks.mirror(taking)
        except BaseException as problem:
            # The lease may be taken although we were cancelled.
            if not taking.cancel():
                taking.add_done_callback(lambda _: self._give_back(owner))
            self._is_deleted = isinstance(problem, NoSuchSession)
            if isinstance(problem, TimeoutError):
                raise StoreFailed(f"{self.journal.path} has not answered for {self._patience_s:g} s") from None
            raise
        if taken.acquired.answer is not None:
            return taken.acquired
        self.epoch, self.fence = taken.epoch, taken.fence
        self._owner, self._has_ended = owner, False
        self._messages = self._counted(taken.last, taken.acquired.rows)
        self.last_seq = self._safe_seq = taken.last
        self.last_run = taken.run
        self._holds_until = taken.began + self.journal.lease_s
        self._expire_later()
        self.journal.leases.add(self)
        return taken.acquired

    def _take(self, connection: PostgresConnection, owner: Owner, find_answer: FindAnswer | None) -> _Taken:
        """Take the lease in the writer's thread, store the owner, and read the rows of others."""
        began = time.monotonic()  # Not earlier: other work of the writer may have taken as long as a lease.
        # The row stays locked until the end of the transaction: an append that was under way has ended by then.
        found = connection.together((_LOCK, (self.number,)), (_LOOK, (self.number, self.number))).fetchone()
        session = None if found is None else find(connection, self.id)
        if session is None or session.number != self.number:
            raise NoSuchSession(f"session {self.id!r} no longer exists")
        fence, pool, holder, has_answers = found
        if holder is not None and holder != owner.token:
            raise busy(session)
        self.left_behind = self.left_behind or session.owner is not None
        last, run = newest_row_and_run(connection, self.number)
        if has_answers:
            disown(connection, self.number, run + 1)
        answers = SessionAnswers(connection, self.journal.clock, self.number)
        if find_answer is not None and (answer := find_answer(answers, run)) is not None:
            return _Taken(began, session.epoch, last, run, 0, Acquired(answer=answer))
        rows = rows_after(connection, self.number, self._safe_seq, ALL) if last > self._safe_seq else []
        fence, self.is_continued = fence + 1, pool != ""  # The workers of its pool continue its runs.
        query = "SELECT 1 FROM requests WHERE session = ? AND aborted_run = ?"
        is_left = run > 0 and session.owner is not None
        was_aborted = is_left and connection.execute(query, (self.number, run)).fetchone() is not None
        now = max(used_at(connection, session.cwd, owner.since, number=self.number), session.updated)
        mark, counted = msgspec.json.encode(owner), self._counted(last, rows)
        connection.together(
            # The first row's commit makes this durable, too; without that row, losing it does no harm.
            ("SET LOCAL synchronous_commit = off", ()),
            (_CLAIM, (self.number, fence, owner.token, self.journal.lease_s)),
            (_OWN, (fence, last + 1, mark, now, counted, self.number)),
        )
        return _Taken(began, session.epoch, last, run, fence, Acquired(rows, was_aborted=was_aborted))

    def _give_back(self, owner: Owner) -> None:
        """Free a lease whose caller no longer waits for it."""

        def free(connection: Connection) -> None:
            query = "DELETE FROM leases WHERE session = ? AND token = ?"
            if connection.execute(query, (self.number, owner.token)).rowcount:
                query = "UPDATE sessions SET owner = ? WHERE number = ? AND owner = ?"
                connection.execute(query, (b"", self.number, msgspec.json.encode(owner)))

        with suppress(StoreFailed):
            self.journal.writer.run(free)

    def end(self, *, parked: bool = False) -> None:
        """Release the lease, once pending rows are written. A ``parked`` run keeps its owner mark."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        self._stop_renewing()
        number, mark = self.number, msgspec.json.encode(owner)
        left = msgspec.json.encode(msgspec.structs.replace(owner, parked=True)) if parked else b""

        def leave(connection: Connection) -> None:
            # Another worker may hold it by now: change only our own rows.
            connection.execute("DELETE FROM leases WHERE session = ? AND token = ?", (number, owner.token))
            query = "UPDATE sessions SET owner = ? WHERE number = ? AND owner = ?"
            connection.execute(query, (left, number, mark))

        if isinstance(self._failure, LeaseLost):
            return
        with suppress(StoreFailed):
            self.journal.writer.run(leave, loop=self.loop)

    async def is_free(self) -> bool:
        """Return whether no process holds the lease."""

        def look(connection: Connection) -> bool:
            query = "SELECT 1 FROM leases WHERE session = ? AND until > clock_timestamp()"
            return connection.execute(query, (self.number,)).fetchone() is None

        return await self.journal.reading(look)

    def line_up(self, came: float) -> WaitingPlace:
        """Return a place that is always first: machines have no common line."""
        del came
        return _Front()

    @property
    def is_broken(self) -> bool:
        """True if rows could not be written or the session was deleted: it takes no more."""
        return self._failure is not None or self._is_deleted

    async def synced(self) -> None:
        """Wait until all rows appended so far are committed. Raise StoreFailed, also after 30 s."""
        await self.settled()

    # The lease.

    def in_loop(self, call: Callable[..., None], *args: float) -> None:
        """Call in the thread of the session's loop."""
        with suppress(RuntimeError):  # The loop is closed.
            self.loop.call_soon_threadsafe(call, *args)

    def renewed(self, began: float) -> None:
        """Take note of a renewal that began at a time of `time.monotonic`."""
        self._holds_until = max(self._holds_until, began + self.journal.lease_s)

    def lose(self) -> None:
        """End the run: the lease is no longer ours, or may not be."""
        if self._owner is not None:
            self._stop_renewing()
            self.broken = self.broken or taken_over(self.id)
            self.on_failed(self.broken)

    def _expire_later(self) -> None:
        self._expiry = self.loop.call_later(max(0.0, self._holds_until - time.monotonic()), self._expire)

    def _expire(self) -> None:
        if self._owner is None:
            return
        if time.monotonic() < self._holds_until:
            self._expire_later()
        else:
            self.lose()

    def _stop_renewing(self) -> None:
        self.journal.leases.drop(self)
        if self._expiry is not None:
            self._expiry.cancel()
