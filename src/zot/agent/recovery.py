"""Going on after a crash: what a session must record before anybody speaks again. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence

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
    ToolResult,
    TurnEnd,
    Usage,
    text,
)
from zot.messages import ZERO, Message, ResultBlock, TextBlock, show_result_content
from zot.store import Change, Configured, Row, Said, Spliced

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
    events = [row for row in run if not isinstance(row, Said | Spliced | Configured)]
    if parks and (waiting := _waiting(events)) is not None and transcript.unanswered():
        return Recovery(parked=waiting)
    rows: list[Row] = []
    if events and not any(isinstance(event, Done) for event in events):
        rows += _ending(transcript, events, now)
    return Recovery([*rows, *_mended(transcript, rows)])


def _waiting(events: Sequence[AgentEvent]) -> ApprovalRequest | None:
    """Return the question that nothing has followed yet."""
    for event in reversed(events):
        if isinstance(event, ApprovalRequest):
            return event
        if not isinstance(event, ExtNotify):
            return None
    return None


def _ending(transcript: Transcript, events: Sequence[AgentEvent], now: str) -> list[Row]:
    rows = _partial_reply(events, now)
    lost = (TextBlock(LOST_RESULT),)
    for call in transcript.unanswered() if not rows else ():
        message = Message("tool", (ResultBlock(call.id, True, lost),), now)
        rows += [Said(message), ToolResult(call.id, True, show_result_content(lost))]
    return [*rows, TurnEnd("aborted"), Done()]


def _partial_reply(events: Sequence[AgentEvent], now: str) -> list[Row]:
    """Return what keeps and shows the words of a reply that was cut off. Nobody knows what it used."""
    start = max((at for at, event in enumerate(events) if isinstance(event, AssistantStart)), default=-1)
    heard = events[start + 1 :]
    if start < 0 or any(isinstance(event, Usage | AssistantMessage | TurnEnd) for event in heard):
        return []
    totals = next((event.cumulative for event in reversed(events) if isinstance(event, Usage)), ZERO)
    usage = Usage(0, 0, 0, 0, 0.0, totals, price_known=False)
    words = text(event for event in heard if isinstance(event, TextDelta))
    if not words:
        return [usage]
    said = (TextBlock(words),)
    return [Said(Message("assistant", said, now)), usage, AssistantMessage(said, now)]


def _mended(transcript: Transcript, rows: Sequence[Row]) -> list[Change]:
    """Return the change that makes a transcript whole that would not be, once ``rows`` are in it."""
    future = Transcript()
    future.apply(Spliced(0, 0, tuple(transcript.messages)))
    for row in rows:
        if isinstance(row, Said):
            future.apply(row)
    messages = repaired(future.messages)
    return [] if messages == list(future.messages) else [Spliced(0, len(future), tuple(messages))]
