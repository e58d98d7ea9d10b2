"""Fan one session's updates out to its clients: replay from the journal, then live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from zot.errors import AgentError
from zot.events import AgentEvent, ConversationReplaced, Done, PanelOpened
from zot.panels import OpenPanels
from zot.serve.daemon.backlog import Backlog
from zot.serve.daemon.metrics import Metrics
from zot.session.history import Batch
from zot.wire.daemon import Dialect
from zot.wire.updates import Updates

log = logging.getLogger("zot")

#: So many events are read at a time for whoever has missed some.
_PIECE = 512
#: So many of these are sent together, and so much before we wait for whoever reads it.
_TOGETHER = 16
_PIECE_BYTES = 256 << 10
#: How long the end of a session waits for those who have not heard all of it yet.
_CATCH_UP_S = 1.0


class Past(Protocol):
    """What is recorded of one session."""

    async def events_after(self, after: int, limit: int, epoch: int = 0) -> Sequence[tuple[int, AgentEvent]]:
        """Return up to ``limit`` events above a number, with their numbers; none if it has another ``epoch`` by now."""

    async def run_so_far(self, upto: int) -> Sequence[AgentEvent]:
        """Return the events, not above a number, of the run that it belongs to."""


class Follower:
    """One client of one session. It has seen everything up to ``cursor``; while it is live, what the feed has."""

    def __init__(
        self,
        feed: Feed,
        backlog: Backlog,
        dialect: Dialect,
        after: int,
        *,
        caught_up: Callable[[], None] = lambda: None,
    ) -> None:
        """``caught_up`` is called whenever it has seen everything that there is."""
        self._feed = feed
        self._backlog = backlog
        self.wire = backlog.wire
        self.dialect = dialect
        self.cursor = after
        self.is_live = False
        #: Whether it was told that a run is over whose end is not on record yet.
        self.was_told = False
        #: The panels that were open when it was last live.
        self.panels: Mapping[str, PanelOpened] = {}
        self.caught_up = caught_up
        #: What is to be done when it has seen so much.
        self._then: list[tuple[int, Callable[[], None]]] = []
        #: What reads what it has missed, as long as that is so.
        self.reading: asyncio.Task[None] | None = None

    def when_seen(self, seq: int, call: Callable[[], None]) -> None:
        """Do something as soon as everything up to ``seq`` has been sent."""
        if self.is_live or seq <= self.cursor:
            call()
        else:
            self._then.append((seq, call))

    def catch_up(self) -> None:
        """Read what was missed, and hear what happens after that."""
        self.is_live = False
        if self.reading is None:
            self.reading = asyncio.get_running_loop().create_task(self._read(), name="zot replay")

    def restart(self) -> None:
        """Hear another session of the same name, from its beginning; what it was to see before is gone."""
        self.cursor, self.was_told = 0, False
        self.give_up()
        if data := Updates(self._feed.session_id, self.dialect).restarted():
            self.hear(data)
        self.stop()
        self.reading = None
        self.catch_up()

    def stop(self) -> None:
        """Hear nothing more. What is still to be done then is left to a successor, or done when we `give_up`."""
        self.is_live = False
        if self.reading is not None:
            self.reading.cancel()

    def succeed(self, before: Follower) -> None:
        """Do what another one was to do."""
        self._then, before._then = before._then, []
        self._see(self.cursor)

    def give_up(self) -> None:
        """Do what is left to be done: it will never see more."""
        left, self._then = self._then, []
        for _, call in left:
            call()

    def hear(self, data: bytes) -> None:
        """Take what happened."""
        self._backlog.tell(data)

    async def _read(self) -> None:
        try:
            await self._replay()
        except AgentError as problem:
            log.warning("a client is cut off, for what it missed cannot be read: %s", problem)
            self.wire.cut("what it missed cannot be read")
        finally:
            if self.reading is asyncio.current_task():  # Another one may read another session by now.
                self.reading = None

    async def _replay(self) -> None:
        updates = Updates(self._feed.session_id, self.dialect)
        if self.cursor:
            updates.skip(await self._feed.past.run_so_far(self.cursor))
        while True:
            shown = self._feed.seq
            found = await self._feed.past.events_after(self.cursor, _PIECE, self._feed.epoch)
            if self._feed.is_loaded:  # What is safe and has not been shown yet will be delivered.
                found = [(seq, event) for seq, event in found if seq <= self._feed.seq]
            if found:
                for first, events in _together(self._untold(found, updates)):
                    data = updates.lines(first, events)
                    self._feed.count(data, 1)
                    self.wire.send(data)
                    self._see(first + len(events) - 1)
                    if self.wire.unread > _PIECE_BYTES:
                        await self.wire.room()
                self._see(found[-1][0])
            elif shown == self._feed.seq:
                break
        self._see(max(self.cursor, self._feed.seq))
        self._feed.join(self, updates)

    def _untold(self, found: Sequence[tuple[int, AgentEvent]], updates: Updates) -> Sequence[tuple[int, AgentEvent]]:
        """Leave out how a run ended that it was told is over: a turn ends once, also if its end is recorded late."""
        if not self.was_told:
            return found
        ends = [at for at, (_, event) in enumerate(found, 1) if isinstance(event, Done)]
        upto = ends[0] if ends else len(found)
        self.was_told = not ends
        updates.skip([event for _, event in found[:upto]])
        return found[upto:]

    def _see(self, seq: int) -> None:
        self.cursor = seq
        due = [call for at, call in self._then if at <= seq]
        self._then = [(at, call) for at, call in self._then if at > seq]
        for call in due:
            call()


class Feed:
    """The followers of one session (`hub.Channel`). None of them slows the session down, or another one."""

    #: Somebody may come and answer, as long as there is time.
    can_approve = True
    full = False

    def __init__(self, session_id: str, past: Past, metrics: Metrics | None = None) -> None:
        self.session_id = session_id
        self.past = past
        self.metrics = metrics or Metrics()
        #: The number of the newest event that was shown here, and of which session of this name; 0 if of none yet.
        self.seq = 0
        self.epoch = 0
        self.is_loaded = False
        #: Whether the end of a run that was shown to begin is still to be shown.
        self.in_run = True
        self._followers: set[Follower] = set()
        self._updates: dict[Dialect, Updates] = {}
        self._panels = OpenPanels()

    @property
    def is_followed(self) -> bool:
        """True if somebody listens."""
        return bool(self._followers)

    def follow(
        self,
        backlog: Backlog,
        dialect: Dialect,
        after: int | None = None,
        *,
        before: Follower | None = None,
        caught_up: Callable[[], None] = lambda: None,
    ) -> Follower:
        """Let a client hear everything behind ``after``; from now on, if that is None and the session is loaded.

        ``before`` is how it followed until now, which it has left.
        """
        follower = Follower(self, backlog, dialect, self.seq if after is None else after, caught_up=caught_up)
        if before is not None:
            follower.succeed(before)
        self._followers.add(follower)
        if after is None and self.is_loaded and (dialect in self._updates or not self.in_run):
            self.join(follower, Updates(self.session_id, dialect))
        else:
            follower.catch_up()
        return follower

    async def caught_up(self) -> None:
        """Wait until those who read have been told what has happened so far; not for long."""
        if reading := [one.reading for one in self._followers if one.reading is not None]:
            await asyncio.wait(reading, timeout=_CATCH_UP_S)

    def leave(self, follower: Follower) -> None:
        """Let a client hear nothing more."""
        follower.stop()
        self._followers.discard(follower)
        if not any(other.is_live and other.dialect is follower.dialect for other in self._followers):
            self._updates.pop(follower.dialect, None)

    def join(self, follower: Follower, updates: Updates) -> None:
        """Let a follower that has seen everything hear what happens. ``updates`` knows what it has seen."""
        if follower in self._followers:
            self._updates.setdefault(follower.dialect, updates)
            follower.is_live = True
            if panels := Updates(self.session_id, follower.dialect).lines(0, self._panels.since(follower.panels)):
                follower.hear(panels)
            follower.caught_up()

    def mention(self, event: AgentEvent) -> None:
        """Tell everybody what is not recorded; who is told what it has missed, behind that."""
        for follower in self._followers:
            if data := Updates(self.session_id, follower.dialect).lines(0, [event]):
                follower.when_seen(self.seq, partial(follower.hear, data))

    # What a channel does.

    def opened(self, last_seq: int, epoch: int, *, busy: bool) -> None:
        """The session has been loaded; its newest row has this number."""
        self.meet(epoch)
        self.is_loaded = True
        self.in_run = busy
        self.overheard(last_seq)

    def closed(self) -> None:
        """The session has been let go of, and its extensions with it."""
        if gone := self._panels.gone():
            self.deliver(Batch(0, 0, gone))
        self.is_loaded = False

    def meet(self, epoch: int) -> None:
        """What has this name is of this ``epoch``: if that is another than was followed, that one was deleted."""
        self.bury(self.epoch if self.epoch != epoch else 0)
        self.epoch = epoch

    def bury(self, epoch: int) -> None:
        """The session of this ``epoch`` was deleted. If it is followed, the next of its name begins anew."""
        if not epoch or epoch != self.epoch:
            return
        self.seq = self.epoch = 0
        self.in_run = True
        self._updates.clear()
        for follower in self._followers:
            follower.restart()

    def overheard(self, upto: int) -> None:
        """There are rows up to this number that were not delivered: everybody reads them first."""
        if upto > self.seq:
            seen, self.seq = self.seq, upto
            self._updates.clear()
            for follower in self._followers:
                if follower.is_live:
                    follower.cursor = max(seen, follower.cursor)
                    follower.panels = self._panels.seen
                    follower.catch_up()

    def deliver(self, batch: Batch) -> None:
        """Tell what happened to everybody who has seen what was before."""
        if batch.seq:
            self.seq = batch.last
        else:
            self._panels.hear(batch.events)
        is_over = isinstance(batch.events[-1], Done)
        is_unrecorded = is_over and not batch.seq and self.in_run
        if is_over or (batch.seq and not isinstance(batch.events[-1], ConversationReplaced)):
            self.in_run = not is_over
            self.metrics.runs += is_over
        for dialect, updates in self._updates.items():
            data = updates.lines(batch.seq, batch.events, prompt_id=batch.prompt_id)
            followers = [one for one in self._followers if one.is_live and one.dialect is dialect]
            for follower in followers:
                follower.cursor = self.seq
                follower.was_told = is_unrecorded or (follower.was_told and not is_over)
                if data:
                    follower.hear(data)
            if data:
                self.count(data, len(followers))

    def count(self, data: bytes, clients: int) -> None:
        """Count lines that so many clients are told."""
        self.metrics.updates += data.count(b"\n") * clients
        self.metrics.update_bytes += len(data) * clients

    async def room(self) -> None:
        """There always is."""


def _together(found: Sequence[tuple[int, AgentEvent]]) -> list[tuple[int, list[AgentEvent]]]:
    """Return events whose numbers follow each other, with the first of these; what ends a run ends a piece."""
    pieces: list[tuple[int, list[AgentEvent]]] = []
    for seq, event in found:
        first, events = pieces[-1] if pieces else (0, [])
        if events and seq == first + len(events) and len(events) < _TOGETHER and not isinstance(events[-1], Done):
            events.append(event)
        else:
            pieces.append((seq, [event]))
    return pieces
