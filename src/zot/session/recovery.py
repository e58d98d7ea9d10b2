"""Recovery after a crash: find what a dead process left of the newest run, then end it or let it resume.

Every process that acquires a session's lease calls `recover` before it appends, because another one may have died since
it last looked. Nothing else ends a run that a dead process left.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from zot.agent.approvals import WaitingForApproval, expiry_text
from zot.agent.transcript import LOST_RESULT, Transcript, repaired
from zot.errors import SessionBusy
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
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
from zot.session.transcripts import TranscriptPast
from zot.store import (
    CallStarted,
    Change,
    GuardSet,
    LockChanged,
    MessageAdded,
    MessagesReplaced,
    PermissionGranted,
    Row,
    SettingsChanged,
    Store,
    UsageCounted,
)

T = TypeVar("T")


class Clean(msgspec.Struct, frozen=True):
    """The newest run has ended, and the transcript is one that providers accept."""


class Interrupted(msgspec.Struct, frozen=True):
    """The newest run has no end, or rows were lost: ``ending`` ends it and repairs the transcript."""

    ending: Sequence[Row]


Findings: TypeAlias = Clean | Interrupted | WaitingForApproval


class AmongCalls(msgspec.Struct, frozen=True):
    """A run, with ``rows`` so far, whose process died between a reply with tool calls, of turn ``step``, and the next.

    ``begun`` counts how often each open call has started: without a result, its effects are uncertain.
    """

    step: int
    rows: Sequence[Row]
    begun: Mapping[str, int]


class WaitingRuns(enum.Enum):
    """Treatment of an unfinished run after its process died. It is ended if neither applies."""

    LEAVE = "leave it to a process that resumes it, unless it has been answered: then end it"
    RESUME = "resume it here if it has been answered or its deadline has not passed, else end it"
    CONTINUE = "as RESUME, and continue a run that was among its tool calls, unless it was aborted"
    END = "end it"
    IGNORE = "leave it as it is, whatever its state: other processes recover it"


def inspect(transcript: Transcript, rows: Sequence[Row], *, now: Callable[[], str]) -> Findings:
    """Say how the newest run of a session, with these ``rows``, was left. ``now`` gives the time of rows to append."""
    return _waiting(transcript, rows) or _interrupted(transcript, rows, now=now)


def _interrupted(transcript: Transcript, rows: Sequence[Row], *, now: Callable[[], str]) -> Clean | Interrupted:
    """Return the rows that end a run, whether or not it waits for an approval.

    The text of a partial reply is kept, each open tool call gets a result that says it was lost, and `turn_end` and
    `done` follow.
    """
    events = [row for row in rows if not isinstance(row, Change)]
    ending: list[Row] = []
    if events and not any(isinstance(event, Done) for event in events):
        at = now()
        ending = [*_partial_reply(rows, at), *_lost_results(transcript, events, at), *_ending(events), Done()]
    ending[-1:-1] = _repair(transcript, ending)
    return Interrupted(ending) if ending else Clean()


def _waiting(transcript: Transcript, rows: Sequence[Row]) -> WaitingForApproval | None:
    """Return where a run waits for an approval; None if it does not, or if the call may have started since."""
    calls = transcript.unanswered()
    answer: ApprovalAnswer | None = None
    for row in reversed(rows if calls else ()):
        match row:
            case ApprovalAnswer() if answer is None and row.decision != "aborted":
                answer = row
            case ApprovalRequest() if (answer is None or answer.id == row.id) and row.tool == calls[0].name:
                step = next((turn.step for turn in reversed(rows) if isinstance(turn, TurnStart)), 1)
                return WaitingForApproval(row, answer, calls[0], step, rows)
            case ExtNotify() | SettingsChanged() | PermissionGranted() | GuardSet() | LockChanged() | UsageCounted():
                pass
            case _:
                return None
    return None


def _among_calls(rows: Sequence[Row]) -> AmongCalls | None:
    """Return where a run was among its tool calls; None if it was elsewhere, or was being aborted."""
    begun: dict[str, int] = {}
    has_called = False
    for row in reversed(rows):
        match row:
            case CallStarted(call=call):
                begun[call] = begun.get(call, 0) + 1
            case TurnEnd(stop="tool_use"):
                has_called = True
            case TurnStart(step=step):
                return AmongCalls(step, rows, begun) if has_called else None
            case Done() | TurnEnd() | ApprovalAnswer(decision="aborted"):
                return None
            case _:
                pass
    return None


def _expired(waiting: WaitingForApproval, now: str) -> list[Row]:
    """Return the rows to record for an approval whose deadline passed while no process waited for it."""
    content = (TextBlock(expiry_text(waiting.request)),)
    message = Message("tool", (ResultBlock(waiting.call.id, True, content),), now)
    result = ToolResult(waiting.call.id, True, show_result_content(content))
    return [ApprovalAnswer(waiting.request.id, "expired"), MessageAdded(message), result]


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


def needs_lease(found: Findings, store: Store, waiting: WaitingRuns) -> bool:
    """True if the state that `inspect` ``found`` must be recovered, for which the lease is needed."""
    match found:
        case Clean():
            return store.left_behind and waiting in (WaitingRuns.RESUME, WaitingRuns.CONTINUE)
        case WaitingForApproval(answer=None):
            return waiting is not WaitingRuns.LEAVE
        case _:
            return True


async def recover(
    history: History,
    foreign: Sequence[tuple[int, Row]],
    waiting: WaitingRuns,
    *,
    now: Callable[[], str],
    time_s: float,
) -> WaitingForApproval | AmongCalls | None:
    """Load the rows of other processes and end a run that a dead one left open. The caller holds the lease.

    A run to resume or continue here is returned instead. Only a run that was begun in this journal can resume:
    approvals in an imported or forked session do not count.
    """
    store = history.store
    history.apply_stored([row for _, row in foreign])
    history.run = store.last_run
    if not history.must_recover and not foreign:
        return None
    history.must_recover = True
    rows = [row for _, row in await store.newest()]
    resumes = waiting in (WaitingRuns.RESUME, WaitingRuns.CONTINUE) and store.left_behind
    match inspect(history.transcript, rows, now=now):
        case Interrupted() if waiting is WaitingRuns.CONTINUE and resumes and (left := _among_calls(rows)) is not None:
            return left
        case Interrupted(ending=ending):
            history.amend(ending)
        case WaitingForApproval(answer=answer) as asked:
            if waiting is WaitingRuns.LEAVE and answer is None:
                return None
            if resumes:
                if answer is not None or asked.left_s(time_s) > 0:
                    return asked
                expired = _expired(asked, now())
                history.amend(expired)
                rows += expired
            if isinstance(found := _interrupted(history.transcript, rows, now=now), Interrupted):
                history.amend(found.ending)
        case Clean():
            pass
    history.must_recover = False
    return None


async def recover_unusable(store: Store, past: TranscriptPast, *, now: Callable[[], str]) -> None:
    """Recover a session that cannot be opened, but for a run that waits for an approval."""
    history = History(store)
    history.apply_stored(past.changes)
    history.totals = past.totals
    if not needs_lease(inspect(history.transcript, past.newest, now=now), store, WaitingRuns.LEAVE):
        return
    try:
        foreign = await store.begin()
    except SessionBusy:
        return  # Another process runs it.
    try:
        await recover(history, foreign.rows, WaitingRuns.LEAVE, now=now, time_s=time.time())
        await store.settled()
    finally:
        store.end()
