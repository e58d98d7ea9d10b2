"""The `Store` of one recorded session: numbers its rows, hands them to the writer, and reads those of all processes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from zot.errors import SessionBusy, StoreFailed
from zot.journal import queries
from zot.journal.chunks import pack
from zot.journal.connection import Connection
from zot.journal.lease import Owner, WaitingPlace, host_name
from zot.journal.queries import (
    SessionRecord,
    SessionSummary,
    added,
    all_changes,
    last_run,
    newest_count,
    rows_after,
    summarise,
)
from zot.journal.writer_thread import Append
from zot.store import Acquired, Change, FindAnswer, PermissionGranted, Row, StoreObserver

if TYPE_CHECKING:
    from zot.journal.recorded_sessions import SessionJournal

#: The most unwritten bytes before a run must wait, and how long the disk or the database may take.
MAX_UNSAFE_BYTES = 8 << 20
PATIENCE_S = 30.0
#: More than any session has rows.
ALL = 1 << 62


class StoredPast(msgspec.Struct, frozen=True):
    """The rows a session resumes from: all changes of its transcript, and all rows of its newest run.

    The changes include, in their places, the usage of the newest complete reply and its `turn_end`.
    """

    changes: Sequence[Row]
    run: int
    rows: Sequence[Row]


class SessionStore(ABC):
    """An append-only history of one session in a database (`store.Store`). Belongs to the loop it was made in.

    After a failure it takes no more rows: memory may be ahead of the database. Open the session again.
    """

    shared = True
    keeps = True
    #: Whether another process may continue a run that this one leaves.
    is_continued = False
    #: Whether opening this record created the session.
    is_new = False

    def __init__(
        self, journal: SessionJournal, session: SessionRecord, last: int, *, patience_s: float = PATIENCE_S
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.id = session.id
        self.number = session.number
        self.epoch = session.epoch
        self.last_seq = last
        self.last_run = 0
        self.totals = session.totals
        self.left_behind = session.owner is not None
        self._fork_seq = session.fork_seq
        #: The number of messages at `last_seq`, once all rows have been read.
        self._messages = None if last else 0
        self.broken: StoreFailed | None = None
        self._journal = journal
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
        self._observer = StoreObserver()

    @property
    def journal(self) -> SessionJournal:
        """The journal that the session is in."""
        return self._journal

    @abstractmethod
    async def begin(self, find_answer: FindAnswer | None = None) -> Acquired:
        """Acquire the lease for a run; return the rows that others added since we last read, or a stored answer."""

    @abstractmethod
    def end(self, *, parked: bool = False) -> None:
        """Release the lease, once pending rows are written. A ``parked`` run keeps its owner mark."""

    @abstractmethod
    async def is_free(self) -> bool:
        """Return whether no process holds the lease. Cheap enough to poll."""

    @abstractmethod
    def line_up(self, came: float) -> WaitingPlace:
        """Take a place in the session's waiting line, by time of arrival. Raise StoreFailed."""

    @property
    @abstractmethod
    def is_broken(self) -> bool:
        """True if rows could not be written or the session was deleted: it takes no more."""

    @abstractmethod
    async def synced(self) -> None:
        """Wait until all rows appended so far survive a loss of power. Raise StoreFailed, also after 30 s."""

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
        self._journal.writer.post(Append(self, chunks, blobs, summary, last, size, durable=ends))
        if summary is not None and self._messages is not None:
            self._messages += summary.messages
        self.last_seq, self.last_run, self._has_ended = last, run, ends
        self._unsafe_bytes += size
        return first

    def watch(self, observer: StoreObserver) -> None:
        """Report to ``observer`` from now on, in the loop's thread, never inside `append`."""
        self._observer = observer

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

    def on_safe(self, seq: int, size: int) -> None:
        """Take note of stored rows."""
        self._unsafe_bytes -= size
        if self._failure is None:
            self._safe_seq = seq
            self._wake()
            self._observer.on_safe(seq)

    def on_failed(self, problem: StoreFailed) -> None:
        """Take note that the writer failed or is late."""
        if self._failure is None:
            self._failure = problem
            self._journal.suspect(problem)
            self._wake()
            self._observer.on_failed(problem)

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
        problem = StoreFailed(f"{self._journal.path} has not been written for {self._patience_s:g} s: check the disk")
        self.on_failed(problem)
        return problem

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _counted(self, last: int, rows: Sequence[tuple[int, Row]]) -> int | None:
        """Return the number of messages after ``rows`` up to ``last``; None if unknown."""
        if self._messages is None or last < self.last_seq:
            return None
        return self._messages + added([row for seq, row in rows if seq > self.last_seq])

    async def read(self, after: int, limit: int) -> list[tuple[int, Row]]:
        """Return the oldest stored rows after row ``after``, of all processes. Raise JournalDamaged."""
        return await self._journal.reading(rows_after, self.number, after, limit)

    async def newest(self) -> Sequence[tuple[int, Row]]:
        """Return the rows of the newest run, of any process, with their numbers. Raise JournalDamaged."""
        if self._owner is not None and self.last_seq == 0:
            return []  # There are no rows, and we hold the lease.

        def look(connection: Connection) -> Sequence[tuple[int, Row]]:
            _, first = last_run(connection, self.number)
            return rows_after(connection, self.number, first - 1, ALL) if first else []

        return await self._journal.reading(look)

    async def changes(self) -> Sequence[tuple[int, Change]]:
        """Return all changes of the transcript, of all processes. Raise JournalDamaged."""
        numbers, rows = await self._journal.reading(all_changes, self.number)
        return [(seq, row) for seq, row in zip(numbers, rows, strict=True) if isinstance(row, Change)]

    async def changes_with_failures(self) -> Sequence[Row]:
        """Return all changes of the transcript, and the events of failed runs (`replay.failed_runs`)."""
        from zot.journal.replay import failed_runs  # Imported lazily: needed only after a failed run.

        return await self._journal.reading(failed_runs, self.number)

    async def content(self, digest: str) -> bytes | None:
        """Return the content of a file that a row refers to; None if it is lost."""
        return await self._journal.reading(queries.blob, bytes.fromhex(digest))

    async def fork(self, new_id: str, at: int) -> None:
        """Make another session from the rows up to number ``at``. Raise UserError, NoSuchSession."""
        await self._journal.writing(queries.fork, self.id, at, new_id)

    async def past(self) -> StoredPast:
        """Return the rows to resume from, up to `last_seq`. Raise JournalDamaged."""
        if (upto := self.last_seq) == 0:
            return StoredPast((), 0, ())

        def look(connection: Connection) -> tuple[StoredPast, int]:
            numbers, changes = self._without_inherited_approvals(*all_changes(connection, self.number))
            run, first = last_run(connection, self.number)
            rows = rows_after(connection, self.number, first - 1, ALL) if first else []
            del changes[bisect_right(numbers, upto) :]  # Other processes may be writing.
            counted, events = newest_count(connection, self.number, upto)
            at = bisect_right(numbers, counted)
            changes[at:at] = events
            return StoredPast(changes, run, [row for seq, row in rows if seq <= upto]), added(changes)

        past, self._messages = await self._journal.reading(look)
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
