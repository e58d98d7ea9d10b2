"""The journal: all sessions of one SQLite file, opened once per process, with its reader threads."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from zot.errors import JournalDamaged, NoSuchSession, StoreFailed
from zot.journal import queries
from zot.journal.answers import Clock
from zot.journal.connection import Connection
from zot.journal.lease import SUSPECTED, Leases
from zot.journal.queries import SessionRecord
from zot.journal.record import Record, checked_epoch
from zot.journal.recorded_sessions import SessionJournal, SessionReader
from zot.journal.schema import (
    check_room,
    connect,
    connect_empty,
    connect_read_only,
    explained,
    is_empty,
    is_from_later_version,
    is_there,
    migrate,
    prepare,
    replacement,
    rewrite,
)
from zot.journal.session_store import SessionStore, StoredPast, busy
from zot.journal.writer import Writer
from zot.messages import timestamp

log = logging.getLogger("zot")

T = TypeVar("T")
P = ParamSpec("P")

#: How long closing waits for pending writes, and opening for another process that replaces the file.
CLOSE_S = 5.0
_REPLACE_S = 30.0
_READER_THREADS = 2

_opening = threading.Lock()
_open: dict[str, Journal] = {}
# A forked child must not use the connections of its parent: it opens the file itself.
os.register_at_fork(after_in_child=_open.clear)


class Readers:
    """Threads that read one file, started on demand."""

    def __init__(
        self, path: str, opened: Callable[[str], sqlite3.Connection] = connect, threads: int = _READER_THREADS
    ) -> None:
        self._path = path
        self._connect = opened
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._guard = threading.Lock()
        self._closed = False
        self._connections: list[sqlite3.Connection] = []

    async def run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``action`` with a connection, in one of the threads and in one transaction. Raise StoreFailed."""
        return await asyncio.get_running_loop().run_in_executor(self._thread_pool(), self._perform, action)

    def close(self) -> None:
        """Interrupt the readers and close their connections."""
        with self._guard:
            self._closed = True
            for connection in self._connections:
                connection.interrupt()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        while self._connections:
            connection = self._connections.pop()
            # The interruption lasts until the next statement, and would keep SQLite from tidying up the file on
            # closing. If a reader's exception still holds its statement, it lasts longer: the file is then tidied up
            # later.
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA query_only").fetchall()
            connection.close()

    def _thread_pool(self) -> ThreadPoolExecutor:
        """Return the thread pool. Imported lazily: a new session has nothing to read."""
        with self._guard:
            if self._closed:
                raise StoreFailed(f"the journal {self._path} is closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="zot journal reader")
            return self._pool

    def _perform(self, action: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                return action(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            raise explained(problem, self._path) from problem

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._connect(self._path)
            connection.execute("PRAGMA query_only = ON")
            with self._guard:
                self._connections.append(connection)
        return connection


class ReadOnlyJournal(SessionReader):
    """Read-only access to a journal. Close it after use."""

    def __init__(self, path: str, readers: Readers) -> None:
        super().__init__(path)
        self._readers = readers

    def is_running(self, session: SessionRecord) -> bool:
        """Always False: without write access, leases cannot be tested."""
        del session
        return False

    async def reading(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return ``query(connection, *args, **kwargs)``, in another thread and read-only. Raise StoreFailed."""
        return await self._readers.run(lambda connection: query(connection, *args, **kwargs))

    async def close(self) -> None:
        """Close the file."""
        await asyncio.to_thread(self._readers.close)


def can_be_written(path: str) -> bool:
    """True if a journal can be opened for writing."""
    lock = f"{path}.lock"
    needed = [path, os.path.dirname(path) or ".", *([lock] if os.path.exists(lock) else [])]
    return all(os.access(file, os.W_OK) for file in needed)


async def open_read_only(path: str) -> ReadOnlyJournal:
    """Open an existing journal read-only; a damaged one is not salvaged. Raise StoreFailed."""
    found = ReadOnlyJournal(path, Readers(path, connect_read_only, threads=1))
    try:
        if await found.reading(is_from_later_version):
            raise StoreFailed(f"{path} was written by a later zot: update zot")
        if not await found.reading(is_empty):
            return found
    except BaseException:
        await found.close()
        raise
    await found.close()
    return ReadOnlyJournal(path, Readers(path, connect_empty, threads=1))


class Journal(ReadOnlyJournal, SessionJournal):
    """Sessions in an SQLite file. Made by `open`. Blocking work is done in other threads."""

    writer: Writer

    def __init__(self, path: str) -> None:
        SessionJournal.__init__(self, path)
        self.clock = Clock()
        self._users = 1
        self._replaced = 0
        prepare(path)
        self.leases = Leases(f"{path}.lock")
        try:
            self._join()
            self._start()
        except BaseException:
            self.leases.close()
            raise

    @classmethod
    async def open(cls, path: str | os.PathLike[str]) -> Journal:
        """Open the journal, creating it if needed; close it as often as it was opened. A damaged file is salvaged
        first.

        Raise StoreFailed.
        """
        if (shared := _already_open(os.fspath(path))) is not None:
            return shared
        opening: Future[Journal] = Future()
        # Not the loop's thread pool: importing that would delay start-up.
        threading.Thread(target=_open_for, args=(os.fspath(path), opening), name="zot journal opening").start()
        try:
            return await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_give_back)
            raise

    async def close(self) -> None:
        """Write pending rows, for at most 5 s, and close the file unless others in this process have it open."""
        if self._drop_user():
            await asyncio.to_thread(self._close_file)

    async def record(self, session_id: str, *, cwd: str = "", create: bool = True) -> Record:
        """Return the record of a session, creating it if ``create``; else raise NoSuchSession if there is none."""

        def find(connection: Connection) -> tuple[SessionRecord, int, bool]:
            session = queries.find(connection, session_id)
            is_new = session is None
            if session is None and create:
                session = queries.create(connection, session_id, cwd=cwd, title="", now=timestamp())
            if session is None:
                raise NoSuchSession(f"there is no session {session_id!r}")
            last = queries.last_seq(connection, session.number)
            if not self.leases.acquire(session.number):
                return session, last, is_new  # The holder of the lease has checked it.
            try:
                epoch = checked_epoch(connection, session, self, last)
                return msgspec.structs.replace(session, epoch=epoch), last, is_new
            finally:
                self.leases.release(session.number)

        return Record(self, *await self.writing(find))

    async def resume(self, session_id: str, *, cwd: str = "", create: bool = True) -> tuple[Record, StoredPast]:
        """Return the record of a session and its past. Damage found on the way is repaired: see `notices`."""
        file = self._replaced
        try:
            self._check_unsuspected()
            record = await self.record(session_id, cwd=cwd, create=create)
            return record, await record.past()
        except JournalDamaged as problem:
            await asyncio.to_thread(self._replace, problem, file)
        record = await self.record(session_id, cwd=cwd, create=create)
        return record, await record.past()

    async def discard(self, record: SessionStore) -> None:
        """Delete a session that this record created, unless it has been used since."""

        def remove(connection: Connection) -> None:
            session = queries.find(connection, record.id)
            if session is None or session.number != record.number or not self.leases.acquire(session.number):
                return
            try:
                if not session.title and not queries.last_seq(connection, session.number):
                    queries.delete(connection, session.number)
                    self.leases.mark_deleted(session.number)
            finally:
                self.leases.release(session.number)

        if record.is_new:
            await self.writing(remove)

    def version(self, connection: Connection) -> int:
        """Return a number that changes when another connection writes."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    async def left_behind(self) -> list[str]:
        """Return the sessions whose newest run has no end because its process crashed or parked it.

        The list may include a session whose run ends in another process at this moment.
        """
        # Through the writer: after the pending rows of runs that ended here.
        marked = await self.writing(queries.owned)
        return [session.id for session in marked if not self.leases.is_taken(session.number)]

    def is_running(self, session: SessionRecord) -> bool:
        """True if a process runs a session, here or elsewhere."""
        return self.leases.is_taken(session.number)

    def is_run_here(self, session: SessionRecord) -> bool:
        """True if this process runs a session."""
        return session.number in self.leases.held

    def has_lost(self, session: SessionRecord, last: int) -> bool:
        """True if an idle session ends with row ``last``, but its mark in the lock file shows more, or that it was
        deleted."""
        number = session.number
        is_behind = self.leases.marked(number) > last or self.leases.is_deleted(number)
        return is_behind and session.owner is None and not self.leases.is_taken(number)

    async def delete(self, session_id: str) -> SessionRecord:
        """Delete a session for good; return its record. Raise NoSuchSession, SessionBusy while it runs."""

        def remove(connection: Connection) -> SessionRecord:
            session = queries.get(connection, session_id)
            if not self.leases.acquire(session.number):
                raise busy(session)
            try:
                queries.delete(connection, session.number)
                # Before the commit: a session that disappears without this mark counts as lost.
                self.leases.mark_deleted(session.number)
            finally:
                self.leases.release(session.number)
            return session

        return await self.writing(remove)

    async def collect(self) -> int:
        """Delete unreferenced blobs and shrink the file; return how many blobs were deleted."""
        removed = await self.writing(queries.sweep)
        await self.writer.callbacks.mirror(self.writer.run(_shrink, bare=True))
        return removed

    async def acknowledge(self) -> None:
        """Accept the known losses: missing sessions, and rows missing at the end of others. Raise StoreFailed."""

        def accept(connection: Connection) -> None:
            sessions = queries.listed(connection)
            for session in sessions:
                last = queries.last_seq(connection, session.number)
                if self.leases.marked(session.number) > last and self.leases.acquire(session.number):
                    try:
                        checked_epoch(connection, session, self, last)
                    finally:
                        self.leases.release(session.number)
            queries.acknowledge(connection)
            present = {session.number for session in sessions}
            for number in range(1, self.leases.highest + 1):
                if number not in present and self.leases.marked(number):
                    self.leases.mark_deleted(number)

        await self.writing(accept)

    async def salvage(self, problem: JournalDamaged) -> None:
        """Replace the file, in which ``problem`` was met, by its readable contents: see `notices`.

        Raise StoreFailed while another process uses it, or a session runs in this one.
        """
        await asyncio.to_thread(self._replace, problem, self._replaced)

    async def reading(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return ``query(connection, *args, **kwargs)``, in another thread and read-only."""
        try:
            return await super().reading(query, *args, **kwargs)
        except JournalDamaged as problem:
            self.suspect(problem)
            raise

    async def writing(
        self, action: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return ``action(connection, *args, **kwargs)``, in a transaction after everything queued before.

        It runs in the writer's thread and completes even if the caller is cancelled.
        """
        return await self._written(lambda connection: action(connection, *args, **kwargs), durable=False)

    async def writing_durably(
        self, action: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do as `writing` does; the result survives a loss of power."""
        return await self._written(lambda connection: action(connection, *args, **kwargs), durable=True)

    async def _written(self, action: Callable[[sqlite3.Connection], T], *, durable: bool) -> T:
        try:
            return await self.writer.callbacks.mirror(self.writer.run(action, durable=durable))
        except JournalDamaged as problem:
            self.suspect(problem)
            raise

    async def check_writing(self) -> None:
        """Raise StoreFailed if writing fails now, or would go to a file that was removed."""

        def write(connection: Connection) -> None:
            self.writer.check_file()
            rewrite(connection)
            check_room(self.path)

        await self.writing(write)

    def suspect(self, problem: BaseException) -> None:
        """If ``problem`` is damage, mark the file: it is salvaged when it is next opened, or a session resumed."""
        if isinstance(problem, JournalDamaged):
            with suppress(StoreFailed):  # The caller is about to raise the damage itself.
                self.leases.mark({SUSPECTED: 1})

    def _check_unsuspected(self) -> None:
        """Raise JournalDamaged if damage was met and no other process uses the file: until then, intact sessions
        stay usable."""
        if self.leases.marked(SUSPECTED) and not self.leases.held and self.leases.own():
            self.leases.share()
            raise JournalDamaged(f"{self.path} was found damaged")

    def note(self, notice: str) -> None:
        """Remember and log a loss."""
        self.notices.append(notice)
        log.warning("%s", notice)

    def _join(self) -> None:
        """Register as a user of the file, once no process replaces it."""
        deadline = time.monotonic() + _REPLACE_S
        while not self.leases.share():
            if time.monotonic() > deadline:
                raise StoreFailed(f"{self.path} is being replaced by another process: wait until it ends")
            time.sleep(0.05)

    def _start(self) -> None:
        try:
            self._finish_salvage()
            try:
                connection = self._look()
            except sqlite3.Error as problem:
                raise explained(problem, self.path) from problem
        except JournalDamaged as problem:
            self._salvage(problem)
            connection = self._look()
        self._readers = Readers(self.path)
        self.writer = Writer(self.path, connection, leases=self.leases, failed=self._fail)

    def _look(self) -> sqlite3.Connection:
        """Return the writer's connection to the file, migrated and superficially checked.

        Raise sqlite3.Error, StoreFailed, JournalDamaged.
        """
        connection = connect(self.path)
        try:
            migrate(connection, self.path)
            queries.listed(connection, limit=1)
            self._check_unsuspected()
            if queries.reserve(connection, self.leases.highest):
                self.note(f"{self.path} lacks sessions that were recorded in it; run: zot sessions check")
        except BaseException:
            connection.close()
            raise
        return connection

    def _finish_salvage(self) -> None:
        """Finish a replacement that a crash interrupted. Raise StoreFailed if other processes use the file."""
        if is_there(replacement(self.path)):
            self._repair(None, f"{self.path} is being replaced by another process: wait until it ends")

    def _salvage(self, problem: StoreFailed) -> None:
        """Replace the file by its readable contents. Raise StoreFailed if other processes use it."""
        self._repair(problem, f"{problem}; but other processes have it open: end them first")

    def _repair(self, problem: StoreFailed | None, if_used: str) -> None:
        """Repair the file while no other process uses it, or raise StoreFailed with the text ``if_used``.

        Without a ``problem``, only finish an interrupted replacement.
        """
        if not self.leases.own():
            raise StoreFailed(if_used) from problem
        from zot.journal import repair  # Imported lazily: repairs are rare.

        notices: list[str] = []
        try:
            if problem is None:
                repair.finish(self.path)
            else:
                if not repair.was_misread(self.path, problem, is_suspected=bool(self.leases.marked(SUSPECTED))):
                    notices = repair.salvage(self.path)
                self.leases.mark({SUSPECTED: 0})
        finally:
            self.leases.share()
        for notice in notices:
            self.note(notice)

    def _replace(self, problem: StoreFailed, file: int) -> None:
        """Stop, salvage the damaged file, and start again.

        ``file`` counts replacements as of the damage: another caller may have replaced the file first.
        """
        with _opening:
            if file != self._replaced:
                return
            self._check_idle(problem)
            self.writer.close(within_s=CLOSE_S)
            self._readers.close()
            try:
                self._check_idle(problem)  # A run may have begun while the writer finished.
                self._salvage(problem)
                self._replaced += 1
            finally:
                self._start()

    def _check_idle(self, problem: StoreFailed) -> None:
        if self.leases.held:
            raise StoreFailed(f"{problem}; but other sessions are running here: wait for them") from problem

    def _drop_user(self) -> bool:
        """Drop one user. True if it was the last."""
        with _opening:
            self._users -= 1
            if self._users == 0:
                _open.pop(self.path, None)
            return self._users == 0

    def _close_file(self) -> None:
        in_time = self.writer.close(within_s=CLOSE_S)
        self._readers.close()
        self.leases.close()
        if not in_time:
            log.error("%s could not be written in time: unwritten rows are lost", self.path)


def _shrink(connection: sqlite3.Connection) -> None:
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _shared(path: str) -> Journal:
    path = os.path.realpath(path)
    with _opening:
        journal = _open.get(path)
        if journal is not None:
            journal._users += 1
        else:
            journal = _open[path] = Journal(path)
        return journal


def _already_open(path: str) -> Journal | None:
    """Return a journal that is open in this process, if that is known without waiting."""
    if not _opening.acquire(blocking=False):
        return None
    try:
        journal = _open.get(path)
        if journal is not None:
            journal._users += 1
        return journal
    finally:
        _opening.release()


def _open_for(path: str, opening: Future[Journal]) -> None:
    try:
        opening.set_result(_shared(path))
    except BaseException as problem:  # The thread's outermost boundary: the opener must get the error.
        opening.set_exception(problem)


def _give_back(opening: Future[Journal]) -> None:
    """Close a journal whose opener was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        journal = opening.result()
        if journal._drop_user():
            threading.Thread(target=journal._close_file, name="zot journal closing").start()
