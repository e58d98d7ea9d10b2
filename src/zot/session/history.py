"""History: number each batch of events, store it, then deliver it to subscribers in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from zot.agent.transcript import Transcript
from zot.errors import StoreFailed
from zot.events import (
    AgentEvent,
    AssistantStart,
    ConversationReplaced,
    Done,
    Error,
    ExtNotify,
    ExtWaiting,
    PanelRendered,
    TurnEnd,
    TurnStart,
    Usage,
)
from zot.messages import ZERO, Counters, Message
from zot.store import Allowed, Change, Configured, Counted, Guarded, Row, Said, Spliced, Store

#: The events behind which a turn goes on, or does not.
_BOUNDS: dict[type, bool] = {TurnStart: True, TurnEnd: False, Error: False, Done: False}


class Batch(msgspec.Struct, frozen=True):
    """What happened together: ``events`` of one ``run``, the first of which has the number ``seq``; 0 if they are not
    recorded. Nothing follows the end of a run in its batch. ``prompt_id`` names the prompt of a run whose end cannot be
    recorded: its first event may never have been shown."""

    seq: int
    run: int
    events: Sequence[AgentEvent]
    prompt_id: str = ""

    @property
    def last(self) -> int:
        """The number of the last event; 0 if they are not recorded."""
        return self.seq and self.seq + len(self.events) - 1


class Before(msgspec.Struct, frozen=True):
    """How a conversation was before a run: its ``messages``, and the number of the newest row, ``seq``."""

    seq: int
    messages: Sequence[Message]


class Subscriber(Protocol):
    """Somebody who hears every event of a session, in order."""

    def deliver(self, batch: Batch) -> None:
        """Take what happened. Must not block and must not raise."""

    @property
    def can_approve(self) -> bool:
        """True if whoever listens can be asked about tool calls."""

    @property
    def full(self) -> bool:
        """True while it cannot take more without growing; the run then waits for `room`."""

    async def room(self) -> None:
        """Wait until it can take more."""


class History:
    """The one way for a run's words into the store and out to those who listen (`agent.run.Recorder`).

    What cannot be stored is not shown. ``on_failure`` hears of rows that were taken and then could not be made safe,
    ``measured`` what the service counted for a reply that is only learnt of, and how the conversation was then, and
    ``recall`` what a person allowed for good, likewise, and ``guarded`` who guards the session.
    """

    def __init__(
        self,
        store: Store,
        *,
        charge: Callable[[Counters], Counters],
        measured: Callable[[Usage, Transcript], None],
        recall: Callable[[Allowed], None],
        observe: Callable[[Sequence[AgentEvent]], None],
        on_failure: Callable[[StoreFailed], None],
        guarded: Callable[[Guarded], None] = lambda guarded: None,
    ) -> None:
        self.transcript = Transcript()
        self.totals = ZERO
        #: What the session works with, as it was last recorded.
        self.configured: Configured | None = None
        #: Who guards the session although it may be away, by name.
        self.guards: dict[str, Guarded] = {}
        self.run = store.last_run
        #: How it was before the run that goes on; None between runs, and in one that another process began.
        self.before: Before | None = None
        #: Whether the past may have a run that did not come to its end: until we have looked.
        self.must_recover = store.shared
        #: True while a turn was shown to begin and not to end.
        self.in_turn = False
        self._store = store
        self._charge = charge
        self._measured = measured
        self._recall = recall
        self._guarded = guarded
        self._observe = observe
        self._on_failure = on_failure
        self.subscribers: tuple[Subscriber, ...] = ()
        self._unshown: deque[Batch] = deque()
        self._safe_seq = 0
        #: Hears up to which number there are safe rows that nobody was shown: those of others, and of repairs.
        self.overheard: Callable[[int], None] = lambda upto: None
        self._amended_upto = 0
        self._showing = False
        store.watch(self._safe, self._failed)

    @property
    def keeps(self) -> bool:
        """True if what is recorded can be had back."""
        return self._store.keeps

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Let ``subscriber`` hear everything from now on; call what is returned to stop."""
        self.subscribers = (*self.subscribers, subscriber)
        leaving = [subscriber]

        def leave() -> None:
            while leaving:  # Whoever has left is not held by how it left, which it may hold itself.
                self._unsubscribe(leaving.pop())

        return leave

    def begin_run(self) -> None:
        """What is said from now on belongs to another run."""
        self.run += 1
        self.before = Before(self._store.last_seq, tuple(self.transcript.messages))

    def say(self, events: Sequence[AgentEvent], *changes: Change) -> None:
        """Store ``changes`` of the transcript and make them; store ``events`` and show them when they are safe.

        Together or not at all. Raise StoreFailed if the store refuses.
        """
        ends = bool(events) and type(events[-1]) is Done
        first = self._store.append([*changes, *events] if changes else events, run=self.run, ends=ends)
        for change in changes:
            self.transcript.apply(change)
        if events:
            batch = Batch(first + len(changes), self.run, events)
            self._unshown.append(batch)
            if batch.last <= self._safe_seq:
                self._show_safe()

    def replace(self, *changes: Change) -> None:
        """Store changes that make another conversation of it, outside of any run, and show that when they are safe.

        What is shown has the number of the last of them: it is no row of its own. Raise StoreFailed.
        """
        first = self._store.append(changes, run=self.run)
        for change in changes:
            self.transcript.apply(change)
        told = ConversationReplaced(len(self.transcript))
        self._unshown.append(Batch(first + len(changes) - 1, self.run, [told]))
        self._show_safe()

    def learn(self, rows: Iterable[Row]) -> None:
        """Take in what was recorded before, or by others. Nobody is shown it: who wants it reads the store."""
        counted: Usage | None = None
        for row in rows:
            match row:
                case Configured():
                    self.configured = row
                case Allowed():
                    self._recall(row)
                case Guarded(name=name):
                    self.guards[name] = row
                    self._guarded(row)
                case Said() | Spliced():
                    self.transcript.apply(row)
                case Usage(cumulative=totals):
                    self.totals, counted = totals, row
                case Counted(cumulative=totals):
                    self.totals = totals
                case TurnEnd(stop="end_turn" | "tool_use" | "length") if counted is not None:
                    self._measured(counted, self.transcript)
                case AssistantStart() | Done():
                    counted = None  # It was a summary that was counted, or a reply that was cut off.
                case _:
                    pass

    def amend(self, rows: Sequence[Row]) -> None:
        """Record ``rows`` that belong to the past and make their changes. Raise StoreFailed if the store refuses."""
        if rows:
            last = self._store.append(rows, run=self.run) + len(rows) - 1
            if not all(isinstance(row, Change) for row in rows):
                self._amended_upto = last
            self.learn(rows)

    def announce(self, events: Sequence[AgentEvent], *, prompt_id: str = "") -> None:
        """Show ``events`` that cannot be stored: that it is over must be heard even when nothing can be written."""
        self._show(Batch(0, self.run, events, prompt_id))

    def mention(self, events: Sequence[AgentEvent]) -> None:
        """Show ``events`` that are no part of a run. Who has not kept up misses those that can be missed."""
        batch = Batch(0, self.run, events)
        can_be_missed = all(isinstance(event, ExtNotify | ExtWaiting | PanelRendered) for event in events)
        for subscriber in self.subscribers:
            if not (can_be_missed and subscriber.full):
                subscriber.deliver(batch)

    def count(self, counters: Counters) -> Counters:
        """Price a reply's tokens, add them up, and return them with their price."""
        charged = self._charge(counters)
        self.totals += charged
        return charged

    def counted(self, now: str, counters: Counters) -> Counted:
        """Return what is recorded of what was used outside of any run."""
        return Counted(now, counters, self.totals + counters)

    async def drain(self) -> None:
        """Wait for the store, and for those who must not miss anything and have not kept up."""
        if self._store.full:
            await self._store.room()
        for subscriber in self.subscribers:
            if subscriber.full:
                await subscriber.room()

    async def settled(self) -> None:
        """Wait until everything said is safe, and so has been shown. Raise StoreFailed."""
        await self._store.settled()

    async def synced(self) -> None:
        """Wait until everything said survives a loss of power. Raise StoreFailed."""
        await self._store.synced()

    def _safe(self, seq: int) -> None:
        self._safe_seq = seq
        if 0 < self._amended_upto <= seq:
            self.overheard(self._amended_upto)
            self._amended_upto = 0
        self._show_safe()

    def _failed(self, problem: StoreFailed) -> None:
        self._unshown.clear()
        self._on_failure(problem)

    def _show_safe(self) -> None:
        if self._showing:
            return  # Somebody answers what they are being shown: the others hear that after it.
        self._showing = True
        try:
            while self._unshown and self._unshown[0].last <= self._safe_seq:
                self._show(self._next_safe())
        finally:
            self._showing = False

    def _next_safe(self) -> Batch:
        """Take what is shown next: all that became safe together, for each batch costs everybody who listens."""
        batch = newest = self._unshown.popleft()
        if not self._goes_on(newest):
            return batch
        events = [*batch.events]
        while self._goes_on(newest):
            newest = self._unshown.popleft()
            events += newest.events
        return Batch(batch.seq, batch.run, events)

    def _goes_on(self, batch: Batch) -> bool:
        """True if what follows ``batch`` can be shown with it."""
        if not self._unshown or type(batch.events[-1]) is Done:
            return False
        following = self._unshown[0]
        return following.seq == batch.last + 1 and following.run == batch.run and following.last <= self._safe_seq

    def _show(self, batch: Batch) -> None:
        if not _BOUNDS.keys().isdisjoint(map(type, batch.events)):
            self.in_turn = [_BOUNDS[type(event)] for event in batch.events if type(event) in _BOUNDS][-1]
        if isinstance(batch.events[-1], Done):
            self.before = None
        for subscriber in self.subscribers:
            subscriber.deliver(batch)
        self._observe(batch.events)

    def _unsubscribe(self, subscriber: Subscriber) -> None:
        self.subscribers = tuple(other for other in self.subscribers if other is not subscriber)
