"""Going on after a crash: what a session must record before anybody speaks again. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from zot.agent.transcript import Transcript, repaired
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
from zot.store import Change, Row, Said, Spliced

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
