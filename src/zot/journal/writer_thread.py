"""The thread that writes to a database: everything queued while it was busy becomes one transaction."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from zot.errors import StoreFailed
from zot.journal.chunks import Chunk
from zot.journal.queries import SessionSummary

if TYPE_CHECKING:
    from zot.journal.session_store import SessionStore

log = logging.getLogger("zot")

T = TypeVar("T")


class Append(msgspec.Struct):
    """One queued append. ``summary`` is its effect on the session's summary row.

    ``durable``: it counts as stored only after a sync, so that it survives a loss of power.
    """

    sender: SessionStore
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
    """Another operation, in order with the appends: all of it or nothing.

    ``durable``: it is done only after a sync. ``bare``: it must run outside of a transaction, or handles its own. Of
    two tasks of one ``session``, the first one's future resolves before the second begins. ``plain``: it raises only
    before it changes anything, or needs no rollback.
    """

    action: Callable[[Any], Any]
    future: Future[Any]
    durable: bool = False
    bare: bool = False
    session: int = 0
    plain: bool = False


class WriterThread(ABC):
    """Writes to one database, from one thread, in the order of the queue."""

    def __init__(self, path: str, *, failed: Callable[[StoreFailed], None] = lambda _: None) -> None:
        """``path`` names the database in errors. ``failed`` is called in the thread if that ends without `close`."""
        self._path = path
        self._failed = failed
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

    @abstractmethod
    def _take(self) -> list[Append | Task]:
        """Take the next group from the queue: items that share a transaction, or one that must run alone."""

    @abstractmethod
    def _work(self, group: Sequence[Append | Task]) -> None:
        """Write a group, and report to the senders and futures in it."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection, at the end of the thread."""

    @abstractmethod
    def sync(self) -> Future[None]:
        """Make everything queued before survive a loss of power."""

    def post(self, append: Append) -> None:
        """Enqueue an append, in the thread of its loop. Appends of one tick share a transaction."""
        with self._guard:
            self._check()
            self._collected.append(append)
        self._wake_after_tick(append.sender.loop)

    def run(
        self,
        action: Callable[[Any], T],
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
            self._disconnect()

    def _has_work(self) -> bool:
        """Wait for work. False if the writer is closed and nothing is queued."""
        while True:
            with self._guard:
                if self._queue or self._closing:
                    return bool(self._queue)
                self._is_idle = True
            self._wake.acquire()

    def _fail(self, appends: Sequence[Append], failure: StoreFailed) -> None:
        for append in appends:
            append.sender.broken = failure
        self._notify(appends, lambda sender, _: sender.on_failed(failure))

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

    def _notify(self, appends: Sequence[Append], call: Callable[[SessionStore, list[Append]], None]) -> None:
        """Call ``call`` for each sender of ``appends``, in the thread of its loop."""
        by_loop: dict[asyncio.AbstractEventLoop, dict[int, list[Append]]] = {}
        for append in appends:
            by_loop.setdefault(append.sender.loop, {}).setdefault(id(append.sender), []).append(append)
        for loop, by_sender in by_loop.items():
            self.callbacks.post(loop, *(partial(call, own[0].sender, own) for own in by_sender.values()))


def starts(task: Task) -> bool:
    """Start the future of a task. False if it was cancelled."""
    return task.future.set_running_or_notify_cancel()
