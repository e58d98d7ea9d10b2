"""The writer thread: everything queued while it was busy becomes one transaction."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from zot.errors import StoreFailed, UnmarkedRows
from zot.journal.chunks import Chunk, join
from zot.journal.queries import SessionSummary, add_uses, insert_chunks, update_summaries
from zot.journal.schema import explained
from zot.messages import timestamp

if TYPE_CHECKING:
    from zot.journal.record import Record

log = logging.getLogger("zot")

T = TypeVar("T")

#: The most items in one transaction, so that the first are not delayed by later ones.
_MAX_GROUP = 4096


class Append(msgspec.Struct):
    """One queued append. ``summary`` is its effect on the session's summary row.

    ``durable``: it counts as stored only after a sync, so that it survives a loss of power.
    """

    sender: Record
    chunks: list[Chunk]
    blobs: dict[bytes, bytes]
    summary: SessionSummary | None
    last: int
    size: int
    durable: bool = False

    @property
    def is_plain(self) -> bool:
        """True if it is a single chunk and nothing else, as most are."""
        return len(self.chunks) == 1 and not self.blobs and self.summary is None


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


class LoopCallbacks:
    """Callbacks to run in the threads of event loops, in order. Usable from any thread.

    Waking a loop costs more than most callbacks, so all that arrive before it is awake share one wake-up.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._calls: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = WeakKeyDictionary()

    def post(self, loop: asyncio.AbstractEventLoop, *calls: Callable[[], None]) -> None:
        """Schedule ``calls`` in the thread of ``loop``; one that raises does not stop the next. Drop them if the
        loop is closed."""
        with self._guard:
            waiting = self._calls.setdefault(loop, [])
            waiting.extend(calls)
            if len(waiting) > len(calls):
                return  # A wake-up is pending.
        try:
            loop.call_soon_threadsafe(self._run_calls, loop)
        except RuntimeError:
            self._take(loop)
            log.debug("an event loop was closed before its callbacks ran")

    def mirror(self, source: Future[T]) -> asyncio.Future[T]:
        """Return a future of the running loop that mirrors ``source``. Cancelling it does not cancel ``source``."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        source.add_done_callback(lambda done: self.post(loop, partial(_copy_result, result, done)))
        return result

    def _run_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        for call in self._take(loop):
            try:
                call()
            except Exception:  # A failing callback must not stop the others.
                log.exception("unexpected error in a callback of the journal's writer")

    def _take(self, loop: asyncio.AbstractEventLoop) -> list[Callable[[], None]]:
        with self._guard:
            return self._calls.pop(loop, [])


def _copy_result(mirror: asyncio.Future[Any], source: Future[Any]) -> None:
    if mirror.done():
        return  # The waiter was cancelled.
    if source.cancelled():
        mirror.cancel()
    elif (problem := source.exception()) is not None:
        mirror.set_exception(problem)
    else:
        mirror.set_result(source.result())


class Task(msgspec.Struct):
    """Another operation on the file, in order with the appends: all of it or nothing.

    ``durable``: it is done only after a sync. ``bare``: it must run outside of a transaction, or handles its own. Of
    two tasks of one ``session``, the first one's future resolves before the second begins. ``plain``: it raises only
    before it changes anything, or needs no rollback.
    """

    action: Callable[[sqlite3.Connection], Any]
    future: Future[Any]
    durable: bool = False
    bare: bool = False
    session: int = 0
    plain: bool = False


class Writer:
    """Writes to one file, from one thread, in the order of the queue."""

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        *,
        mark: Callable[[Mapping[int, int]], None],
        failed: Callable[[StoreFailed], None] = lambda _: None,
    ) -> None:
        """Take over ``connection``.

        ``mark`` is called in the writer's thread with the newest stored row of each session, before the senders are
        notified. ``failed`` is called there if the thread ends without `close`.
        """
        self._path = path
        self._mark = mark
        self._failed = failed
        self._connection = connection
        self._file = os.stat(path)
        #: Whether commits since the last sync may still be in memory only.
        self._is_unsynced = False
        self._queue: deque[Append | Task] = deque()
        #: Items of the current event-loop tick, moved to the queue together when it ends.
        self._collected: list[Append | Task] = []
        self.callbacks = LoopCallbacks()
        self._guard = threading.Lock()
        #: The thread blocks on it while idle; adding work releases it once.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._is_idle = False
        self._closing = False
        self._failure: StoreFailed | None = None
        self._in_hand: list[Append | Task] = []
        self._waking: set[asyncio.AbstractEventLoop] = set()
        self._thread = threading.Thread(target=self._run_thread, name="zot journal", daemon=True)
        self._thread.start()

    def post(self, append: Append) -> None:
        """Enqueue an append, in the thread of its loop. Appends of one tick share a transaction."""
        with self._guard:
            self._check()
            self._collected.append(append)
        self._wake_after_tick(append.sender.loop)

    def run(
        self,
        action: Callable[[sqlite3.Connection], T],
        *,
        durable: bool = False,
        bare: bool = False,
        session: int = 0,
        plain: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Future[T]:
        """Run ``action`` in the writer's thread, after everything queued before. The future has its result.

        Called in the thread of a ``loop``, it shares a transaction with other items of the same tick, if possible.
        """
        future: Future[T] = Future()
        with self._guard:
            self._check()
            self._collected.append(Task(action, future, durable, bare, session, plain))
            if loop is None:
                self._flush()
        if loop is not None:
            self._wake_after_tick(loop)
        return future

    def sync(self) -> Future[None]:
        """Make everything queued before survive a loss of power. Free if nothing is unsynced."""
        return self.run(lambda _: self._sync(), bare=True)

    def close(self, *, within_s: float) -> bool:
        """Write the rest and stop. False if that took too long: then the rest is given up."""
        with self._guard:
            self._closing = True
            self._flush()
        self._thread.join(within_s)
        if not self._thread.is_alive():
            return True
        self._give_up(StoreFailed(f"{self._path} could not be written in time, and zot is closing"))
        return False

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise StoreFailed(f"the journal {self._path} is closed")

    def _wake_after_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the thread when the current tick of ``loop``, in whose thread we are, ends."""
        if loop not in self._waking:
            self._waking.add(loop)
            loop.call_soon(self._on_tick_end, loop)

    def _on_tick_end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waking.discard(loop)
        with self._guard:
            self._flush()

    def _flush(self) -> None:
        """Queue the collected items, and wake the thread if it is idle."""
        self._queue.extend(self._collected)
        self._collected.clear()
        if self._is_idle:
            self._is_idle = False
            self._wake.release()

    def _run_thread(self) -> None:
        try:
            while self._has_work():
                self._in_hand = self._take()
                self._work(self._in_hand)
                self._in_hand = []
        except BaseException as problem:  # The thread's outermost boundary: all waiters must get the error.
            log.exception("the journal's writer failed")
            reason = str(problem) or type(problem).__name__
            failure = StoreFailed(f"{self._path} cannot be written to ({reason}): restart zot and resume")
            self._give_up(failure)
            self._failed(failure)
        finally:
            self._connection.close()

    def _has_work(self) -> bool:
        """Wait for work. False if the writer is closed and nothing is queued."""
        while True:
            with self._guard:
                if self._queue or self._closing:
                    return bool(self._queue)
                self._is_idle = True
            self._wake.acquire()

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
                        done += [self._try_task(task) for task in some if isinstance(task, Task) and _starts(task)]
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

    def _fail(self, appends: Sequence[Append], failure: StoreFailed) -> None:
        for append in appends:
            append.sender.broken = failure
        self._notify(appends, lambda sender, _: sender.on_failed(failure))

    def _written(self, appends: Sequence[Append]) -> None:
        """Mark rows as stored, after checking that the file is still in place. Raise StoreFailed."""
        self.check_file()
        try:
            self._mark({append.sender.number: append.last for append in appends})
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

    def _give_up(self, problem: StoreFailed) -> None:
        """Stop writing and fail every queued item."""
        with self._guard:
            self._failure = problem
            left = [*self._in_hand, *self._queue, *self._collected]
            self._queue.clear()
            self._collected.clear()
        for task in left:
            # A task in hand may have finished meanwhile.
            if isinstance(task, Task) and not task.future.done():
                task.future.set_exception(problem)
        self._notify([p for p in left if isinstance(p, Append)], lambda sender, _: sender.on_failed(problem))

    def _notify_stored(self, appends: Sequence[Append]) -> None:
        self._notify(appends, lambda sender, own: sender.on_safe(own[-1].last, sum(append.size for append in own)))

    def _notify(self, appends: Sequence[Append], call: Callable[[Record, list[Append]], None]) -> None:
        """Call ``call`` for each sender of ``appends``, in the thread of its loop."""
        by_loop: dict[asyncio.AbstractEventLoop, dict[int, list[Append]]] = {}
        for append in appends:
            by_loop.setdefault(append.sender.loop, {}).setdefault(id(append.sender), []).append(append)
        for loop, by_sender in by_loop.items():
            self.callbacks.post(loop, *(partial(call, own[0].sender, own) for own in by_sender.values()))


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


def _starts(task: Task) -> bool:
    """Start the future of a task. False if it was cancelled."""
    return task.future.set_running_or_notify_cancel()
