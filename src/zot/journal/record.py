"""A session's record in the journal: the `Store` that its rows go through."""

from __future__ import annotations

import asyncio
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from zot.errors import NoSuchSession, SessionBusy, StoreFailed
from zot.journal import queries
from zot.journal.answers import disown
from zot.journal.chunks import pack
from zot.journal.lease import Owner, Ticket, boot_id, current_owner, host_name
from zot.journal.queries import (
    SessionRecord,
    SessionSummary,
    added,
    all_changes,
    find,
    last_run,
    newest_count,
    newest_row_and_run,
    rows_after,
    summarise,
    used_at,
)
from zot.journal.writer import Append
from zot.messages import timestamp
from zot.store import Acquired, Change, FindAnswer, PermissionGranted, Row

if TYPE_CHECKING:
    from zot.journal.journal import Journal

T = TypeVar("T")

#: The most unwritten bytes before a run must wait, and how long the disk may take.
MAX_UNSAFE_BYTES = 8 << 20
PATIENCE_S = 30.0
_ALL = 1 << 62


class StoredPast(msgspec.Struct, frozen=True):
    """The rows a session resumes from: all changes of its transcript, and all rows of its newest run.

    The changes include, in their places, the usage of the newest complete reply and its `turn_end`.
    """

    changes: Sequence[Row]
    run: int
    rows: Sequence[Row]


class Record:
    """An append-only history of one session on disk (`store.Store`). Belongs to the loop it was made in.

    After a failure it takes no more rows: memory may be ahead of the disk. Open the session again.
    """

    shared = True
    keeps = True

    def __init__(
        self,
        journal: Journal,
        session: SessionRecord,
        last: int,
        is_new: bool = False,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.id = session.id
        self.number = session.number
        #: Whether opening this record created the session.
        self.is_new = is_new
        self.epoch = session.epoch
        self.last_seq = last
        self.last_run = 0
        self.totals = session.totals
        self.left_behind = session.owner is not None
        self._fork_seq = session.fork_seq
        #: The number of messages at `last_seq`, once all rows have been read.
        self._messages = None if last else 0
        self.broken: StoreFailed | None = None
        self.journal = journal
        self._patience_s = patience_s
        self._safe_seq = last
        self._unsafe_bytes = 0
        self._owner: Owner | None = None
        #: Whether the run's `done` was appended, which also clears our owner mark.
        self._has_ended = False
        self._failure: StoreFailed | None = None
        #: Whether the session was found deleted.
        self._is_deleted = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._safe: Callable[[int], None] = lambda seq: None
        self._failed: Callable[[StoreFailed], None] = lambda problem: None

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
        self, connection: sqlite3.Connection, owner: Owner, taken: list[Owner], find_answer: FindAnswer | None
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
        if find_answer is not None and (answer := find_answer(connection, run)) is not None:
            return epoch, last, run, Acquired(answer=answer)
        rows = rows_after(connection, self.number, self._safe_seq, _ALL) if last > self._safe_seq else []
        # Another version may have counted differently: correct it.
        query = "UPDATE sessions SET owner = ?, updated = ?, messages = coalesce(?, messages) WHERE number = ?"
        mark, now = msgspec.json.encode(owner), used_at(connection, session.cwd, owner.since, number=self.number)
        connection.execute(query, (mark, max(now, session.updated), self._counted(last, rows), self.number))
        return epoch, last, run, Acquired(rows)

    def _counted(self, last: int, rows: Sequence[tuple[int, Row]]) -> int | None:
        """Return the number of messages after ``rows`` up to ``last``; None if unknown."""
        if self._messages is None or last < self.last_seq:
            return None
        return self._messages + added([row for seq, row in rows if seq > self.last_seq])

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

        def leave(connection: sqlite3.Connection) -> None:
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

    @property
    def is_free(self) -> bool:
        """True if no process holds the lease. Cheap enough to poll."""
        return not self.journal.leases.is_taken(self.number)

    def line_up(self, came: float) -> Ticket:
        """Take a place in the session's waiting line, by time of arrival. Raise StoreFailed."""
        return Ticket(self.journal.leases.path, self.number, came)

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        """Number and enqueue ``rows``; all appends of one event-loop tick are written together."""
        self._check()
        if self._owner is None:
            raise StoreFailed(f"session {self.id!r} cannot be written: it was not begun")
        first = self.last_seq + 1
        if not rows:
            return first
        try:
            chunks, blobs = pack(rows, session=self.number, first=first, run=run)
        except (TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
            raise StoreFailed(f"events cannot be recorded: {problem}") from problem
        summary = summarise(rows)
        if ends:
            summary = summary or SessionSummary()
            summary.left = msgspec.json.encode(self._owner)
        last = self.last_seq + len(rows)
        size = sum([len(chunk.body) for chunk in chunks]) + sum(map(len, blobs.values()))
        # Clients rely on the end of a run: it and all rows before must survive a loss of power.
        self.journal.writer.post(Append(self, chunks, blobs, summary, last, size, durable=ends))
        if summary is not None and self._messages is not None:
            self._messages += summary.messages
        self.last_seq, self.last_run, self._has_ended = last, run, ends
        self._unsafe_bytes += size
        return first

    def watch(self, safe: Callable[[int], None], failed: Callable[[StoreFailed], None]) -> None:
        """Call ``safe`` and ``failed`` from now on, in the loop's thread, never inside `append`."""
        self._safe, self._failed = safe, failed

    @property
    def is_broken(self) -> bool:
        """True if rows could not be written or the session was deleted: it takes no more."""
        return self._failure is not None or self._is_deleted or self.journal.leases.is_deleted(self.number)

    @property
    def full(self) -> bool:
        """True while 8 MiB or more are not yet stored."""
        return self._unsafe_bytes >= MAX_UNSAFE_BYTES

    async def room(self) -> None:
        """Wait until it is no longer full. Raise StoreFailed after 30 s."""
        await self._wait_until(lambda: not self.full)

    async def settled(self) -> None:
        """Wait until all rows appended so far are stored. Raise StoreFailed, also after 30 s."""
        upto = self.last_seq  # Later rows do not count.
        await self._wait_until(lambda: self._safe_seq >= upto)

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

    def on_safe(self, seq: int, size: int) -> None:
        """Take note of stored rows."""
        self._unsafe_bytes -= size
        if self._failure is None:
            self._safe_seq = seq
            self._wake()
            self._safe(seq)

    def on_failed(self, problem: StoreFailed) -> None:
        """Take note that the writer failed or is late."""
        if self._failure is None:
            self._failure = problem
            self.journal.suspect(problem)
            self._wake()
            self._failed(problem)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        self._check()
        if is_so():
            return
        try:
            async with asyncio.timeout(self._patience_s):
                while not is_so():
                    changed: asyncio.Future[None] = self.loop.create_future()
                    self._waiting.add(changed)
                    try:
                        await changed
                    finally:
                        self._waiting.discard(changed)
                    self._check()
        except TimeoutError:
            raise self._late() from None

    def _late(self) -> StoreFailed:
        problem = StoreFailed(f"{self.journal.path} has not been written for {self._patience_s:g} s: check the disk")
        self.on_failed(problem)
        return problem

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def read(self, after: int, limit: int) -> list[tuple[int, Row]]:
        """Return the oldest stored rows after row ``after``, of all processes. Raise JournalDamaged."""
        return await self.journal.reading(rows_after, self.number, after, limit)

    async def newest(self) -> Sequence[tuple[int, Row]]:
        """Return the rows of the newest run, of any process, with their numbers. Raise JournalDamaged."""
        if self._owner is not None and self.last_seq == 0:
            return []  # There are no rows, and we hold the lease.

        def look(connection: sqlite3.Connection) -> Sequence[tuple[int, Row]]:
            _, first = last_run(connection, self.number)
            return rows_after(connection, self.number, first - 1, _ALL) if first else []

        return await self.journal.reading(look)

    async def changes(self) -> Sequence[tuple[int, Change]]:
        """Return all changes of the transcript, of all processes. Raise JournalDamaged."""
        numbers, rows = await self.journal.reading(all_changes, self.number)
        return [(seq, row) for seq, row in zip(numbers, rows, strict=True) if isinstance(row, Change)]

    async def changes_with_failures(self) -> Sequence[Row]:
        """Return all changes of the transcript, and the events of failed runs (`replay.failed_runs`)."""
        from zot.journal.replay import failed_runs  # Imported lazily: needed only after a failed run.

        return await self.journal.reading(failed_runs, self.number)

    async def content(self, digest: str) -> bytes | None:
        """Return the content of a file that a row refers to; None if it is lost."""
        return await self.journal.reading(queries.blob, bytes.fromhex(digest))

    async def fork(self, new_id: str, at: int) -> None:
        """Make another session from the rows up to number ``at``. Raise UserError, NoSuchSession."""
        await self.journal.writing(queries.fork, self.id, at, new_id)

    async def past(self) -> StoredPast:
        """Return the rows to resume from, up to `last_seq`. Raise JournalDamaged."""
        if (upto := self.last_seq) == 0:
            return StoredPast((), 0, ())

        def look(connection: sqlite3.Connection) -> tuple[StoredPast, int]:
            numbers, changes = self._without_inherited_approvals(*all_changes(connection, self.number))
            run, first = last_run(connection, self.number)
            rows = rows_after(connection, self.number, first - 1, _ALL) if first else []
            del changes[bisect_right(numbers, upto) :]  # Other processes may be writing.
            counted, events = newest_count(connection, self.number, upto)
            at = bisect_right(numbers, counted)
            changes[at:at] = events
            return StoredPast(changes, run, [row for seq, row in rows if seq <= upto]), added(changes)

        past, self._messages = await self.journal.reading(look)
        self.last_run = past.run
        return past

    def _without_inherited_approvals(
        self, numbers: Sequence[int], changes: list[Row]
    ) -> tuple[Sequence[int], list[Row]]:
        """Omit approvals remembered in the session that this one was forked from: they were not given for this one."""
        if not self._fork_seq:
            return numbers, changes
        both = zip(numbers, changes, strict=True)
        kept = [(seq, row) for seq, row in both if seq > self._fork_seq or not isinstance(row, PermissionGranted)]
        return [seq for seq, _ in kept], [row for _, row in kept]


def checked_epoch(connection: sqlite3.Connection, session: SessionRecord, files: Journal, last: int) -> int:
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


def busy(session: SessionRecord) -> SessionBusy:
    """Return the error that names the owner of a session."""
    owner = session.owner
    if owner is None:
        return SessionBusy(f"session {session.id!r} is in use; wait for its run to end")
    where = "" if owner.host == host_name() else f" on {owner.host}"
    return SessionBusy(
        f"session {session.id!r} is running in process {owner.pid}{where}, since {owner.since}; wait until it ends",
        pid=owner.pid,
        host=owner.host,
        since=owner.since,
    )
