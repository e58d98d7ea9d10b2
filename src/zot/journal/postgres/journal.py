"""The journal in PostgreSQL: the sessions of many machines, opened once per process and address."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from zot.errors import NoSuchSession
from zot.journal import queries
from zot.journal.answers import DatabaseClock
from zot.journal.connection import Connection
from zot.journal.postgres.connection import Address, Connections, DatabaseError, explained, parsed
from zot.journal.postgres.doorbell import Doorbell
from zot.journal.postgres.leases import LeaseKeeper
from zot.journal.postgres.record import PostgresRecord
from zot.journal.postgres.schema import migrate
from zot.journal.postgres.writer import BLOBS, PostgresWriter
from zot.journal.queries import SessionRecord
from zot.journal.recorded_sessions import SessionJournal
from zot.journal.session_store import StoredPast, busy
from zot.messages import timestamp

T = TypeVar("T")
P = ParamSpec("P")

_READER_THREADS = 4
_CLOSE_S = 5.0

_opening = threading.Lock()
_open: dict[str, PostgresJournal] = {}


class PostgresJournal(SessionJournal):
    """Sessions in PostgreSQL. Made by `open`."""

    writer: PostgresWriter

    def __init__(self, address: Address) -> None:
        """Create or migrate the tables, and start the threads. Raise StoreFailed."""
        super().__init__(address.shown)
        self.address = address
        self.clock = DatabaseClock()
        self.lease_s = address.lease_s
        self._users = 1
        try:
            connection = address.connect("opening")
            try:
                migrate(connection, self.path)
            finally:
                connection.close()
        except DatabaseError as problem:
            raise explained(problem, self.path) from problem
        self.leases = LeaseKeeper(address)
        self._doorbell = Doorbell(address)
        self.writer = PostgresWriter(address, written=self._doorbell.ring)
        self._connections = Connections(address, "reader")
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="zot journal reader")

    @classmethod
    async def open(cls, address: str) -> PostgresJournal:
        """Open the journal, creating its tables if needed; close it as often as it was opened. Raise StoreFailed,
        ConfigError."""
        return await asyncio.to_thread(_shared, address)

    async def close(self) -> None:
        """Write pending rows, for at most 5 s, and close the connections unless others in this process use them."""
        with _opening:
            self._users -= 1
            if self._users:
                return
            _open.pop(self.address.info, None)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.writer.close(within_s=_CLOSE_S)
        self.leases.close()
        self._doorbell.close()
        self._connections.close()
        self._readers.shutdown(cancel_futures=True)

    async def reading(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``query(connection, *args, **kwargs)``, in another thread and read-only. Raise StoreFailed."""
        result: Future[T] = Future()
        reading = self._readers.submit(
            self._connections.read, lambda connection: query(connection, *args, **kwargs), result
        )
        reading.add_done_callback(lambda one: result.cancel() if one.cancelled() else None)
        return await asyncio.wrap_future(result)

    async def writing(self, action: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``action(connection, *args, **kwargs)``, in a transaction after everything queued before."""
        running = self.writer.run(lambda connection: action(connection, *args, **kwargs))
        return await self.writer.callbacks.mirror(running)

    async def writing_durably(
        self, action: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do as `writing` does: every commit survives a loss of power."""
        return await self.writing(action, *args, **kwargs)

    async def record(self, session_id: str, *, cwd: str = "", create: bool = True) -> PostgresRecord:
        """Return the record of a session, creating it if ``create``; else raise NoSuchSession if there is none."""

        def find(connection: Connection) -> tuple[SessionRecord, int]:
            session = queries.find(connection, session_id)
            if session is None and create:
                # Another machine may create it at the same time.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(?))", (f"zot {session_id!r}",))
                session = queries.find(connection, session_id) or queries.create(
                    connection, session_id, cwd=cwd, title="", now=timestamp()
                )
            if session is None:
                raise NoSuchSession(f"there is no session {session_id!r}")
            return session, queries.last_seq(connection, session.number)

        return PostgresRecord(self, *await self.writing(find))

    async def resume(self, session_id: str, *, cwd: str = "", create: bool = True) -> tuple[PostgresRecord, StoredPast]:
        """Return the record of a session and its past."""
        record = await self.record(session_id, cwd=cwd, create=create)
        return record, await record.past()

    def version(self, connection: Connection) -> int:
        """Return another number each time: the database does not say whether it has changed."""
        del connection
        return time.monotonic_ns()

    async def left_behind(self) -> list[str]:
        """Return the sessions whose newest run has no end, because its process crashed or parked it."""
        return [session.id for session in await self.writing(queries.owned) if not session.is_leased]

    def is_running(self, session: SessionRecord) -> bool:
        """True if a process ran a session when its record was read, here or elsewhere."""
        return session.is_leased

    def is_run_here(self, session: SessionRecord) -> bool:
        """True if this process runs a session."""
        return session.number in self.leases.held

    def has_lost(self, session: SessionRecord, last: int) -> bool:
        """Always False: a commit is not lost while the server keeps its promise."""
        del session, last
        return False

    async def delete(self, session_id: str) -> SessionRecord:
        """Delete a session for good; return its record. Raise NoSuchSession, SessionBusy while it runs."""

        def remove(connection: Connection) -> SessionRecord:
            number = queries.get(connection, session_id).number
            connection.execute("SELECT 1 FROM sessions WHERE number = ? FOR UPDATE", (number,))
            session = queries.get(connection, session_id)
            if session.is_leased:
                raise busy(session)
            connection.execute("SELECT pg_advisory_xact_lock(?)", (BLOBS,))
            queries.delete(connection, session.number)
            return session

        return await self.writing(remove)

    async def collect(self) -> int:
        """Delete unreferenced blobs; return how many. The server frees their space by itself."""

        def sweep(connection: Connection) -> int:
            connection.execute("SELECT pg_advisory_xact_lock(?)", (BLOBS,))
            return queries.sweep(connection)

        return await self.writing(sweep)

    async def check_writing(self) -> None:
        """Raise StoreFailed if writing fails now."""
        await self.writing(lambda connection: connection.execute("UPDATE zot_schema SET version = version"))


def _shared(address: str) -> PostgresJournal:
    known = parsed(address)
    with _opening:
        journal = _open.get(known.info)
        if journal is not None:
            journal._users += 1
        else:
            journal = _open[known.info] = PostgresJournal(known)
        return journal
