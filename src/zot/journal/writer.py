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
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from zot.errors import StoreFailed, UnmarkedRows
from zot.journal.chunks import Chunk, join
from zot.journal.queries import Summary, insert_chunks, summed_up, used
from zot.journal.schema import explained
from zot.messages import timestamp


class Sender(Protocol):
    """A store, as the writer sees it. Its methods are called in the thread of its loop."""

    loop: asyncio.AbstractEventLoop
    number: int
    #: Set and read by the writer only: rows behind a hole are never written.
    broken: StoreFailed | None

    def on_safe(self, seq: int, size: int) -> None:
        """Rows are safe, up to ``seq``; they took ``size`` bytes."""

    def on_failed(self, problem: StoreFailed) -> None:
        """Rows could not be made safe."""


class Parcel(msgspec.Struct):
    """One append, on its way. ``summary`` has what it changes of what is known of the session.

    ``durable``: it is not safe before the disk has it, so that it survives a loss of power.
    """

    sender: Sender
    chunks: list[Chunk]
    blobs: dict[bytes, bytes]
    summary: Summary | None
    last: int
    size: int
    durable: bool = False

    @property
    def is_plain(self) -> bool:
        """True if it is one chunk and nothing else, as most are."""
        return len(self.chunks) == 1 and not self.blobs and self.summary is None


def insert(connection: sqlite3.Connection, parcels: Sequence[Parcel]) -> None:
    """Write what ``parcels`` have, inside a transaction. What is known of a session is changed once, however many of
    them are its own."""
    insert_chunks(connection, join([chunk for parcel in parcels for chunk in parcel.chunks]))
    summaries: dict[int, Summary] = {}
    for parcel in parcels:
        number = parcel.sender.number
        if parcel.blobs:
            connection.executemany("INSERT OR IGNORE INTO blobs (hash, data) VALUES (?, ?)", parcel.blobs.items())
            used(connection, number, parcel.chunks[0].first, parcel.blobs)
        if parcel.summary is not None:
            summaries.setdefault(number, Summary()).extend(parcel.summary)
    summed_up(connection, summaries, timestamp())


log = logging.getLogger("zot")

T = TypeVar("T")


class Mailboxes:
    """What is to be called in the threads of loops, in order. To wake a loop costs more than most calls, so that is
    done once for all that come before it is awake. Usable from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._calls: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = WeakKeyDictionary()

    def post(self, loop: asyncio.AbstractEventLoop, *calls: Callable[[], None]) -> None:
        """Let ``calls`` be called soon, whatever becomes of each; never, if the loop is closed."""
        with self._guard:
            waiting = self._calls.setdefault(loop, [])
            waiting.extend(calls)
            if len(waiting) > len(calls):
                return  # It is being woken.
        try:
            loop.call_soon_threadsafe(self._empty, loop)
        except RuntimeError:
            self._take(loop)
            log.debug("a loop was closed before it could hear what was done")

    def heard(self, source: Future[T]) -> asyncio.Future[T]:
        """Return a future of the running loop that has what ``source`` has. Whoever cancels it does not end that."""
        loop = asyncio.get_running_loop()
        hearing: asyncio.Future[T] = loop.create_future()
        source.add_done_callback(lambda done: self.post(loop, partial(_settle, hearing, done)))
        return hearing

    def _empty(self, loop: asyncio.AbstractEventLoop) -> None:
        for call in self._take(loop):
            try:
                call()
            except Exception:  # What one cannot bear to hear must not keep the others from it.
                log.exception("unexpected error in who hears what was done")

    def _take(self, loop: asyncio.AbstractEventLoop) -> list[Callable[[], None]]:
        with self._guard:
            return self._calls.pop(loop, [])


def _settle(hearing: asyncio.Future[Any], source: Future[Any]) -> None:
    if hearing.done():
        return  # Nobody waits for it any more.
    if source.cancelled():
        hearing.cancel()
    elif (problem := source.exception()) is not None:
        hearing.set_exception(problem)
    else:
        hearing.set_result(source.result())


#: More than this is left for the next transaction, so that what waits is not kept waiting by what came after it.
_MAX_GROUP = 4096


class Task(msgspec.Struct):
    """Something else to be done with the file, in order with the appends: all of it or nothing.

    ``durable``: it is not done before the disk has it, whatever happens to the machine. ``bare``: it must not be in a
    transaction, and sees to that itself. Of two about the same ``session``,
    whoever waits for the one hears that it is done before the other is begun. ``plain``: what it cannot do it says
    before it changes anything, or leaves nothing wrong behind.
    """

    action: Callable[[sqlite3.Connection], Any]
    future: Future[Any]
    durable: bool = False
    bare: bool = False
    session: int = 0
    plain: bool = False


class Writer:
    """Writes to one file, from one thread, in the order in which things were given to it."""

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        *,
        mark: Callable[[Mapping[int, int]], None],
        failed: Callable[[StoreFailed], None] = lambda _: None,
    ) -> None:
        """``connection`` is the writer's from now on.

        ``mark`` is told, in this thread, up to which row sessions are safe, by number, before anybody else is.
        ``failed`` is called, in this thread, if it ends although nobody closed it.
        """
        self._path = path
        self._mark = mark
        self._failed = failed
        self._connection = connection
        self._file = os.stat(path)
        #: Whether commits since the last sync may still be in memory only.
        self._is_unsynced = False
        self._queue: deque[Parcel | Task] = deque()
        #: What a tick that is not over has brought: the thread does not see it, and takes all of it together.
        self._brought: list[Parcel | Task] = []
        #: How loops hear what was done.
        self.mail = Mailboxes()
        self._guard = threading.Lock()
        #: Held by the thread; whoever brings something lets go of it, once, while the thread has nothing to do.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._is_idle = False
        self._closing = False
        self._dead: StoreFailed | None = None
        self._work_in_hand: list[Parcel | Task] = []
        self._waking: set[asyncio.AbstractEventLoop] = set()
        self._thread = threading.Thread(target=self._live, name="zot journal", daemon=True)
        self._thread.start()

    def post(self, parcel: Parcel) -> None:
        """Take an append, in the thread of its loop. What comes in the same tick goes in one transaction."""
        with self._guard:
            self._check()
            self._brought.append(parcel)
        self._rouse_soon(parcel.sender.loop)

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
        """Do something in the writer's thread, behind what was given before. The future has what it returns.

        In the thread of a ``loop``, it goes in one transaction with what comes in the same tick, if it can.
        """
        future: Future[T] = Future()
        with self._guard:
            self._check()
            self._brought.append(Task(action, future, durable, bare, session, plain))
            if loop is None:
                self._rouse()
        if loop is not None:
            self._rouse_soon(loop)
        return future

    def sync(self) -> Future[None]:
        """Make everything that was given before survive a loss of power. Free if the disk has it already."""
        return self.run(lambda _: self._sync(), bare=True)

    def close(self, *, within_s: float) -> bool:
        """Write what is left and stop. False if that took too long: then it is given up."""
        with self._guard:
            self._closing = True
            self._rouse()
        self._thread.join(within_s)
        if not self._thread.is_alive():
            return True
        self._die(StoreFailed(f"{self._path} could not be written in time, and zot is closing"))
        return False

    def _check(self) -> None:
        if self._dead is not None:
            raise self._dead
        if self._closing:
            raise StoreFailed(f"the journal {self._path} is closed")

    def _rouse_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the thread look at what there is when this tick of the ``loop``, whose thread this is, is over."""
        if loop not in self._waking:
            self._waking.add(loop)
            loop.call_soon(self._wake_up, loop)

    def _wake_up(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waking.discard(loop)
        with self._guard:
            self._rouse()

    def _rouse(self) -> None:
        """Give the thread what was brought, and let it look, if it is not about to do that anyway."""
        self._queue.extend(self._brought)
        self._brought.clear()
        if self._is_idle:
            self._is_idle = False
            self._wake.release()

    def _live(self) -> None:
        try:
            while self._has_work():
                self._work_in_hand = self._take()
                self._work(self._work_in_hand)
                self._work_in_hand = []
        except BaseException as problem:  # the thread's outermost boundary: whoever waits must hear of its end
            log.exception("the journal's writer failed")
            reason = str(problem) or type(problem).__name__
            failure = StoreFailed(f"{self._path} cannot be written any more ({reason}): restart zot and resume")
            self._die(failure)
            self._failed(failure)
        finally:
            self._connection.close()

    def _has_work(self) -> bool:
        """Wait for something to do. False if nothing more will come."""
        while True:
            with self._guard:
                if self._queue or self._closing:
                    return bool(self._queue)
                self._is_idle = True
            self._wake.acquire()

    def _take(self) -> list[Parcel | Task]:
        """Return what comes next and is done together: many, or something that must be done by itself."""
        group, about = [self._queue.popleft()], set[int]()
        if _joins(group[0], about):
            while self._queue and len(group) < _MAX_GROUP and _joins(self._queue[0], about):
                group.append(self._queue.popleft())
        return group

    def _work(self, group: Sequence[Parcel | Task]) -> None:
        tasks = [one for one in group if isinstance(one, Task)]
        if len(group) == len(tasks) == 1:
            self._perform(tasks[0])
        elif tasks:
            self._work_together(group)
        else:
            parcels = [one for one in group if isinstance(one, Parcel)]
            self._commit([parcel for parcel in parcels if parcel.sender.broken is None])

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
        except Exception as problem:  # whoever asked for it hears it
            task.future.set_exception(problem)
        else:
            task.future.set_result(result)

    def _work_together(self, group: Sequence[Parcel | Task]) -> None:
        """Do everything in one transaction, in order: with many sessions, the disk is waited for once for all.

        What a task cannot do costs that task alone; if the file cannot be written, nothing of it has happened.
        """
        written: list[Parcel] = []
        done: list[tuple[Task, Any, Exception | None]] = []
        durable = any(one.durable for one in group)
        try:
            with self._durably(durable), _Transaction(self._connection):
                for is_task, some in groupby(group, lambda one: isinstance(one, Task)):
                    if is_task:
                        done += [self._attempt(task) for task in some if isinstance(task, Task) and _starts(task)]
                    else:
                        parcels = [one for one in some if isinstance(one, Parcel) and one.sender.broken is None]
                        written += parcels
                        insert(self._connection, parcels)
            self._written(written)
        except (sqlite3.Error, StoreFailed) as problem:
            failure = problem if isinstance(problem, StoreFailed) else explained(problem, self._path)
            self._fail(written, failure)
            for task in group:
                if isinstance(task, Task) and not task.future.done():
                    task.future.set_exception(failure)
        else:
            self._tell_safe(written)
            for task, result, refusal in done:
                if refusal is None:
                    task.future.set_result(result)
                else:
                    task.future.set_exception(refusal)

    def _attempt(self, task: Task) -> tuple[Task, Any, Exception | None]:
        """Do a task inside a transaction: all of it, or nothing. Raise sqlite3.Error if the transaction is lost."""
        if not task.plain:
            self._connection.execute("SAVEPOINT task")
        try:
            outcome: tuple[Task, Any, Exception | None] = task, task.action(self._connection), None
        except Exception as problem:  # whoever asked for it hears it
            if isinstance(problem, sqlite3.Error) and not self._connection.in_transaction:
                raise  # SQLite has rolled back everything, and what follows would be written on its own.
            if not task.plain:
                self._connection.execute("ROLLBACK TO task")
            refusal = explained(problem, self._path) if isinstance(problem, sqlite3.Error) else problem
            outcome = task, None, refusal
        if not task.plain:
            self._connection.execute("RELEASE task")
        return outcome

    @contextmanager
    def _durably(self, durable: bool) -> Iterator[None]:
        """Let a transaction end only when the disk has it, and all before it, whatever happens to the machine."""
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
        """Sync what was written ahead. Without a write-ahead file, SQLite has synced each transaction."""
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

    def _commit(self, parcels: Sequence[Parcel]) -> None:
        if not parcels:
            return
        try:
            with self._durably(any(parcel.durable for parcel in parcels)):
                if len(parcels) == 1 and parcels[0].is_plain:
                    # The usual case, in one call: each one that lets go of the interpreter may wait for it afterwards.
                    insert_chunks(self._connection, parcels[0].chunks)
                else:
                    with _Transaction(self._connection):
                        insert(self._connection, parcels)
            self._written(parcels)
        except (sqlite3.Error, StoreFailed) as problem:
            self._fail(parcels, problem if isinstance(problem, StoreFailed) else explained(problem, self._path))
        else:
            self._tell_safe(parcels)

    def _fail(self, parcels: Sequence[Parcel], failure: StoreFailed) -> None:
        for parcel in parcels:
            parcel.sender.broken = failure
        self._tell(parcels, lambda sender, _: sender.on_failed(failure))

    def _written(self, parcels: Sequence[Parcel]) -> None:
        """What was written is safe, if it is where it can be found. Raise StoreFailed."""
        self.check_file()
        try:
            self._mark({parcel.sender.number: parcel.last for parcel in parcels})
        except UnmarkedRows as problem:  # the rows are safe; only a loss of them could go unnoticed
            log.warning("%s", problem)

    def check_file(self) -> None:
        """Raise StoreFailed if what was written is in a file that nobody will find any more."""
        try:
            is_there = os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            is_there = False
        if not is_there:
            raise StoreFailed(f"{self._path} was removed or replaced while it was in use: start zot anew")

    def _die(self, problem: StoreFailed) -> None:
        """Nothing more will be written: say so to everybody who waits."""
        with self._guard:
            self._dead = problem
            left = [*self._work_in_hand, *self._queue, *self._brought]
            self._queue.clear()
            self._brought.clear()
        for task in left:
            # One that was in hand may be done meanwhile, and is running in any case.
            if isinstance(task, Task) and not task.future.done():
                task.future.set_exception(problem)
        self._tell([p for p in left if isinstance(p, Parcel)], lambda sender, _: sender.on_failed(problem))

    def _tell_safe(self, parcels: Sequence[Parcel]) -> None:
        self._tell(parcels, lambda sender, own: sender.on_safe(own[-1].last, sum(parcel.size for parcel in own)))

    def _tell(self, parcels: Sequence[Parcel], what: Callable[[Sender, list[Parcel]], None]) -> None:
        """Call ``what`` for each sender of ``parcels``, in the thread of its loop."""
        by_loop: dict[asyncio.AbstractEventLoop, dict[int, list[Parcel]]] = {}
        for parcel in parcels:
            by_loop.setdefault(parcel.sender.loop, {}).setdefault(id(parcel.sender), []).append(parcel)
        for loop, by_sender in by_loop.items():
            self.mail.post(loop, *(partial(what, own[0].sender, own) for own in by_sender.values()))


class _Transaction:
    """All or nothing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            # SQLite has rolled back already where it could not go on at all.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _unsynced(path: str, problem: OSError) -> StoreFailed:
    return StoreFailed(f"{path} cannot be synced ({problem.strerror}): check the disk and its limits, then resume")


def _joins(work: Parcel | Task, about: set[int]) -> bool:
    """True if it can be done together with tasks that are ``about`` some sessions; then it is about its own, too."""
    if not isinstance(work, Task):
        return True
    if work.bare or work.session in about:
        return False
    if work.session:
        about.add(work.session)
    return True


def _starts(task: Task) -> bool:
    """False if nobody wants it any more."""
    return task.future.set_running_or_notify_cancel()
