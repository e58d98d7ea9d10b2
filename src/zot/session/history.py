"""History: numbers each batch of events, stores it, then delivers it to subscribers in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from zot.agent.loop import Agent
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
from zot.store import (
    Change,
    GuardSet,
    MessageAdded,
    MessagesReplaced,
    PermissionGranted,
    Row,
    SettingsChanged,
    Store,
    StoreObserver,
    UsageCounted,
)

#: Whether a turn is open after each of these events.
_BOUNDS: dict[type, bool] = {TurnStart: True, TurnEnd: False, Error: False, Done: False}


class Batch(msgspec.Struct, frozen=True):
    """Consecutive ``events`` of one ``run``; ``seq`` numbers the first one, 0 if they are not recorded.

    `Done` is always the last event of its batch. ``prompt_id`` names the prompt of a run whose end cannot be recorded:
    subscribers may never have received the run's first event.
    """

    seq: int
    run: int
    events: Sequence[AgentEvent]
    prompt_id: str = ""

    @property
    def last(self) -> int:
        """The number of the last event; 0 if they are not recorded."""
        return self.seq and self.seq + len(self.events) - 1


class ConversationBefore(msgspec.Struct, frozen=True):
    """The conversation before a run: its ``messages``, and the number of its newest row, ``seq``."""

    seq: int
    messages: Sequence[Message]


class Subscriber(ABC):
    """A receiver of every event of a session, in order. By default it answers nothing and is never full."""

    @abstractmethod
    def deliver(self, batch: Batch) -> None:
        """Take a batch. Must not block and must not raise."""

    @property
    def can_approve(self) -> bool:
        """True if this subscriber can answer approval requests."""
        return False

    @property
    def can_answer(self) -> bool:
        """True if this subscriber can answer questions of tools."""
        return False

    @property
    def full(self) -> bool:
        """True while it cannot take more without growing; the run then awaits `room`."""
        return False

    async def room(self) -> None:
        """Wait until it can take more."""
        return


class Outlet(Protocol):
    """A destination of bytes, with back-pressure."""

    @property
    def full(self) -> bool:
        """True while the source should pause."""

    async def room(self) -> None:
        """Wait until the source can continue."""


class WritingSubscriber(Subscriber):
    """A subscriber that writes events, and is full while its ``outlet`` is."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    @property
    def full(self) -> bool:
        return self._outlet.full

    async def room(self) -> None:
        await self._outlet.room()


class History(StoreObserver):
    """The only path of a run's events and changes into the store and out to subscribers (`agent.run.Recorder`).

    Events are delivered only after they are stored. Rows that are loaded rather than produced here take effect on the
    ``agent``: a reply's usage, remembered approvals, guards. Without an agent the history is only read and repaired.
    """

    def __init__(self, store: Store, agent: Agent | None = None) -> None:
        self.transcript = Transcript()
        self.totals = ZERO
        #: The newest recorded settings.
        self.configured: SettingsChanged | None = None
        #: Recorded guards by name, connected or not.
        self.guards: dict[str, GuardSet] = {}
        self.run = store.last_run
        #: The conversation before the current run; None between runs and in a run that another process began.
        self.before: ConversationBefore | None = None
        #: True until we know that no earlier run was left open.
        self.must_recover = store.shared
        #: True while subscribers have seen a turn begin and not end.
        self.in_turn = False
        self.store = store
        self._agent = agent
        #: Called with the error of rows that were accepted but not stored.
        self.on_failure: Callable[[StoreFailed], None] = lambda problem: None
        self.subscribers: tuple[Subscriber, ...] = ()
        self._undelivered: deque[Batch] = deque()
        self._stored_seq = 0
        #: Called with the number of the newest stored row that no subscriber was sent: rows of other processes and
        #: repairs.
        self.on_foreign_rows: Callable[[int], None] = lambda upto: None
        self._amended_upto = 0
        self._is_delivering = False
        store.watch(self)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Deliver every later batch to ``subscriber``; call the returned function to unsubscribe."""
        self.subscribers = (*self.subscribers, subscriber)
        leaving = [subscriber]

        def leave() -> None:
            while leaving:  # Drop our reference: the subscriber may hold this function.
                self._unsubscribe(leaving.pop())

        return leave

    def begin_run(self) -> None:
        """Start the next run: later rows belong to it."""
        self.run += 1
        self.before = ConversationBefore(self.store.last_seq, tuple(self.transcript.messages))

    def emit(self, events: Sequence[AgentEvent], *changes: Change) -> None:
        """Store ``changes`` and ``events`` together; apply the changes now, deliver the events once they are stored.

        Raise StoreFailed if the store refuses; then neither happens.
        """
        ends = bool(events) and type(events[-1]) is Done
        first = self.store.append([*changes, *events] if changes else events, run=self.run, ends=ends)
        for change in changes:
            self.transcript.apply(change)
        if events:
            batch = Batch(first + len(changes), self.run, events)
            self._undelivered.append(batch)
            if batch.last <= self._stored_seq:
                self._deliver_stored()

    def replace(self, *changes: Change) -> None:
        """Store changes that replace the conversation outside of any run, then announce the replacement.

        The announcement has no row: it carries the number of the last change. Raise StoreFailed.
        """
        first = self.store.append(changes, run=self.run)
        for change in changes:
            self.transcript.apply(change)
        replaced = ConversationReplaced(len(self.transcript))
        self._undelivered.append(Batch(first + len(changes) - 1, self.run, [replaced]))
        self._deliver_stored()

    def apply_stored(self, rows: Iterable[Row]) -> None:
        """Apply rows recorded earlier or by others, without delivering them."""
        counted: Usage | None = None
        agent = self._agent
        for row in rows:
            match row:
                case SettingsChanged():
                    self.configured = row
                case PermissionGranted():
                    if agent is not None:
                        agent.approver.recall(row)
                case GuardSet(name=name):
                    self.guards[name] = row
                    if agent is not None:
                        agent.extensions.recall(row)
                case MessageAdded() | MessagesReplaced():
                    self.transcript.apply(row)
                case Usage(cumulative=totals):
                    self.totals, counted = totals, row
                case UsageCounted(cumulative=totals):
                    self.totals = totals
                case TurnEnd(stop="end_turn" | "tool_use" | "length") if counted is not None:
                    if agent is not None:
                        agent.measured(counted, self.transcript)
                case AssistantStart() | Done():
                    counted = None  # The usage was that of a summary or of a reply that was cut off.
                case _:
                    pass

    def amend(self, rows: Sequence[Row]) -> None:
        """Record ``rows`` that belong to an earlier run and apply them. Raise StoreFailed if the store refuses."""
        if rows:
            last = self.store.append(rows, run=self.run) + len(rows) - 1
            if not all(isinstance(row, Change) for row in rows):
                self._amended_upto = last
            self.apply_stored(rows)

    def deliver_unstored(self, events: Sequence[AgentEvent], *, prompt_id: str = "") -> None:
        """Deliver ``events`` without storing them: clients need the end of a run even when nothing can be written."""
        self._deliver(Batch(0, self.run, events, prompt_id))

    def deliver_unrecorded(self, events: Sequence[AgentEvent]) -> None:
        """Deliver ``events`` that belong to no run. Full subscribers skip notices and panel redraws."""
        batch = Batch(0, self.run, events)
        can_be_missed = all(isinstance(event, ExtNotify | ExtWaiting | PanelRendered) for event in events)
        for subscriber in self.subscribers:
            if not (can_be_missed and subscriber.full):
                subscriber.deliver(batch)

    def count(self, counters: Counters) -> Counters:
        """Price a reply's tokens, add them to the totals, and return them with their price."""
        charged = counters if self._agent is None else self._agent.called_model.charge(counters)
        self.totals += charged
        return charged

    def counted(self, now: str, counters: Counters) -> UsageCounted:
        """Return the row for tokens used outside of any run."""
        return UsageCounted(now, counters, self.totals + counters)

    async def drain(self) -> None:
        """Wait until the store and every full subscriber have room."""
        if self.store.full:
            await self.store.room()
        for subscriber in self.subscribers:
            if subscriber.full:
                await subscriber.room()

    def on_safe(self, seq: int) -> None:
        """Deliver the batches that are stored by now."""
        self._stored_seq = seq
        if 0 < self._amended_upto <= seq:
            self.on_foreign_rows(self._amended_upto)
            self._amended_upto = 0
        if self._undelivered:
            self._deliver_stored()

    def on_failed(self, problem: StoreFailed) -> None:
        """Drop the undelivered batches and report the failure."""
        self._undelivered.clear()
        self.on_failure(problem)

    def _deliver_stored(self) -> None:
        if self._is_delivering:
            return  # A subscriber acted inside `deliver`: finish this batch first, so that all see one order.
        self._is_delivering = True
        try:
            while self._undelivered and self._undelivered[0].last <= self._stored_seq:
                self._deliver(self._next_batch())
        finally:
            self._is_delivering = False

    def _next_batch(self) -> Batch:
        """Take all batches that can be delivered as one: each delivery costs every subscriber."""
        batch = newest = self._undelivered.popleft()
        if not self._undelivered or not self._is_continued(newest):
            return batch
        events = [*batch.events]
        while self._is_continued(newest):
            newest = self._undelivered.popleft()
            events += newest.events
        return Batch(batch.seq, batch.run, events)

    def _is_continued(self, batch: Batch) -> bool:
        """True if the next batch can be delivered together with ``batch``."""
        if not self._undelivered or type(batch.events[-1]) is Done:
            return False
        following = self._undelivered[0]
        return following.seq == batch.last + 1 and following.run == batch.run and following.last <= self._stored_seq

    def _deliver(self, batch: Batch) -> None:
        if not _BOUNDS.keys().isdisjoint(map(type, batch.events)):
            self.in_turn = [_BOUNDS[type(event)] for event in batch.events if type(event) in _BOUNDS][-1]
        if isinstance(batch.events[-1], Done):
            self.before = None
        for subscriber in self.subscribers:
            subscriber.deliver(batch)
        if self._agent is not None:
            self._agent.extensions.observe(batch.events)

    def _unsubscribe(self, subscriber: Subscriber) -> None:
        self.subscribers = tuple(other for other in self.subscribers if other is not subscriber)
