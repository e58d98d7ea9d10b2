"""The session pool: many sessions by id, opened on demand and evicted when idle."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec

from zot.errors import AgentError, NoSuchSession, RuntimeBusy, Stopping, TooManySessions
from zot.session.history import Subscriber

if TYPE_CHECKING:
    from zot.session.session import Session  # Who is the first to come waits for what is loaded, and wants none yet.

log = logging.getLogger("zot")

#: So many sessions that rest are kept for the next prompt, and none that has not been used for so long.
RESTING = 256
IDLE_S = 600.0
#: How often we look for sessions that have nothing to do any more, while there are any.
_LOOK_S = 5.0
#: We look before that if there are more by one in so many: not for each one, while all are busy.
_SHARE = 8
#: Why nothing begins any more.
STOPPING = "the daemon is stopping, so this was not begun; the next one can be asked"
#: So many are named where there may be many.
_NAMED = 10
#: So many closed sessions are remembered as such, the newest: beyond that a prompt resumes one.
_MAX_CLOSED = 65_536
#: How long a session may take to be let go of.
_CLOSE_S = 10.0
#: The memory of closed sessions is reclaimed once there are so many of them, and at the latest after so long.
_RECLAIM_COUNT = 256
_RECLAIM_S = 5.0


class Wanted(msgspec.Struct, frozen=True):
    """What a session is to be if it is new: whose, where it works, and if it is kept from doing harm by default."""

    agent: str = "default"
    cwd: str | None = None
    guarded: bool = False


class Channel(Subscriber, Protocol):
    """Where the events of one session go, whether or not it is loaded."""

    def opened(self, last_seq: int, epoch: int, *, busy: bool) -> None:
        """The session has been loaded; its newest row has this number. ``busy`` if it is in the middle of a run.

        ``epoch`` tells it from others that had its name.
        """

    def overheard(self, upto: int) -> None:
        """There are rows up to this number that were not delivered."""

    def closed(self) -> None:
        """The session has been let go of."""

    @property
    def is_followed(self) -> bool:
        """True if somebody listens."""


#: Opens a session; one that does not exist is made as wanted. Raise NoSuchSession if nothing is wanted.
Opening: TypeAlias = Callable[[str, Wanted | None], Awaitable["Session"]]


class Live:
    """A session that is loaded, and how many use it at the moment."""

    def __init__(self, session: Session, edition: int) -> None:
        self.session = session
        #: As of which edition of the configuration it works.
        self.edition = edition
        self.users = 0
        self.used = time.monotonic()

    def can_go(self, *, before: float) -> bool:
        """True if nothing would be lost: nobody uses it, and what it has running has not been used since ``before``."""
        return not self.users and not self.session.busy and (self.session.is_resting or self.used < before)


class _Leaving(NamedTuple):
    """A session that is being let go of."""

    session: Session
    task: asyncio.Task[None]
    #: Whether a run that waits for a person waits on, on record.
    parks: bool


class Hub:
    """The sessions of one process. Whoever needs one `use`s it, and it stays for as long."""

    def __init__(
        self,
        opening: Opening,
        channel: Callable[[str], Channel],
        *,
        limit: int = 0,
        resting: int = RESTING,
        idle_s: float = IDLE_S,
        own_process: bool = False,
    ) -> None:
        """``limit`` bounds the sessions that are loaded at once; 0 does not.

        Only in our ``own_process`` memory is reclaimed: in one that embeds us it would take as long as that is large.
        """
        self._opening = opening
        self._make_channel = channel
        self.limit = limit
        self._resting = resting
        self._own_process = own_process
        self.idle_s = idle_s
        self._channels: dict[str, Channel] = {}
        #: The one that was used last stands at the end.
        self._live: dict[str, Live] = {}
        self._loading: dict[str, asyncio.Task[Live]] = {}
        #: How many are being opened, for which there is room.
        self._opened = 0
        self._leaving: dict[str, _Leaving] = {}
        #: The sessions that a client closed and nobody has resumed since, the oldest first.
        self._closed_ids: dict[str, None] = {}
        #: How many sessions have been closed whose memory has not been reclaimed, and when that happens.
        self._unreclaimed = 0
        self._reclaiming: asyncio.TimerHandle | None = None
        #: Which edition of the configuration counts: it grows whenever that is read again.
        self._edition = 0
        self._looking: asyncio.TimerHandle | None = None
        #: With so many that are loaded, we look for some that can go.
        self._tidy_at = resting + 1
        #: Whether nothing new may begin any more.
        self._is_stopping = False
        self._closed = False

    @property
    def ids(self) -> tuple[str, ...]:
        """The sessions that are loaded, except those that were deleted meanwhile, or closed and only read since."""
        return tuple(
            session_id
            for session_id, live in self._live.items()
            if not live.session.is_broken and not self._is_closed(session_id)
        )

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The same, themselves."""
        return tuple(live.session for live in self._live.values())

    @property
    def _is_full(self) -> bool:
        return 0 < self.limit <= len(self._live) + self._opened

    def session(self, session_id: str) -> Session | None:
        """Return a session if it is loaded. Use it at once, or `use` it."""
        live = self._live.get(session_id)
        return None if live is None else live.session

    def mark_closed(self, session_id: str) -> None:
        """Let a session only be read until it is resumed, which is to be used as ``wanted``."""
        self._closed_ids[session_id] = None
        if len(self._closed_ids) > _MAX_CLOSED:
            del self._closed_ids[next(iter(self._closed_ids))]

    def unmark_closed(self, session_id: str) -> None:
        """Let a session be used again."""
        self._closed_ids.pop(session_id, None)

    def check_not_closed(self, session_id: str) -> None:
        """Raise NoSuchSession if a session was closed and has not been resumed."""
        if self._is_closed(session_id):
            raise NoSuchSession(f"session {session_id!r} is closed; session/new resumes it")

    def _is_closed(self, session_id: str) -> bool:
        # A run of a dead process that waits for a person is taken up whoever closed the session: it must be answered.
        session = self.session(session_id)
        return session_id in self._closed_ids and (session is None or not session.busy)

    def ending(self, session_id: str) -> Session | None:
        """Return a session if it is loaded, or being let go of: what it has running has not ended yet."""
        leaving = self._leaving.get(session_id)
        return self.session(session_id) if leaving is None else leaving.session

    def is_ended(self, session_id: str) -> bool:
        """True if what a session has running comes to its end now, also if it waits for a person."""
        leaving = self._leaving.get(session_id)
        return leaving is not None and not leaving.parks

    def when_ended(self, session_id: str, call: Callable[[], None]) -> None:
        """Do something when a session that is being let go of has ended; never, if none is."""
        if (leaving := self._leaving.get(session_id)) is not None:
            leaving.task.add_done_callback(lambda _: call())

    def is_loading(self, session_id: str) -> bool:
        """True if a session is being loaded at the moment."""
        return session_id in self._loading

    def channel(self, session_id: str) -> Channel:
        """Return where a session's events go."""
        channel = self._channels.get(session_id)
        if channel is None:
            self._drop_unused_channels()
            channel = self._channels[session_id] = self._make_channel(session_id)
        return channel

    @asynccontextmanager
    async def use(
        self, session_id: str, wanted: Wanted | None = None, *, looks: bool = False
    ) -> AsyncIterator[Session]:
        """Have a session, and keep it loaded meanwhile. Raise NoSuchSession, TooManySessions, ConfigError, StoreFailed.

        One that does not exist is made as ``wanted``, one that was closed is resumed; otherwise a closed one is not
        found. Who only ``looks`` is let in however many there are, and finds a closed one, too.
        """
        live = await self._get(session_id, wanted, looks)
        if wanted is not None:
            self.unmark_closed(session_id)
        live.users += 1
        try:
            yield live.session
        finally:
            live.users -= 1
            live.used = time.monotonic()
            if session_id in self._live:
                self._live[session_id] = self._live.pop(session_id)
            if len(self._live) >= self._tidy_at:
                self._tidy()

    async def let_go(self, session_id: str, *, parks: bool = False) -> bool:
        """End what a session does and forget it; what it recorded stays. False if it is not loaded."""
        if (loading := self._loading.get(session_id)) is not None:
            await asyncio.wait({loading})
        if (leaving := self._leaving.get(session_id)) is not None:
            await asyncio.wait({leaving.task})
        if session_id not in self._live:
            return False
        await asyncio.wait({self._leave(session_id, parks=parks)})
        return True

    async def take_up(self, session_id: str) -> None:
        """See to a run that a dead process left: it ends, or goes on if it waits for a person. Raise as `use`."""
        live = self._live.get(session_id)
        async with self.use(session_id, looks=True) as session:
            if live is not None and live.session is session:  # One that is only now loaded has been seen to.
                await session.take_up()

    async def take_up_all(self, session_ids: Iterable[str]) -> None:
        """Do so for many: one that cannot be seen to does not keep the others from it."""
        for session_id in session_ids:
            try:
                await self.take_up(session_id)
            except AgentError as problem:
                log.warning("session %r could not be mended: %s", session_id, problem)
            except Exception:  # What was not foreseen costs this one only.
                log.exception("session %r could not be mended", session_id)

    async def reopen(self, session_id: str) -> None:
        """Open a session anew, as it is to work now. Raise RuntimeBusy if it has something to do, and as `use`."""
        live = self._live.get(session_id)
        if live is not None:
            if live.session.busy:
                raise RuntimeBusy("a prompt or compact has begun meanwhile; this holds when the session is opened next")
            await asyncio.wait({self._leave(session_id)})
        async with self.use(session_id):
            pass

    async def refresh(self, session_id: str, last_seq: int, epoch: int) -> None:
        """Let go of a session that has nothing to do if others have added rows to it, up to ``last_seq``, or have made
        another one in its place, as its ``epoch`` tells."""
        live = self._live.get(session_id)
        if live is None or not live.can_go(before=0.0 if live.session.epoch == epoch else math.inf):
            return
        if live.session.epoch != epoch or live.session.last_seq < last_seq:
            await asyncio.wait({self._leave(session_id)})

    def renew(self) -> None:
        """Let all sessions work as they are configured by now: those that rest from their next use on.

        Others go on as they are, until they rest; the log has which.
        """
        self._edition += 1
        kept = [session_id for session_id, live in self._live.items() if not live.can_go(before=0.0)]
        for session_id in self._live.keys() - kept:
            self._leave(session_id)
        if kept:
            names = ", ".join(map(repr, kept[:_NAMED])) + (", ..." if len(kept) > _NAMED else "")
            log.info("%d sessions have something running and keep their settings until they rest: %s", len(kept), names)

    def check_open(self) -> None:
        """Raise Stopping if nothing new may begin."""
        if self._is_stopping:
            raise Stopping(STOPPING)

    def stop(self) -> None:
        """Let nothing new begin: what waits behind a run is dropped. What runs goes on. Any number of times."""
        self._is_stopping = True
        for session_id, live in self._live.items():
            if waiting := live.session.waiting:
                log.warning(
                    "session %r: %d that wait will not begin, because the daemon is stopping", session_id, waiting
                )
            live.session.drop_prompts(Stopping(STOPPING))

    def resume(self) -> None:
        """Let things begin again. What was dropped stays so."""
        self._is_stopping = False

    async def close(self) -> None:
        """Let go of all sessions. One that waits for a person waits on, in the journal."""
        self.stop()
        self._closed = True
        for timer in (self._looking, self._reclaiming):
            if timer is not None:
                timer.cancel()
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        for session_id in list(self._live):
            self._leave(session_id, parks=True)
        if self._leaving:
            await asyncio.wait([one.task for one in self._leaving.values()])

    async def _get(self, session_id: str, wanted: Wanted | None, looks: bool) -> Live:
        while True:
            if self._closed:
                raise Stopping(STOPPING)
            if wanted is None and not looks:
                self.check_not_closed(session_id)
            if (live := self._live.get(session_id)) is not None:
                if not self._is_spent(live):
                    return live
                self._leave(session_id)
            if (leaving := self._leaving.get(session_id)) is not None:
                await asyncio.wait({leaving.task})
                continue
            loading = self._loading.get(session_id)
            if loading is None:
                loading = asyncio.get_running_loop().create_task(
                    self._load(session_id, wanted, looks), name="zot loading"
                )
                self._loading[session_id] = loading
                loading.add_done_callback(lambda _: self._loading.pop(session_id, None))
                await asyncio.shield(loading)  # Before we have it, it may have been let go of again.
            else:
                await asyncio.wait({loading})  # If that fails we try for ourselves: we may want something else.

    def _is_spent(self, live: Live) -> bool:
        """True if a session is to be opened anew, and nothing keeps us from it."""
        if live.session.is_broken:  # It was deleted, or has not recorded something, such as on a full disk.
            return not live.session.busy and not live.users
        return live.edition != self._edition and live.can_go(before=0.0)

    async def _load(self, session_id: str, wanted: Wanted | None, looks: bool) -> Live:
        if len(self._live) >= self._resting or self._is_full:
            self._tidy(more=1)
        if self._is_full and not looks:
            raise TooManySessions(f"{self.limit} sessions are in use already; close one, or wait")
        self._opened += 1
        edition = self._edition
        try:
            session = await self._opening(session_id, wanted)
        finally:
            self._opened -= 1
        channel = self.channel(session_id)
        channel.opened(session.last_seq, session.epoch, busy=session.busy)
        session.subscribe(channel)
        session.overhear(channel.overheard)
        live = self._live[session_id] = Live(session, edition)
        self._look_later()
        return live

    def _leave(self, session_id: str, *, parks: bool = False) -> asyncio.Task[None]:
        live = self._live.pop(session_id)
        leaving = asyncio.get_running_loop().create_task(self._close(session_id, live, parks), name="zot leaving")
        self._leaving[session_id] = _Leaving(live.session, leaving, parks)
        leaving.add_done_callback(lambda _: self._leaving.pop(session_id, None))
        return leaving

    async def _close(self, session_id: str, live: Live, parks: bool) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await live.session.close(parks=parks, why=Stopping(STOPPING) if self._closed else None)
        except TimeoutError:
            log.warning("session %r could not be wound down within %g s", session_id, _CLOSE_S)
        except AgentError as problem:
            log.warning("session %r could not be wound down: %s", session_id, problem)
        except Exception:  # It costs this session, not the others.
            log.exception("session %r could not be wound down", session_id)
        self.channel(session_id).closed()
        self._reclaim_later()

    def _tidy(self, *, more: int = 0) -> None:
        """Let go of what has had nothing to do for longest, as far as there are too many, or ``more`` need room."""
        before = time.monotonic() - self.idle_s
        idle = [session_id for session_id, live in self._live.items() if live.can_go(before=before)]
        over = max(len(idle) - self._resting, sum(self._live[session_id].used < before for session_id in idle))
        if self.limit:
            over = max(over, len(self._live) + self._opened + more - self.limit)
        for session_id in idle[: max(0, over)]:
            self._leave(session_id)
        self._tidy_at = max(self._resting, len(self._live)) + len(self._live) // _SHARE + 1

    def _look_later(self) -> None:
        if self._looking is None and not self._closed:
            soon = len(self._live) > self._resting
            self._looking = asyncio.get_running_loop().call_later(
                _LOOK_S if soon else max(_LOOK_S, self.idle_s / 4), self._look
            )

    def _look(self) -> None:
        self._looking = None
        self._tidy()
        if self._live:
            self._look_later()

    def _reclaim_later(self) -> None:
        """Reclaim the memory of closed sessions, for many at once: it means looking at every object."""
        self._unreclaimed += 1
        if self._closed or not self._own_process:
            return
        loop = asyncio.get_running_loop()
        if self._reclaiming is None:
            self._reclaiming = loop.call_later(_RECLAIM_S, self._reclaim)
        elif self._unreclaimed == _RECLAIM_COUNT:
            self._reclaiming.cancel()
            self._reclaiming = loop.call_later(0, self._reclaim)

    def _reclaim(self) -> None:
        self._unreclaimed, self._reclaiming = 0, None
        reclaim_memory()

    def _drop_unused_channels(self) -> None:
        if len(self._channels) % 256 == 255:
            for session_id in [one for one, channel in self._channels.items() if not channel.is_followed]:
                if session_id not in self._live and session_id not in self._leaving:
                    del self._channels[session_id]


def reclaim_memory() -> None:
    """Free objects that only refer to each other, as the parts of a session do, and return their memory to the system.

    The collector alone would leave those that have grown old for minutes, and glibc keeps what was freed.
    """
    gc.collect()
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Only glibc has it.
        if trim is not None:
            trim(0)
