"""Recovery after a crash: end or continue a run that a dead process left open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from zot.agent.approvals import Parked, find_parked, missed
from zot.agent.transcript import Transcript, repaired
from zot.errors import SessionBusy, StoreFailed, UserError
from zot.events import (
    AgentEvent,
    ApprovalRequest,
    AssistantMessage,
    AssistantStart,
    Done,
    ExtNotify,
    TextDelta,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    Usage,
    UserMessage,
    text,
)
from zot.messages import ZERO, Message, ResultBlock, TextBlock, show_result_content
from zot.session.history import History
from zot.session.queue import Errand, Job
from zot.session.transcripts import Past
from zot.store import Change, Configured, Guarded, Row, Said, Spliced, Store

T = TypeVar("T")

LOST_RESULT = "the result was lost: the run was interrupted"


class Recovery(msgspec.Struct, frozen=True):
    """What the rows of a newest run leave to do: rows to be appended, or a question that still waits for its answer."""

    rows: Sequence[Row] = ()
    parked: ApprovalRequest | None = None


def recover(transcript: Transcript, run: Sequence[Row], *, now: str, parks: bool = True) -> Recovery:
    """Say how a session goes on, whose newest run has recorded the rows ``run`` and whose transcript is as given.

    A run that did not come to its end gets one: what the model had said is kept, every open call gets a result that
    says it was lost, and `turn_end` and `done` follow. One that waits for a person's answer is left alone if it may be
    parked. A transcript
    that no provider would accept, because something of it was lost, is made whole.
    """
    events = [row for row in run if not isinstance(row, Change)]
    if parks and (waiting := _waiting(events)) is not None and transcript.unanswered():
        return Recovery(parked=waiting)
    rows: list[Row] = []
    if events and not any(isinstance(event, Done) for event in events):
        rows = [*_partial_reply(run, now), *_lost_results(transcript, events, now), *_ending(events), Done()]
    return Recovery([*rows[:-1], *_mended(transcript, rows), *rows[-1:]])


def _waiting(events: Sequence[AgentEvent]) -> ApprovalRequest | None:
    """Return the question that nothing has followed yet."""
    for event in reversed(events):
        if isinstance(event, ApprovalRequest):
            return event
        if not isinstance(event, ExtNotify):
            return None
    return None


def _partial_reply(run: Sequence[Row], now: str) -> list[Row]:
    """Return what keeps and shows the words of a reply that was cut off. Nobody knows what it used."""
    heard = _since(run, AssistantStart)
    if heard is None or any(isinstance(row, Said | Usage | AssistantMessage | TurnEnd) for row in heard):
        return []
    totals = next((row.cumulative for row in reversed(run) if isinstance(row, Usage)), ZERO)
    usage = Usage(0, 0, 0, 0, 0.0, totals, price_known=False)
    words = text(row for row in heard if isinstance(row, TextDelta))
    if not words:
        return [usage]
    said = (TextBlock(words),)
    return [Said(Message("assistant", said, now)), usage, AssistantMessage(said, now)]


def _lost_results(transcript: Transcript, events: Sequence[AgentEvent], now: str) -> list[Row]:
    """Return a result for every open call; the calls themselves, too, if nobody was told of them yet."""
    calls = transcript.unanswered()
    rows: list[Row] = []
    if calls and not any(isinstance(event, TurnEnd) for event in _since(events, AssistantStart) or ()):
        known = {event.id for event in _since(events, AssistantStart) or () if isinstance(event, ToolCall)}
        rows += [ToolCall(call.id, call.name, call.args) for call in calls if call.id not in known]
        rows.append(TurnEnd("tool_use"))
    lost = (TextBlock(LOST_RESULT),)
    for call in calls:
        message = Message("tool", (ResultBlock(call.id, True, lost),), now)
        rows += [Said(message), ToolResult(call.id, True, show_result_content(lost))]
    return rows


def _ending(events: Sequence[AgentEvent]) -> list[Row]:
    """Return the end of the last turn; none if it had one that nothing follows."""
    last = next((event for event in reversed(events) if isinstance(event, TurnEnd | TurnStart | UserMessage)), None)
    return [] if isinstance(last, TurnEnd) and last.stop != "tool_use" else [TurnEnd("aborted")]


def _since(rows: Sequence[T], kind: type) -> Sequence[T] | None:
    """Return what follows the last row of a kind; None if there is none."""
    for at in range(len(rows) - 1, -1, -1):
        if isinstance(rows[at], kind):
            return rows[at + 1 :]
    return None


def _mended(transcript: Transcript, rows: Sequence[Row]) -> list[Change]:
    """Return the change that makes a transcript whole that would not be, once ``rows`` are in it."""
    future = Transcript()
    future.apply(Spliced(0, 0, tuple(transcript.messages)))
    for row in rows:
        if isinstance(row, Said):
            future.apply(row)
    messages = repaired(future.messages)
    return [] if messages == list(future.messages) else [Spliced(0, len(future), tuple(messages))]


class TakenUp(msgspec.Struct, frozen=True):
    """A run that goes on here: where it stands, what it has recorded so far, and how long a person may still answer."""

    parked: Parked
    rows: Sequence[Row]
    left_s: float


async def mend(history: History, store: Store, newest: Sequence[Row], *, now: Callable[[], str]) -> None:
    """End a newest run that has no end, unless it waits for a person, or somebody else runs the session."""
    history.must_recover = _is_cut_off(history, newest)
    if not history.must_recover or not recover(history.transcript, newest, now="").rows:
        return
    try:
        history.learn([row for _, row in await store.begin()])
    except SessionBusy:
        return  # It is not dead.
    try:
        history.run = store.last_run
        rows = [row for _, row in await store.newest()]
        history.amend(recover(history.transcript, rows, now=now()).rows)
        await history.settled()
    finally:
        store.end()


async def take_up(
    history: History,
    store: Store,
    newest: Sequence[Row],
    *,
    now: Callable[[], str],
    clock: Callable[[], float],
) -> TakenUp | None:
    """Return a newest run without an end that can go on here, as the store's only writer. End any other.

    Only one that was begun here can: what a file or another session says that a person allowed, nobody has.
    """
    history.must_recover = _is_cut_off(history, newest)
    if not store.left_behind and not history.must_recover:
        return None
    try:
        history.learn([row for _, row in await store.begin()])
    except SessionBusy:
        return None  # It is not dead.
    taken = None
    try:
        history.run = store.last_run
        taken = await _see_to(history, store, now=now, clock=clock)
        if taken is None:
            await history.settled()
        return taken
    finally:
        if taken is None:
            store.end()


async def catch_up(
    history: History,
    store: Store,
    others: Sequence[tuple[int, Row]],
    *,
    now: Callable[[], str],
    clock: Callable[[], float] | None,
) -> TakenUp | None:
    """Know what ``others`` have recorded, and end what they could not: a dead one leaves its run without an end.

    One that waits for a person is returned instead, if ``clock`` says that it is not too late. We are the only writer.
    """
    history.learn([row for _, row in others])
    history.run = store.last_run
    if not history.must_recover and not others:
        return None
    history.must_recover = True
    taken = await _see_to(history, store, now=now, clock=clock)
    history.must_recover = taken is not None
    return taken


async def _see_to(
    history: History, store: Store, *, now: Callable[[], str], clock: Callable[[], float] | None
) -> TakenUp | None:
    """Return a newest run that waits for a person, and end any other; every one without a ``clock``."""
    rows = [row for _, row in await store.newest()]
    parked = find_parked(history.transcript, rows) if clock is not None and store.left_behind else None
    left_s = 0 if parked is None or clock is None else parked.left_s(clock())
    if parked is not None and (parked.answer is not None or left_s > 0):
        return TakenUp(parked, rows, left_s)
    if parked is not None:
        late = missed(parked, now())
        history.amend(late)
        rows = [*rows, *late]
    history.amend(recover(history.transcript, rows, now=now(), parks=False).rows)
    return None


async def conclude(store: Store, past: Past, *, now: Callable[[], str]) -> None:
    """End a run that a dead process left in a session that nobody can use, unless it waits for a person."""
    history = History(
        store,
        charge=lambda counters: counters,
        measured=lambda usage, transcript: None,
        recall=lambda allowed: None,
        observe=lambda events: None,
        on_failure=lambda problem: None,
    )
    history.learn(past.changes)
    history.totals = past.totals
    await mend(history, store, past.newest, now=now)


async def note(history: History, store: Store, row: Row, *, begun: bool) -> None:
    """Record something beside any run, or in the one that has ``begun``. Raise SessionBusy, StoreFailed."""
    if begun or not store.shared:
        history.amend([row])
        return
    others = await store.begin()
    try:
        history.learn([other for _, other in others])
        if others:
            history.must_recover = True  # Whoever it was may be dead by now.
            history.overheard(others[-1][0])
        history.run = store.last_run
        history.amend([row])
        await history.settled()
    finally:
        store.end()


async def keep(history: History, make: Callable[[], Row], accept: Callable[[Job], object]) -> None:
    """Record something at once while the session is written to, else as soon as it can be, and wait until it is safe.

    It is made in the moment in which it is recorded. Raise AgentError.
    """

    async def record() -> None:
        history.amend([make()])
        await history.settled()

    try:
        history.amend([make()])
    except StoreFailed:  # Nothing runs.
        errand = Errand(record)
        accept(errand.job)
        await errand.over
    else:
        await history.settled()


def dismissal(name: str, guarded: Guarded | None, *, attends: bool) -> Guarded:
    """Return what lifts what a guard blocks that is away. Raise UserError if none is missed, or it is there."""
    if guarded is None or not guarded.intercept:
        raise UserError(f"no guard named {name!r} is missed in this session")
    if attends:
        raise UserError(f"the guard {name!r} is connected; only one that is away can be dismissed")
    return Guarded(name, ())


async def establish(history: History, store: Store, configured: Configured) -> None:
    """Record what a session works with, durably, unless that is on record or somebody else runs it."""
    if store.shared and configured != history.configured:
        with suppress(SessionBusy):  # Then its next run does it.
            await note(history, store, configured, begun=False)


def _is_cut_off(history: History, newest: Sequence[Row]) -> bool:
    """True if the newest run, or the transcript, is not as whoever brings it to its end would leave it."""
    return bool(recover(history.transcript, newest, now="", parks=False).rows)
