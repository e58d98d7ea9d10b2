"""Recovery after a crash: end or continue a run that a dead process left open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from zot.agent.approvals import Parked, expiry_rows, find_parked
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
from zot.session.queue import ExclusiveTask, Job
from zot.session.transcripts import TranscriptPast
from zot.store import Change, Configured, GuardSet, MessageAdded, MessagesReplaced, Row, Store

T = TypeVar("T")

LOST_RESULT = "the result was lost: the run was interrupted"


class Recovery(msgspec.Struct, frozen=True):
    """The outcome of inspecting a newest run: rows to append, or an approval request that is still open."""

    rows: Sequence[Row] = ()
    parked: ApprovalRequest | None = None


def recover(transcript: Transcript, run: Sequence[Row], *, now: str, parks: bool = True) -> Recovery:
    """Return the rows that end a session's newest run, or its open approval request.

    ``run`` has its rows. If there is no `done`, the text of a partial reply is kept, each open tool call gets
    a result that says it was lost, and `turn_end` and `done` follow. With ``parks``, a run that waits for an approval
    is left open. A transcript that providers would refuse, because rows were lost, is repaired.
    """
    events = [row for row in run if not isinstance(row, Change)]
    if parks and (waiting := _open_request(events)) is not None and transcript.unanswered():
        return Recovery(parked=waiting)
    rows: list[Row] = []
    if events and not any(isinstance(event, Done) for event in events):
        rows = [*_partial_reply(run, now), *_lost_results(transcript, events, now), *_ending(events), Done()]
    return Recovery([*rows[:-1], *_repair(transcript, rows), *rows[-1:]])


def _open_request(events: Sequence[AgentEvent]) -> ApprovalRequest | None:
    """Return the approval request that no other event has followed; None if there is none."""
    for event in reversed(events):
        if isinstance(event, ApprovalRequest):
            return event
        if not isinstance(event, ExtNotify):
            return None
    return None


def _partial_reply(run: Sequence[Row], now: str) -> list[Row]:
    """Return rows that store and show the text of a reply that was cut off. Its usage is unknown."""
    received = _since(run, AssistantStart)
    if received is None or any(isinstance(row, MessageAdded | Usage | AssistantMessage | TurnEnd) for row in received):
        return []
    totals = next((row.cumulative for row in reversed(run) if isinstance(row, Usage)), ZERO)
    usage = Usage(0, 0, 0, 0, 0.0, totals, price_known=False)
    words = text(row for row in received if isinstance(row, TextDelta))
    if not words:
        return [usage]
    said = (TextBlock(words),)
    return [MessageAdded(Message("assistant", said, now)), usage, AssistantMessage(said, now)]


def _lost_results(transcript: Transcript, events: Sequence[AgentEvent], now: str) -> list[Row]:
    """Return a result for every open tool call, after the calls themselves where no event has announced them yet."""
    calls = transcript.unanswered()
    rows: list[Row] = []
    if calls and not any(isinstance(event, TurnEnd) for event in _since(events, AssistantStart) or ()):
        known = {event.id for event in _since(events, AssistantStart) or () if isinstance(event, ToolCall)}
        rows += [ToolCall(call.id, call.name, call.args) for call in calls if call.id not in known]
        rows.append(TurnEnd("tool_use"))
    lost = (TextBlock(LOST_RESULT),)
    for call in calls:
        message = Message("tool", (ResultBlock(call.id, True, lost),), now)
        rows += [MessageAdded(message), ToolResult(call.id, True, show_result_content(lost))]
    return rows


def _ending(events: Sequence[AgentEvent]) -> list[Row]:
    """Return the end of the last turn; nothing if it has a final one."""
    last = next((event for event in reversed(events) if isinstance(event, TurnEnd | TurnStart | UserMessage)), None)
    return [] if isinstance(last, TurnEnd) and last.stop != "tool_use" else [TurnEnd("aborted")]


def _since(rows: Sequence[T], kind: type) -> Sequence[T] | None:
    """Return the rows after the last row of a kind; None if there is none."""
    for at in range(len(rows) - 1, -1, -1):
        if isinstance(rows[at], kind):
            return rows[at + 1 :]
    return None


def _repair(transcript: Transcript, rows: Sequence[Row]) -> list[Change]:
    """Return the change that repairs the transcript as it will be after ``rows``; nothing if it needs none."""
    future = Transcript()
    future.apply(MessagesReplaced(0, 0, tuple(transcript.messages)))
    for row in rows:
        if isinstance(row, MessageAdded):
            future.apply(row)
    messages = repaired(future.messages)
    return [] if messages == list(future.messages) else [MessagesReplaced(0, len(future), tuple(messages))]


class ResumableRun(msgspec.Struct, frozen=True):
    """A run to resume here: its state, its rows so far, and the time left to answer its approval request."""

    parked: Parked
    rows: Sequence[Row]
    left_s: float


async def end_open_run(history: History, store: Store, newest: Sequence[Row], *, now: Callable[[], str]) -> None:
    """End a newest run that has no end, unless it waits for an approval or another process runs the session."""
    history.must_recover = _needs_recovery(history, newest)
    if not history.must_recover or not recover(history.transcript, newest, now="").rows:
        return
    try:
        history.learn([row for _, row in await store.begin()])
    except SessionBusy:
        return  # Another process runs it.
    try:
        history.run = store.last_run
        rows = [row for _, row in await store.newest()]
        history.amend(recover(history.transcript, rows, now=now()).rows)
        await history.settled()
    finally:
        store.end()


async def resume_or_end(
    history: History,
    store: Store,
    newest: Sequence[Row],
    *,
    now: Callable[[], str],
    clock: Callable[[], float],
) -> ResumableRun | None:
    """Acquire the lease and return a newest run that can resume here; end any other unfinished run.

    Only a run that was begun in this journal can resume: approvals in an imported or forked session do not count.
    """
    history.must_recover = _needs_recovery(history, newest)
    if not store.left_behind and not history.must_recover:
        return None
    try:
        history.learn([row for _, row in await store.begin()])
    except SessionBusy:
        return None  # Another process runs it.
    taken = None
    try:
        history.run = store.last_run
        taken = await _resume_or_end(history, store, now=now, clock=clock)
        if taken is None:
            await history.settled()
        return taken
    finally:
        if taken is None:
            store.end()


async def load_foreign_rows(
    history: History,
    store: Store,
    others: Sequence[tuple[int, Row]],
    *,
    now: Callable[[], str],
    clock: Callable[[], float] | None,
) -> ResumableRun | None:
    """Load the rows of ``others`` and end a run that a dead process left open. The caller holds the lease.

    A run that waits for an approval is returned instead, if by ``clock`` its deadline has not passed.
    """
    history.learn([row for _, row in others])
    history.run = store.last_run
    if not history.must_recover and not others:
        return None
    history.must_recover = True
    taken = await _resume_or_end(history, store, now=now, clock=clock)
    history.must_recover = taken is not None
    return taken


async def _resume_or_end(
    history: History, store: Store, *, now: Callable[[], str], clock: Callable[[], float] | None
) -> ResumableRun | None:
    """Return a newest run that waits for an approval; end any other, and without a ``clock`` that one, too."""
    rows = [row for _, row in await store.newest()]
    parked = find_parked(history.transcript, rows) if clock is not None and store.left_behind else None
    left_s = 0 if parked is None or clock is None else parked.left_s(clock())
    if parked is not None and (parked.answer is not None or left_s > 0):
        return ResumableRun(parked, rows, left_s)
    if parked is not None:
        late = expiry_rows(parked, now())
        history.amend(late)
        rows = [*rows, *late]
    history.amend(recover(history.transcript, rows, now=now(), parks=False).rows)
    return None


async def end_run_of_unusable_session(store: Store, past: TranscriptPast, *, now: Callable[[], str]) -> None:
    """End a run that a dead process left in a session that cannot be opened, unless it waits for an approval."""
    history = History(store)
    history.learn(past.changes)
    history.totals = past.totals
    await end_open_run(history, store, past.newest, now=now)


async def record_now(history: History, store: Store, row: Row, *, begun: bool) -> None:
    """Record a row outside of any run, or in the one that has ``begun``. Raise SessionBusy, StoreFailed."""
    if begun or not store.shared:
        history.amend([row])
        return
    others = await store.begin()
    try:
        history.learn([other for _, other in others])
        if others:
            history.must_recover = True  # Their process may have died since.
            history.overheard(others[-1][0])
        history.run = store.last_run
        history.amend([row])
        await history.settled()
    finally:
        store.end()


async def record_soon(history: History, make: Callable[[], Row], accept: Callable[[Job], object]) -> None:
    """Record the row from ``make``, now if this session holds the lease, else through the queue; wait until it is
    stored.

    ``make`` is called at the moment of recording. Raise AgentError.
    """

    async def record() -> None:
        history.amend([make()])
        await history.settled()

    try:
        history.amend([make()])
    except StoreFailed:  # No run holds the lease.
        errand = ExclusiveTask(record)
        accept(errand.job)
        await errand.over
    else:
        await history.settled()


def dismissal(name: str, guarded: GuardSet | None, *, attends: bool) -> GuardSet:
    """Return the row that lifts the blocks of a disconnected guard. Raise UserError if there is none or it is
    connected."""
    if guarded is None or not guarded.intercept:
        raise UserError(f"no guard named {name!r} is missed in this session")
    if attends:
        raise UserError(f"the guard {name!r} is connected; only one that is away can be dismissed")
    return GuardSet(name, ())


async def establish(history: History, store: Store, configured: Configured) -> None:
    """Record a session's settings, durably, unless they are on record or another process runs the session."""
    if store.shared and configured != history.configured:
        with suppress(SessionBusy):  # The next run records them.
            await record_now(history, store, configured, begun=False)


def _needs_recovery(history: History, newest: Sequence[Row]) -> bool:
    """True if recovery would append rows: the newest run has no end, or the transcript needs repair."""
    return bool(recover(history.transcript, newest, now="", parks=False).rows)
