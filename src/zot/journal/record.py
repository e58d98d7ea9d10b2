"""A session's record in an SQLite file: the `Store` that its rows go through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from zot.errors import NoSuchSession, SessionBusy, StoreFailed
from zot.journal import queries
from zot.journal.answers import SessionAnswers, disown
from zot.journal.connection import Connection
from zot.journal.lease import Owner, Ticket, boot_id, current_owner
from zot.journal.queries import SessionRecord, find, newest_row_and_run, rows_after, used_at
from zot.journal.session_store import ALL, PATIENCE_S, SessionStore, busy
from zot.messages import timestamp
from zot.store import Acquired, FindAnswer

if TYPE_CHECKING:
    from zot.journal.journal import Journal


class Record(SessionStore):
    """A session in an SQLite file. Its lease is a lock of the kernel."""

    def __init__(
        self,
        journal: Journal,
        session: SessionRecord,
        last: int,
        is_new: bool = False,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(journal, session, last, patience_s=patience_s)
        self.is_new = is_new
        self._file = journal

    @property
    def journal(self) -> Journal:
        """The journal that the session is in."""
        return self._file

    async def begin(self, find_answer: FindAnswer | None = None) -> Acquired:
        """Acquire the lease for a run; return the rows that others added since we last read, or a stored answer."""
        self._check()
        owner = current_owner()
        if self._owner is not None:
            raise SessionBusy(f"session {self.id!r} is running here already", pid=owner.pid, host=owner.host)
        taken: list[Owner] = []
        taking = self.journal.writer.run(
            lambda connection: self._take(connection, owner, taken, find_answer),
            durable=True,
            session=self.number,
            plain=find_answer is None,
            loop=self.loop,
        )
        try:
            async with asyncio.timeout(self._patience_s):
                self.epoch, last, run, acquired = await self.journal.writer.callbacks.mirror(taking)
        except BaseException as problem:
            # Whatever the failure, the lease must not stay taken.
            taking.add_done_callback(lambda _: self.journal.leases.release(self.number) if taken else None)
            taking.cancel()
            self._is_deleted = isinstance(problem, NoSuchSession)
            self.journal.suspect(problem)
            if isinstance(problem, TimeoutError):
                raise StoreFailed(f"{self.journal.path} has not answered for {self._patience_s:g} s") from None
            raise
        if acquired.answer is not None:
            self.journal.leases.release(self.number)
            return acquired
        self._owner, self._has_ended = owner, False
        self._messages = self._counted(last, acquired.rows)
        self.last_seq = self._safe_seq = last
        self.last_run = run
        return acquired

    def _take(
        self, connection: Connection, owner: Owner, taken: list[Owner], find_answer: FindAnswer | None
    ) -> tuple[int, int, int, Acquired]:
        """Acquire the lease in the writer's thread, store the owner, and read the rows of others."""
        self.journal.writer.check_file()
        session = find(connection, self.id)
        if session is None or session.number != self.number:
            raise NoSuchSession(f"session {self.id!r} no longer exists")
        leases = self.journal.leases
        if not leases.acquire(self.number):
            raise busy(session)
        taken.append(owner)
        self.left_behind = self.left_behind or session.owner is not None
        last, run = newest_row_and_run(connection, self.number)
        epoch = checked_epoch(connection, session, self.journal, last)
        disown(connection, self.number, run + 1)
        if (
            find_answer is not None
            and (answer := find_answer(SessionAnswers(connection, self.journal.clock, self.number), run)) is not None
        ):
            return epoch, last, run, Acquired(answer=answer)
        rows = rows_after(connection, self.number, self._safe_seq, ALL) if last > self._safe_seq else []
        # Another version may have counted differently: correct it.
        query = "UPDATE sessions SET owner = ?, updated = ?, messages = coalesce(?, messages) WHERE number = ?"
        mark, now = msgspec.json.encode(owner), used_at(connection, session.cwd, owner.since, number=self.number)
        connection.execute(query, (mark, max(now, session.updated), self._counted(last, rows), self.number))
        return epoch, last, run, Acquired(rows)

    def end(self, *, parked: bool = False) -> None:
        """Release the lease, once pending rows are written. A ``parked`` run keeps its owner mark."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        leases, number = self.journal.leases, self.number
        # A failed row is never written; a late one may still be.
        is_settled = self._safe_seq == self.last_seq or self.broken is not None
        if is_settled:
            leases.release(number)
            if self._has_ended and self.broken is None:
                return

        def leave(connection: Connection) -> None:
            # Another process may own it by now: change only our own mark.
            mark = msgspec.json.encode(msgspec.structs.replace(owner, parked=True)) if parked else b""
            query = "UPDATE sessions SET owner = ? WHERE number = ? AND owner = ?"
            connection.execute(query, (mark, number, msgspec.json.encode(owner)))

        try:
            leaving = self.journal.writer.run(leave, durable=parked, session=number, plain=True, loop=self.loop)
        except StoreFailed:
            leases.release(number)  # No row is pending any more.
        else:
            if not is_settled:
                leaving.add_done_callback(lambda _: leases.release(number))

    async def is_free(self) -> bool:
        """Return whether no process holds the lease. Cheap enough to poll."""
        return not self.journal.leases.is_taken(self.number)

    def line_up(self, came: float) -> Ticket:
        """Take a place in the session's waiting line, by time of arrival. Raise StoreFailed."""
        return Ticket(self.journal.leases.path, self.number, came)

    @property
    def is_broken(self) -> bool:
        """True if rows could not be written or the session was deleted: it takes no more."""
        return self._failure is not None or self._is_deleted or self.journal.leases.is_deleted(self.number)

    async def synced(self) -> None:
        """Wait until all rows appended so far survive a loss of power. Raise StoreFailed, also after 30 s."""
        self._check()
        syncing = self.journal.writer.sync()
        try:
            async with asyncio.timeout(self._patience_s):
                await self.journal.writer.callbacks.mirror(syncing)
        except TimeoutError:
            raise self._late() from None
        self._check()


def checked_epoch(connection: Connection, session: SessionRecord, files: Journal, last: int) -> int:
    """Return the epoch of a session whose newest row is ``last``. The caller holds its lease.

    The epoch grows if stored rows may have been lost, because their numbers are then reused: the lock file marks a
    later row, or the machine went down during a run. It also grows if a session marked as deleted is in the file, which
    then is an older copy. Known losses are recorded (`queries.TAIL`).
    """
    marked = files.leases.marked(session.number)
    if marked > last:
        files.note(f"session {session.id!r}: rows {last + 1} to {marked} were lost")
        queries.record_loss(connection, session.number, (queries.TAIL, last + 1, marked), timestamp())
    elif not files.leases.is_deleted(session.number) and (
        session.owner is None or session.owner.parked or session.owner.boot == boot_id()
    ):
        return session.epoch
    query = "UPDATE sessions SET owner = x'', epoch = epoch + 1 WHERE number = ?"
    connection.execute(query, (session.number,))
    files.leases.mark({session.number: last})
    return session.epoch + 1
