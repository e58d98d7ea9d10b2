"""Fan-out of one session's updates to its clients: replay from the journal, then live.

`ForeignRunWatcher` adds the rows that other processes write to sessions which clients of this daemon follow.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from zot.errors import AgentError, NoSuchSession
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    ConversationReplaced,
    Done,
    PanelOpened,
    QuestionAnswer,
    QuestionRequest,
    SessionStatus,
    UserMessage,
)
from zot.journal import queries, replay
from zot.journal.connection import Connection
from zot.journal.queries import ChangedSession, changed_since, find, last_seq, owned
from zot.journal.recorded_sessions import SessionJournal
from zot.messages import timestamp
from zot.panels import OpenPanels
from zot.runtime.pool import Channel
from zot.serve.daemon.backlog import Backlog
from zot.serve.daemon.metrics import Metrics
from zot.session.history import Batch
from zot.wire.daemon import Dialect
from zot.wire.daemon_types import Changed
from zot.wire.updates import Updates

if TYPE_CHECKING:
    from zot.serve.daemon.client_connection import ClientConnection
    from zot.serve.daemon.daemon import Daemon
    from zot.session.session import Session


log = logging.getLogger("zot")

#: Events read at a time for a replay.
_PIECE = 512
#: Replayed events per message, and unread bytes at which the replay waits.
_GROUP = 16
_PIECE_BYTES = 256 << 10
#: How long the end of a session waits for running replays.
_CATCH_UP_S = 1.0


class RecordedEvents:
    """Recorded events of one session, read from the journal."""

    def __init__(self, journal: SessionJournal, session_id: str) -> None:
        self._journal = journal
        self._session_id = session_id

    async def events_after(self, after: int, limit: int, epoch: int = 0) -> Sequence[tuple[int, AgentEvent]]:
        """Return up to ``limit`` events after a number, with their numbers; none if the session was deleted or has
        another ``epoch``, if one is given.

        Replacements of the whole conversation are among them.
        """

        def look(connection: Connection) -> list[tuple[int, AgentEvent]]:
            session = queries.get(connection, self._session_id)
            if epoch not in (0, session.epoch):
                return []
            events = replay.events_of(connection, session.number, after, limit)
            upto = events[-1][0] if len(events) == limit else None
            replaced = replay.replacements(connection, session.number, after, upto)
            return sorted([*events, *replaced], key=lambda one: one[0])[:limit] if replaced else events

        with suppress(NoSuchSession):
            return await self._journal.reading(look)
        return ()

    async def run_so_far(self, upto: int) -> Sequence[AgentEvent]:
        """Return the events up to ``upto`` of the run to which that number belongs."""
        with suppress(NoSuchSession):
            return await self._journal.reading(replay.run_so_far, self._session_id, upto)
        return ()


class Follower:
    """Subscription of one client to one session. It has everything up to ``cursor``; while live, all of the feed."""

    def __init__(
        self,
        feed: SessionFeed,
        backlog: Backlog,
        dialect: Dialect,
        after: int,
        *,
        caught_up: Callable[[], None] = lambda: None,
        answers: bool = False,
    ) -> None:
        """``caught_up`` is called whenever it becomes live. ``answers``: its client answers questions of tools."""
        self._feed = feed
        self.backlog = backlog
        self.wire = backlog.wire
        self.dialect = dialect
        self.cursor = after
        self.is_live = False
        #: Whether it was sent the end of a run whose end is not recorded yet.
        self.was_sent_end = False
        #: The panels that were open when it was last live.
        self.panels: Mapping[str, PanelOpened] = {}
        self.caught_up = caught_up
        self.answers = answers
        #: Callbacks, each with the number it waits for.
        self._callbacks: list[tuple[int, Callable[[], None]]] = []
        #: Task of the running replay.
        self.reading: asyncio.Task[None] | None = None

    def when_seen(self, seq: int, call: Callable[[], None]) -> None:
        """Call as soon as everything up to ``seq`` has been sent."""
        if self.is_live or seq <= self.cursor:
            call()
        else:
            self._callbacks.append((seq, call))

    def catch_up(self) -> None:
        """Replay missed events, then become live."""
        self.is_live = False
        if self.reading is None:
            self.reading = asyncio.get_running_loop().create_task(self._read(), name="zot replay")

    def restart(self) -> None:
        """Follow the next session of the same id from its beginning; the previous one was deleted."""
        self.cursor, self.was_sent_end = 0, False
        self.give_up()
        if data := Updates(self._feed.session_id, self.dialect).restarted():
            self.backlog.send(data)
        self.stop()
        self.reading = None
        self.catch_up()

    def stop(self) -> None:
        """Stop sending. Pending callbacks pass to a successor, or are called by `give_up`."""
        self.is_live = False
        if self.reading is not None:
            self.reading.cancel()

    def succeed(self, before: Follower) -> None:
        """Take over another follower's pending callbacks."""
        self._callbacks, before._callbacks = before._callbacks, []
        self._advance(self.cursor)

    def give_up(self) -> None:
        """Call all pending callbacks: no more updates will be sent."""
        left, self._callbacks = self._callbacks, []
        for _, call in left:
            call()

    async def _read(self) -> None:
        try:
            await self._replay()
        except AgentError as problem:
            log.warning("a client is disconnected, because its replay cannot be read: %s", problem)
            self.wire.cut("its replay cannot be read")
        finally:
            if self.reading is asyncio.current_task():  # `restart` may have started another replay.
                self.reading = None

    async def _replay(self) -> None:
        updates = Updates(self._feed.session_id, self.dialect)
        if self.cursor:
            updates.skip(await self._feed.past.run_so_far(self.cursor))
        while True:
            shown = self._feed.seq
            found = await self._feed.past.events_after(self.cursor, _PIECE, self._feed.epoch)
            if self._feed.is_loaded:  # Rows that are recorded but not delivered yet will be delivered live.
                found = [(seq, event) for seq, event in found if seq <= self._feed.seq]
            if found:
                for first, events in grouped(self._without_sent_end(found, updates)):
                    data = updates.lines(first, events)
                    self._feed.count(data, 1)
                    self.wire.send(data)
                    self._advance(first + len(events) - 1)
                    if self.wire.unread > _PIECE_BYTES:
                        await self.wire.room()
                self._advance(found[-1][0])
            elif shown == self._feed.seq:
                break
        self._advance(max(self.cursor, self._feed.seq))
        self._feed.join(self, updates)

    def _without_sent_end(
        self, found: Sequence[tuple[int, AgentEvent]], updates: Updates
    ) -> Sequence[tuple[int, AgentEvent]]:
        """Omit the end of a run that was sent before it was recorded: a turn ends once."""
        if not self.was_sent_end:
            return found
        ends = [at for at, (_, event) in enumerate(found, 1) if isinstance(event, Done)]
        upto = ends[0] if ends else len(found)
        self.was_sent_end = not ends
        updates.skip([event for _, event in found[:upto]])
        return found[upto:]

    def _advance(self, seq: int) -> None:
        self.cursor = seq
        due = [call for at, call in self._callbacks if at <= seq]
        self._callbacks = [(at, call) for at, call in self._callbacks if at > seq]
        for call in due:
            call()


class SessionWatchers:
    """Clients that are sent `sessions/changed` for every session that they may see."""

    def __init__(self) -> None:
        self._clients: dict[ClientConnection, None] = {}
        #: Sessions that run in other processes, as of the last look.
        self._elsewhere: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self._clients)

    def add(self, client: ClientConnection) -> None:
        """Notify a client from now on."""
        self._clients[client] = None

    def leave(self, client: ClientConnection) -> None:
        """End a subscription, if there is one."""
        self._clients.pop(client, None)

    def changed(self, session_id: str, state: SessionStatus) -> None:
        """Notify the clients of what a session does now."""
        if self._clients:
            change = Changed(session_id, state)
            for client in tuple(self._clients):
                if client.grant.sees(session_id):
                    client.notify("sessions/changed", change)

    def take(self, session_id: str, events: Sequence[AgentEvent]) -> None:
        """Notify the clients if ``events`` change what a session does."""
        if self._clients:
            states = [_STATES[type(event)] for event in events if type(event) in _STATES]
            if states:
                self._elsewhere -= {session_id}  # It runs here now: what ended elsewhere is no news.
                self.changed(session_id, states[-1])

    def note_elsewhere(self, running: Collection[str]) -> None:
        """Notify the clients of runs in other processes that have begun or ended since the last call."""
        before, self._elsewhere = self._elsewhere, frozenset(running)
        for session_id in self._elsewhere ^ before:
            self.changed(session_id, "running" if session_id in self._elsewhere else "idle")


#: What a session does after an event.
_STATES: Mapping[type, SessionStatus] = {
    UserMessage: "running",
    ApprovalRequest: "waiting_approval",
    ApprovalAnswer: "running",
    QuestionRequest: "running",
    QuestionAnswer: "running",
    Done: "idle",
}


class SessionFeed(Channel):
    """Followers of one session. None of them slows the session or another follower down."""

    #: A client may subscribe and answer at any time before the timeout.
    can_approve = True

    def __init__(
        self,
        session_id: str,
        past: RecordedEvents,
        metrics: Metrics | None = None,
        watchers: SessionWatchers | None = None,
    ) -> None:
        self.session_id = session_id
        self.past = past
        self.metrics = metrics or Metrics()
        self._watchers = watchers if watchers is not None else SessionWatchers()
        #: Number of the newest event sent here, and the epoch of its session; 0 before the first.
        self.seq = 0
        self.epoch = 0
        self.is_loaded = False
        #: Whether the current run's end is still to be sent.
        self.in_run = True
        self._followers: set[Follower] = set()
        self._updates: dict[Dialect, Updates] = {}
        #: The panels of the loaded session, and those that a worker shows.
        self._panels = OpenPanels()
        self._elsewhere: OpenPanels | None = None

    @property
    def can_answer(self) -> bool:
        """True if a follower answers questions."""
        return any(follower.answers for follower in self._followers)

    @property
    def is_followed(self) -> bool:
        """True if it has followers."""
        return bool(self._followers)

    def follow(
        self,
        backlog: Backlog,
        dialect: Dialect,
        after: int | None = None,
        *,
        before: Follower | None = None,
        caught_up: Callable[[], None] = lambda: None,
        answers: bool = False,
    ) -> Follower:
        """Send a client everything after ``after``; if that is None and the session is loaded, everything from now on.

        ``before`` is the client's previous subscription, which has ended.
        """
        begin = self.seq if after is None else after
        follower = Follower(self, backlog, dialect, begin, caught_up=caught_up, answers=answers)
        if before is not None:
            follower.succeed(before)
        self._followers.add(follower)
        if after is None and self.is_loaded and (dialect in self._updates or not self.in_run):
            self.join(follower, Updates(self.session_id, dialect))
        else:
            follower.catch_up()
        return follower

    async def caught_up(self) -> None:
        """Wait until running replays are finished, within a short limit."""
        if reading := [one.reading for one in self._followers if one.reading is not None]:
            await asyncio.wait(reading, timeout=_CATCH_UP_S)

    def leave(self, follower: Follower) -> None:
        """Remove a follower."""
        follower.stop()
        self._followers.discard(follower)
        if not any(other.is_live and other.dialect is follower.dialect for other in self._followers):
            self._updates.pop(follower.dialect, None)

    def join(self, follower: Follower, updates: Updates) -> None:
        """Make a follower live that has seen everything. ``updates`` holds its encoding state."""
        if follower in self._followers:
            self._updates.setdefault(follower.dialect, updates)
            follower.is_live = True
            if panels := self.encoded(self.panels.since(follower.panels), follower.dialect):
                follower.backlog.send(panels)
            follower.caught_up()

    @property
    def panels(self) -> OpenPanels:
        """The open panels."""
        return self._panels if self._elsewhere is None else self._elsewhere

    def show_elsewhere(self, panels: OpenPanels, events: Sequence[AgentEvent]) -> None:
        """Take the panels that a worker shows, and send the events that lead there."""
        self._elsewhere = panels
        if events:
            self.deliver(Batch(0, 0, events))

    def encoded(self, events: Sequence[AgentEvent], dialect: Dialect, prompt_id: str = "") -> bytes:
        """Return unrecorded events as a client with this dialect gets them."""
        return Updates(self.session_id, dialect, prompt_id=prompt_id).lines(0, events)

    def deliver_unrecorded(self, event: AgentEvent) -> None:
        """Send an unrecorded event to all followers; after the replay to those that are replaying."""
        for follower in self._followers:
            if data := self.encoded([event], follower.dialect):
                follower.when_seen(self.seq, partial(follower.backlog.send, data))

    # Channel.

    def opened(self, session: Session) -> None:
        """Handle that the session was loaded."""
        self.set_epoch(session.epoch)
        self.is_loaded = True
        self.in_run = session.worker.busy
        self._panels = session.agent.extensions.panels
        self.on_foreign_rows(session.store.last_seq)

    def closed(self) -> None:
        """Handle that the session and its extensions were unloaded."""
        if gone := self._panels.gone():
            self.deliver(Batch(0, 0, gone))
        self._panels = OpenPanels()  # The others refer to the session, which a followed feed would keep in memory.
        self.is_loaded = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the session with this id: if it is a new one, the followed session was deleted."""
        self.on_deleted(self.epoch if self.epoch != epoch else 0)
        self.epoch = epoch

    def on_deleted(self, epoch: int) -> None:
        """Handle that the session of this ``epoch`` was deleted: followers start anew with the next of its id."""
        if not epoch or epoch != self.epoch:
            return
        self.seq = self.epoch = 0
        self.in_run = True
        self._updates.clear()
        for follower in self._followers:
            follower.restart()

    def on_foreign_rows(self, upto: int) -> None:
        """Handle undelivered rows up to this number: all followers replay them first."""
        if upto > self.seq:
            seen, self.seq = self.seq, upto
            self._updates.clear()
            for follower in self._followers:
                if follower.is_live:
                    follower.cursor = max(seen, follower.cursor)
                    follower.panels = self.panels.seen
                    follower.catch_up()

    def deliver(self, batch: Batch) -> None:
        """Send a batch to all live followers."""
        if batch.seq:
            self.seq = batch.last
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
                follower.was_sent_end = is_unrecorded or (follower.was_sent_end and not is_over)
                if data:
                    follower.backlog.send(data)
            if data:
                self.count(data, len(followers))
        self._watchers.take(self.session_id, batch.events)

    def count(self, data: bytes, clients: int) -> None:
        """Count an update that was sent to a number of clients."""
        self.metrics.updates += data.count(b"\n") * clients
        self.metrics.update_bytes += len(data) * clients


def grouped(found: Sequence[tuple[int, AgentEvent]]) -> list[tuple[int, list[AgentEvent]]]:
    """Group events with consecutive numbers, each group with its first number; the end of a run ends a group."""
    pieces: list[tuple[int, list[AgentEvent]]] = []
    for seq, event in found:
        first, events = pieces[-1] if pieces else (0, [])
        if events and seq == first + len(events) and len(events) < _GROUP and not isinstance(events[-1], Done):
            events.append(event)
        else:
            pieces.append((seq, [event]))
    return pieces


#: Interval of checks while any session is followed.
_CHECK_S = 0.5
#: Sessions used this recently may have changed since the last check.
_RECENT_S = 4.0


class ForeignRunWatcher:
    """Polls the journal for rows that other processes add to followed sessions, and notifies their feeds."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._journal = daemon.parts.journal
        self._elsewhere: set[str] = set()
        #: Followed sessions that run elsewhere, and those of them whose process was missing at the last check.
        self._running: set[str] = set()
        self._missing: set[str] = set()
        self._unrecoverable: set[str] = set()
        #: The version of the database at the last check, by connection.
        self._versions: dict[int, int] = {}
        #: Wall-clock time of the last check, as in the sessions' records. The clock may be set meanwhile.
        self._checked = time.time()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            since, self._checked = self._checked, time.time()
            if self._daemon.sessions.watchers or any(connection.followed for connection in self._daemon.connections):
                try:
                    if await self._journal.reading(self._has_changed) or self._running:
                        await self._check(self._followed(), timestamp(min(since, self._checked) - _RECENT_S))
                        await self._recover_dead()
                except AgentError as problem:  # The next check may succeed.
                    log.debug("the rows of other processes cannot be read: %s", problem)

    def _followed(self) -> Mapping[str, SessionFeed]:
        """Return the feeds of followed sessions that do not run in this process."""
        followed = {one for connection in self._daemon.connections for one in connection.followed}
        return {one: self._daemon.sessions.feed(one) for one in followed if not self._is_run_here(one)}

    def _is_run_here(self, session_id: str) -> bool:
        session = self._daemon.sessions.pool.session(session_id)
        return session is not None and session.worker.busy

    async def _check(self, feeds: Mapping[str, SessionFeed], since: str) -> None:
        newest = await self._journal.reading(self._newest, feeds, since)
        if newest:
            followed = self._followed()
            for session_id, (seq, epoch) in newest.items():
                feed = followed.get(session_id)  # It may run here by now.
                if feed is not None and feed is feeds[session_id]:
                    feed.set_epoch(epoch)
                    feed.on_foreign_rows(seq)
        await self._announce_elsewhere()

    async def _announce_elsewhere(self) -> None:
        """Notify watching clients of runs in other processes.

        It looks twice: a job of this process may have held the lease for the moment of the first look.
        """
        watchers = self._daemon.sessions.watchers
        found = [one for one in self._elsewhere if not self._is_used_here(one)]
        if watchers and found:
            owners = {one.id for one in await self._journal.reading(owned)}
            found = [one for one in found if one in owners and not self._is_used_here(one)]
        watchers.note_elsewhere(found)

    def _is_used_here(self, session_id: str) -> bool:
        pool = self._daemon.sessions.pool
        session = pool.session(session_id)
        return pool.is_loading(session_id) or (session is not None and not session.worker.is_idle)

    async def _recover_dead(self) -> None:
        """Recover sessions whose process died. Needs two checks: an ending process may not have released its lease."""
        begun = await self._journal.reading(owned) if self._running else ()
        missing = {one.id for one in begun if one.id in self._running and not self._journal.is_running(one)}
        for session_id in missing & self._missing - self._unrecoverable:
            try:
                await self._daemon.sessions.pool.recover(session_id)
            except AgentError as problem:
                log.warning("cannot recover session %r, whose process has died: %s", session_id, problem)
                self._unrecoverable.add(session_id)
        self._missing = missing
        self._unrecoverable &= missing

    def _has_changed(self, connection: Connection) -> bool:
        """True if the database has changed since this connection's last check."""
        version = self._journal.version(connection)
        before, self._versions[id(connection)] = self._versions.get(id(connection)), version
        return bool(before != version)

    def _newest(
        self, connection: Connection, feeds: Mapping[str, SessionFeed], since: str
    ) -> dict[str, tuple[int, int]]:
        """Return the newest row and the epoch of the followed sessions with rows that were not sent here."""
        found = changed_since(connection, since)
        ahead = {one.id for one in found if one.id in feeds and _is_new_to(feeds[one.id], one)}
        over = self._elsewhere.difference(one.id for one in found).intersection(feeds)
        self._elsewhere = {one.id for one in found if one.is_run}
        self._running = self._elsewhere.intersection(feeds)
        sessions = (find(connection, session_id) for session_id in ahead | over)
        return {one.id: (last_seq(connection, one.number), one.epoch) for one in sessions if one is not None}


def _is_new_to(feed: SessionFeed, found: ChangedSession) -> bool:
    """True if a session has rows that were not sent here, or is a new one of the same id."""
    return found.last_seq > feed.seq or feed.epoch not in (0, found.epoch)
