"""The session pool: many sessions by id, opened on demand and evicted when idle."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from zot.errors import AgentError, DaemonStopping, NoSuchSession, RuntimeBusy, StoreFailed, TooManySessions
from zot.session.history import Subscriber
from zot.session.recovery import WaitingRuns

if TYPE_CHECKING:
    from zot.journal.recorded_sessions import SessionJournal
    from zot.session.session import Session

log = logging.getLogger("zot")

#: The most idle sessions kept loaded, and how long one may stay loaded unused.
RESTING = 256
IDLE_S = 600.0
#: How often idle sessions are looked for, while any are loaded.
_LOOK_S = 5.0
#: Look earlier once the number of sessions has grown by one in this many: not for each one while all are busy.
_SHARE = 8
#: The error message while the pool is stopping.
STOPPING = "the daemon is stopping, so this did not begin; send it to the next daemon"
#: The most session ids in a log line.
_NAMED = 10
#: How long closing a session may take.
_CLOSE_S = 10.0
#: Memory is reclaimed after this many closed sessions, and at the latest after this time.
_RECLAIM_COUNT = 256
_RECLAIM_S = 5.0


class NewSessionSettings(msgspec.Struct, frozen=True):
    """Settings of a new session: its agent, its directory, and whether its policy denies by default."""

    agent: str = "default"
    cwd: str | None = None
    guarded: bool = False


class Channel(Subscriber):
    """The destination of one session's events, whether or not the session is loaded."""

    @abstractmethod
    def opened(self, session: Session) -> None:
        """Take note that the session was loaded."""

    @abstractmethod
    def on_foreign_rows(self, upto: int) -> None:
        """Take note of stored rows up to ``upto`` that were not delivered."""

    @abstractmethod
    def closed(self) -> None:
        """Take note that the session was unloaded."""

    @property
    @abstractmethod
    def is_followed(self) -> bool:
        """True if a client is subscribed."""


#: Opens a session, creating a missing one as wanted. Raises NoSuchSession if it is missing and nothing is wanted.
Opening: TypeAlias = Callable[[str, NewSessionSettings | None], Awaitable["Session"]]


class LoadedSession:
    """A loaded session, and the number of its current users."""

    def __init__(self, session: Session, edition: int, *, closed: bool) -> None:
        self.session = session
        #: Whether a client closed it and none has resumed it: it is loaded for readers only.
        self.closed = closed
        #: The edition of the configuration it was opened with.
        self.edition = edition
        self.users = 0
        self.used = time.monotonic()

    def can_go(self, *, before: float) -> bool:
        """True if it can be evicted: no user, no run, and no process or wait that was used since ``before``."""
        return not self.users and not self.session.worker.busy and (self.session.is_resting or self.used < before)


class _Closing(NamedTuple):
    """A session that is being closed."""

    session: Session
    task: asyncio.Task[None]
    #: Whether a run that waits for an approval stays open in the journal.
    parks: bool


class PoolLimits(msgspec.Struct, frozen=True):
    """Limits of a `SessionPool`: sessions ``loaded`` at once, 0 for no limit; unused ones kept, and for how long."""

    loaded: int = 0
    resting: int = RESTING
    idle_s: float = IDLE_S


class SessionPool:
    """The sessions of one process. `use` keeps one loaded while it is needed."""

    def __init__(
        self,
        opening: Opening,
        channel: Callable[[str], Channel],
        journal: SessionJournal,
        *,
        limits: PoolLimits | None = None,
        own_process: bool = False,
        resumes: bool = True,
    ) -> None:
        """``journal`` keeps which sessions are closed. Unless it ``resumes`` them, runs of dead processes are left to
        others.

        Memory is reclaimed only in our ``own_process``: in an embedding program that would take as long as its heap is
        large.
        """
        self._opening = opening
        self._make_channel = channel
        self._journal = journal
        self.limits = limits or PoolLimits()
        self._own_process = own_process
        self._waiting_runs = WaitingRuns.RESUME if resumes else WaitingRuns.IGNORE
        self._channels: dict[str, Channel] = {}
        #: Ordered by last use, the newest at the end.
        self._live: dict[str, LoadedSession] = {}
        self._loading: dict[str, asyncio.Task[LoadedSession]] = {}
        #: The number of sessions being opened.
        self._opened = 0
        self._closing: dict[str, _Closing] = {}
        #: Closed sessions whose mark is not in the journal yet, or could not be written.
        self._closed_ids: set[str] = set()
        #: The number of closed sessions whose memory has not been reclaimed, and the timer for that.
        self._unreclaimed = 0
        self._reclaim_timer: asyncio.TimerHandle | None = None
        #: The current edition of the configuration; each reload increments it.
        self._edition = 0
        self._evict_timer: asyncio.TimerHandle | None = None
        #: The number of loaded sessions at which idle ones are evicted.
        self._evict_at = self.limits.resting + 1
        #: Whether new runs are refused.
        self._is_stopping = False
        self._closed = False

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of loaded sessions, except deleted ones, and closed ones that are only being read."""
        return tuple(
            session_id
            for session_id, live in self._live.items()
            if not live.session.store.is_broken and not self._is_closed(session_id, live)
        )

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All loaded sessions."""
        return tuple(live.session for live in self._live.values())

    @property
    def _is_full(self) -> bool:
        return 0 < self.limits.loaded <= len(self._live) + self._opened

    def session(self, session_id: str) -> Session | None:
        """Return a loaded session, or None. It may be evicted at the next await: `use` it to keep it."""
        live = self._live.get(session_id)
        return None if live is None else live.session

    @asynccontextmanager
    async def closing(self, session_id: str) -> AsyncIterator[None]:
        """Mark a session as closed unless the block fails. It can only be read until a `use` with ``wanted`` resumes
        it. The journal keeps the mark from the end of the block on.
        """
        self._closed_ids.add(session_id)
        try:
            yield
        except BaseException:
            self._closed_ids.discard(session_id)
            raise
        try:
            await self._journal.mark_closed(session_id, closed=True)
        except StoreFailed as problem:  # As on a full disk. This daemon remembers it.
            log.warning("session %r is closed, but that was not recorded: %s", session_id, problem)
            return
        if (live := self._live.get(session_id)) is not None:
            live.closed = session_id in self._closed_ids  # False if it was resumed meanwhile.
        self._closed_ids.discard(session_id)

    async def _resume(self, session_id: str, live: LoadedSession) -> None:
        """Remove the mark of a closed session."""
        if not live.closed and session_id not in self._closed_ids:
            return
        live.closed = False
        self._closed_ids.discard(session_id)
        try:
            await self._journal.mark_closed(session_id, closed=False)
        except StoreFailed as problem:
            log.warning("session %r is resumed, but that was not recorded: %s", session_id, problem)

    async def check_not_closed(self, session_id: str) -> None:
        """Raise NoSuchSession if a session was closed and not resumed."""
        if await self.is_closed(session_id):
            raise NoSuchSession(f"session {session_id!r} is closed; session/new resumes it")

    async def is_closed(self, session_id: str) -> bool:
        """True if a session was closed and not resumed."""
        if (live := self._live.get(session_id)) is not None:
            return self._is_closed(session_id, live)
        return session_id in self._closed_ids or await self._journal.is_closed(session_id)

    def _is_closed(self, session_id: str, live: LoadedSession) -> bool:
        # A run of a dead process that waits for an approval is taken up even in a closed session: it must be answered.
        return (live.closed or session_id in self._closed_ids) and not live.session.worker.busy

    def ending(self, session_id: str) -> Session | None:
        """Return a session that is loaded or being closed: its run may not have ended yet."""
        closing = self._closing.get(session_id)
        return self.session(session_id) if closing is None else closing.session

    def is_ended(self, session_id: str) -> bool:
        """True if a session is being closed without parking: its run ends now even if it waits for an approval."""
        closing = self._closing.get(session_id)
        return closing is not None and not closing.parks

    def when_ended(self, session_id: str, call: Callable[[], None]) -> None:
        """Call ``call`` once a session that is being closed has ended; never if none is."""
        if (closing := self._closing.get(session_id)) is not None:
            closing.task.add_done_callback(lambda _: call())

    def is_loading(self, session_id: str) -> bool:
        """True while a session is being loaded."""
        return session_id in self._loading

    def channel(self, session_id: str) -> Channel:
        """Return the channel of a session, creating it if needed."""
        channel = self._channels.get(session_id)
        if channel is None:
            self._drop_unused_channels()
            channel = self._channels[session_id] = self._make_channel(session_id)
        return channel

    @asynccontextmanager
    async def use(
        self, session_id: str, wanted: NewSessionSettings | None = None, *, looks: bool = False
    ) -> AsyncIterator[Session]:
        """Yield a session and keep it loaded meanwhile. Raise NoSuchSession, TooManySessions, ConfigError, StoreFailed.

        ``wanted`` creates a missing session and resumes a closed one; without it a closed one is not found. ``looks``
        is for readers: it ignores the limit and finds closed sessions, too.
        """
        live = await self._get(session_id, wanted, looks)
        live.users += 1
        try:
            if wanted is not None:
                await self._resume(session_id, live)
            yield live.session
        finally:
            live.users -= 1
            live.used = time.monotonic()
            if session_id in self._live:
                self._live[session_id] = self._live.pop(session_id)
            if len(self._live) >= self._evict_at:
                self._evict()

    async def let_go(self, session_id: str, *, parks: bool = False) -> bool:
        """Close and unload a session; its rows stay. False if it is not loaded."""
        if (loading := self._loading.get(session_id)) is not None:
            await asyncio.wait({loading})
        if (closing := self._closing.get(session_id)) is not None:
            await asyncio.wait({closing.task})
        if session_id not in self._live:
            return False
        await asyncio.wait({self._start_closing(session_id, parks=parks)})
        return True

    async def recover(self, session_id: str) -> None:
        """Recover a run that a dead process left: end it, or resume it if it waits for an approval. Raise like
        `use`."""
        live = self._live.get(session_id)
        async with self.use(session_id, looks=True) as session:
            if live is not None and live.session is session:  # Loading has just recovered any other.
                await session.worker.recover(self._waiting_runs)

    async def recover_all(self, session_ids: Iterable[str]) -> None:
        """Recover many sessions; log failures and continue with the next."""
        for session_id in session_ids:
            try:
                await self.recover(session_id)
            except AgentError as problem:
                log.warning("session %r could not be recovered: %s", session_id, problem)
            except Exception:  # An unexpected error must not stop the others.
                log.exception("session %r could not be recovered", session_id)

    async def reopen(self, session_id: str) -> None:
        """Close a session and open it with its current settings. Raise RuntimeBusy while it runs, and like `use`."""
        live = self._live.get(session_id)
        if live is not None:
            if live.session.worker.busy:
                raise RuntimeBusy("a prompt or compact has begun meanwhile; this holds when the session is opened next")
            await asyncio.wait({self._start_closing(session_id)})
        async with self.use(session_id):
            pass

    async def refresh(self, session_id: str, last_seq: int, epoch: int) -> None:
        """Unload an idle session if other processes added rows up to ``last_seq``, or replaced it, as ``epoch``
        shows."""
        live = self._live.get(session_id)
        if live is None or not live.can_go(before=0.0 if live.session.epoch == epoch else math.inf):
            return
        if live.session.epoch != epoch or live.session.store.last_seq < last_seq:
            await asyncio.wait({self._start_closing(session_id)})

    def renew(self) -> None:
        """Apply a reloaded configuration: unload idle sessions; busy ones keep their settings until they are idle,
        and are logged."""
        self._edition += 1
        kept = [session_id for session_id, live in self._live.items() if not live.can_go(before=0.0)]
        for session_id in self._live.keys() - kept:
            self._start_closing(session_id)
        if kept:
            names = ", ".join(map(repr, kept[:_NAMED])) + (", ..." if len(kept) > _NAMED else "")
            log.info("%d sessions are busy and keep their settings until they are idle: %s", len(kept), names)

    def check_open(self) -> None:
        """Raise DaemonStopping if no new run may begin."""
        if self._is_stopping:
            raise DaemonStopping(STOPPING)

    def stop(self) -> None:
        """Refuse new runs and drop queued ones; running ones continue. Idempotent."""
        self._is_stopping = True
        for session_id, live in self._live.items():
            if waiting := len(live.session.queue):
                log.warning(
                    "session %r: %d queued prompts will not run, because the daemon is stopping", session_id, waiting
                )
            live.session.queue.drop_prompts(DaemonStopping(STOPPING))

    def resume(self) -> None:
        """Allow new runs again. Dropped ones stay dropped."""
        self._is_stopping = False

    async def close(self) -> None:
        """Close all sessions. A run that waits for an approval stays open in the journal."""
        self.stop()
        self._closed = True
        for timer in (self._evict_timer, self._reclaim_timer):
            if timer is not None:
                timer.cancel()
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        for session_id in list(self._live):
            self._start_closing(session_id, parks=True)
        if self._closing:
            await asyncio.wait([one.task for one in self._closing.values()])

    async def _get(self, session_id: str, wanted: NewSessionSettings | None, looks: bool) -> LoadedSession:
        while True:
            if self._closed:
                raise DaemonStopping(STOPPING)
            if wanted is None and not looks:
                await self.check_not_closed(session_id)
            if (live := self._live.get(session_id)) is not None:
                if not self._must_reopen(live):
                    return live
                self._start_closing(session_id)
            if (closing := self._closing.get(session_id)) is not None:
                await asyncio.wait({closing.task})
                continue
            loading = self._loading.get(session_id)
            if loading is None:
                loading = asyncio.get_running_loop().create_task(
                    self._load(session_id, wanted, looks), name="zot loading"
                )
                self._loading[session_id] = loading
                loading.add_done_callback(lambda _: self._loading.pop(session_id, None))
                await asyncio.shield(loading)  # Loop: it may be unloaded again by now.
            else:
                await asyncio.wait({loading})  # Loop even if that fails: we may want other settings.

    def _must_reopen(self, live: LoadedSession) -> bool:
        """True if a session must be opened anew and can be closed now."""
        if live.session.store.is_broken:  # It was deleted, or failed to store rows, as on a full disk.
            return not live.session.worker.busy and not live.users
        return live.edition != self._edition and live.can_go(before=0.0)

    async def _load(self, session_id: str, wanted: NewSessionSettings | None, looks: bool) -> LoadedSession:
        if len(self._live) >= self.limits.resting or self._is_full:
            self._evict(more=1)
        if self._is_full and not looks:
            raise TooManySessions(f"{self.limits.loaded} sessions are in use already; close one, or wait")
        self._opened += 1
        edition = self._edition
        try:
            session = await self._opening(session_id, wanted)
            try:
                closed = await self._journal.is_closed(session_id)
            except BaseException:
                await session.close()
                raise
        finally:
            self._opened -= 1
        channel = self.channel(session_id)
        channel.opened(session)
        session.history.subscribe(channel)
        session.history.on_foreign_rows = channel.on_foreign_rows
        live = self._live[session_id] = LoadedSession(session, edition, closed=closed)
        self._look_later()
        return live

    def _start_closing(self, session_id: str, *, parks: bool = False) -> asyncio.Task[None]:
        live = self._live.pop(session_id)
        closing = asyncio.get_running_loop().create_task(self._close(session_id, live, parks), name="zot closing")
        self._closing[session_id] = _Closing(live.session, closing, parks)
        closing.add_done_callback(lambda _: self._closing.pop(session_id, None))
        return closing

    async def _close(self, session_id: str, live: LoadedSession, parks: bool) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await live.session.close(parks=parks, why=DaemonStopping(STOPPING) if self._closed else None)
        except TimeoutError:
            log.warning("session %r could not be closed within %g s", session_id, _CLOSE_S)
        except AgentError as problem:
            log.warning("session %r could not be closed: %s", session_id, problem)
        except Exception:  # Other sessions must not be affected.
            log.exception("session %r could not be closed", session_id)
        self.channel(session_id).closed()
        self._reclaim_later()

    def _evict(self, *, more: int = 0) -> None:
        """Evict the least recently used idle sessions, as far as there are too many or ``more`` need room."""
        before = time.monotonic() - self.limits.idle_s
        idle = [session_id for session_id, live in self._live.items() if live.can_go(before=before)]
        over = max(len(idle) - self.limits.resting, sum(self._live[session_id].used < before for session_id in idle))
        if self.limits.loaded:
            over = max(over, len(self._live) + self._opened + more - self.limits.loaded)
        for session_id in idle[: max(0, over)]:
            self._start_closing(session_id)
        self._evict_at = max(self.limits.resting, len(self._live)) + len(self._live) // _SHARE + 1

    def _look_later(self) -> None:
        if self._evict_timer is None and not self._closed:
            soon = len(self._live) > self.limits.resting
            self._evict_timer = asyncio.get_running_loop().call_later(
                _LOOK_S if soon else max(_LOOK_S, self.limits.idle_s / 4), self._look
            )

    def _look(self) -> None:
        self._evict_timer = None
        self._evict()
        if self._live:
            self._look_later()

    def _reclaim_later(self) -> None:
        """Schedule `_reclaim` for many closed sessions at once: it visits every object."""
        self._unreclaimed += 1
        if self._closed or not self._own_process:
            return
        loop = asyncio.get_running_loop()
        if self._reclaim_timer is None:
            self._reclaim_timer = loop.call_later(_RECLAIM_S, self._reclaim)
        elif self._unreclaimed == _RECLAIM_COUNT:
            self._reclaim_timer.cancel()
            self._reclaim_timer = loop.call_later(0, self._reclaim)

    def _reclaim(self) -> None:
        self._unreclaimed, self._reclaim_timer = 0, None
        reclaim_memory()

    def _drop_unused_channels(self) -> None:
        if len(self._channels) % 256 == 255:
            for session_id in [one for one, channel in self._channels.items() if not channel.is_followed]:
                if not any(session_id in known for known in (self._live, self._loading, self._closing)):
                    del self._channels[session_id]


def reclaim_memory() -> None:
    """Collect cyclic garbage, such as the parts of a session, and return freed memory to the system.

    The collector alone would keep old objects for minutes, and glibc keeps freed memory.
    """
    gc.collect()
    if sys.platform == "linux":
        import ctypes  # Imported lazily: only glibc has it.

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Exists only in glibc.
        if trim is not None:
            trim(0)
