"""The writer of an SQLite file."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from zot.errors import StoreFailed, UnmarkedRows
from zot.journal.chunks import join
from zot.journal.lease import Leases
from zot.journal.queries import SessionSummary, add_uses, insert_chunks, update_summaries
from zot.journal.schema import explained
from zot.journal.writer_thread import Append, Task, WriterThread, starts
from zot.messages import timestamp

log = logging.getLogger("zot")

#: The most items in one transaction, so that the first are not delayed by later ones.
_MAX_GROUP = 4096


def insert(connection: sqlite3.Connection, appends: Sequence[Append]) -> None:
    """Write ``appends`` inside a transaction, with one update of each session's summary row."""
    insert_chunks(connection, join([chunk for append in appends for chunk in append.chunks]))
    summaries: dict[int, SessionSummary] = {}
    for append in appends:
        number = append.sender.number
        if append.blobs:
            connection.executemany("INSERT OR IGNORE INTO blobs (hash, data) VALUES (?, ?)", append.blobs.items())
            add_uses(connection, number, append.chunks[0].first, append.blobs)
        if append.summary is not None:
            summaries.setdefault(number, SessionSummary()).extend(append.summary)
    update_summaries(connection, summaries, timestamp())


class Writer(WriterThread):
    """Writes to one file, from one thread, in the order of the queue."""

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        *,
        leases: Leases,
        failed: Callable[[StoreFailed], None] = lambda _: None,
    ) -> None:
        """Take over ``connection``.

        ``leases`` gets the newest stored row of each session, before the senders are notified. ``failed`` is called in
        the writer's thread if that ends without `close`.
        """
        super().__init__(path, failed=failed)
        self._leases = leases
        self._connection = connection
        self._file = os.stat(path)
        #: Whether commits since the last sync may still be in memory only.
        self._is_unsynced = False
        self._thread.start()

    def _disconnect(self) -> None:
        self._connection.close()

    def sync(self) -> Future[None]:
        """Make everything queued before survive a loss of power. Free if nothing is unsynced."""
        return self.run(lambda _: self._sync(), bare=True)

    def _take(self) -> list[Append | Task]:
        """Take the next group: items that share a transaction, or one that must run alone."""
        group, about = [self._queue.popleft()], set[int]()
        if _can_share(group[0], about):
            while self._queue and len(group) < _MAX_GROUP and _can_share(self._queue[0], about):
                group.append(self._queue.popleft())
        return group

    def _work(self, group: Sequence[Append | Task]) -> None:
        tasks = [one for one in group if isinstance(one, Task)]
        if len(group) == len(tasks) == 1:
            self._perform(tasks[0])
        elif tasks:
            self._commit_group(group)
        else:
            appends = [one for one in group if isinstance(one, Append)]
            self._commit([append for append in appends if append.sender.broken is None])

    def _perform(self, task: Task) -> None:
        if not task.future.set_running_or_notify_cancel():
            return
        try:
            if task.bare:
                result = task.action(self._connection)
            else:
                with self._durably(task.durable), _Transaction(self._connection):
                    result = task.action(self._connection)
        except sqlite3.Error as problem:
            task.future.set_exception(explained(problem, self._path))
        except Exception as problem:  # Raised where the future is awaited.
            task.future.set_exception(problem)
        else:
            task.future.set_result(result)

    def _commit_group(self, group: Sequence[Append | Task]) -> None:
        """Process a group in one transaction, in order: many sessions then share one sync.

        A failing task fails alone; if the transaction fails, nothing of the group has happened.
        """
        written: list[Append] = []
        done: list[tuple[Task, Any, Exception | None]] = []
        durable = any(one.durable for one in group)
        try:
            with self._durably(durable), _Transaction(self._connection):
                for is_task, some in groupby(group, lambda one: isinstance(one, Task)):
                    if is_task:
                        done += [self._try_task(task) for task in some if isinstance(task, Task) and starts(task)]
                    else:
                        appends = [one for one in some if isinstance(one, Append) and one.sender.broken is None]
                        written += appends
                        insert(self._connection, appends)
            self._written(written)
        except (sqlite3.Error, StoreFailed) as problem:
            failure = problem if isinstance(problem, StoreFailed) else explained(problem, self._path)
            self._fail(written, failure)
            for task in group:
                if isinstance(task, Task) and not task.future.done():
                    task.future.set_exception(failure)
        else:
            self._notify_stored(written)
            for task, result, refusal in done:
                if refusal is None:
                    task.future.set_result(result)
                else:
                    task.future.set_exception(refusal)

    def _try_task(self, task: Task) -> tuple[Task, Any, Exception | None]:
        """Run a task inside a transaction: all of it, or nothing. Raise sqlite3.Error if the transaction is lost."""
        if not task.plain:
            self._connection.execute("SAVEPOINT task")
        try:
            outcome: tuple[Task, Any, Exception | None] = task, task.action(self._connection), None
        except Exception as problem:  # Raised where the future is awaited.
            if isinstance(problem, sqlite3.Error) and not self._connection.in_transaction:
                raise  # SQLite has rolled back: what followed would be written without a transaction.
            if not task.plain:
                self._connection.execute("ROLLBACK TO task")
            refusal = explained(problem, self._path) if isinstance(problem, sqlite3.Error) else problem
            outcome = task, None, refusal
        if not task.plain:
            self._connection.execute("RELEASE task")
        return outcome

    @contextmanager
    def _durably(self, durable: bool) -> Iterator[None]:
        """Sync at the end of a transaction if ``durable``, with everything before it."""
        if not durable:
            self._is_unsynced = True
            yield
            return
        self._connection.execute("PRAGMA synchronous = FULL")
        try:
            yield
            self._is_unsynced = False
        finally:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _sync(self) -> None:
        """Sync the write-ahead file. Without one, SQLite has synced each transaction."""
        if not self._is_unsynced:
            return
        ahead = f"{self._path}-wal"
        try:
            descriptor = os.open(ahead, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as problem:
            raise _unsynced(ahead, problem) from problem
        try:
            os.fsync(descriptor)
        except OSError as problem:
            raise _unsynced(ahead, problem) from problem
        finally:
            os.close(descriptor)
        self._is_unsynced = False

    def _commit(self, appends: Sequence[Append]) -> None:
        if not appends:
            return
        try:
            with self._durably(any(append.durable for append in appends)):
                if len(appends) == 1 and appends[0].is_plain:
                    # The usual case, in one call: each call releases the interpreter lock and may wait for it
                    # afterwards.
                    insert_chunks(self._connection, appends[0].chunks)
                else:
                    with _Transaction(self._connection):
                        insert(self._connection, appends)
            self._written(appends)
        except (sqlite3.Error, StoreFailed) as problem:
            self._fail(appends, problem if isinstance(problem, StoreFailed) else explained(problem, self._path))
        else:
            self._notify_stored(appends)

    def _written(self, appends: Sequence[Append]) -> None:
        """Mark rows as stored, after checking that the file is still in place. Raise StoreFailed."""
        self.check_file()
        try:
            self._leases.mark({append.sender.number: append.last for append in appends})
        except UnmarkedRows as problem:  # The rows are safe, but a later loss of them could go unnoticed.
            log.warning("%s", problem)

    def check_file(self) -> None:
        """Raise StoreFailed if the path no longer names our file."""
        try:
            is_there = os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            is_there = False
        if not is_there:
            raise StoreFailed(f"{self._path} was removed or replaced while it was in use: restart zot")


class _Transaction:
    """A transaction that is committed, or rolled back after an exception."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            # After some errors SQLite has rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _unsynced(path: str, problem: OSError) -> StoreFailed:
    return StoreFailed(f"{path} cannot be synced ({problem.strerror}): check the disk and its limits, then resume")


def _can_share(work: Append | Task, about: set[int]) -> bool:
    """True if the item can share a transaction with tasks of the sessions ``about``; then add its session to them."""
    if not isinstance(work, Task):
        return True
    if work.bare or work.session in about:
        return False
    if work.session:
        about.add(work.session)
    return True
