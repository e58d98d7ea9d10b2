"""Transcripts derived from stored changes. Does no I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from zot.agent.transcript import Transcript
from zot.errors import UserError
from zot.events import (
    AssistantMessage,
    CompactDone,
    Done,
    Error,
    ExtNotify,
    ToolResult,
    TurnEnd,
    TurnStart,
    Usage,
    UserMessage,
)
from zot.messages import ZERO, Counters, Message, PastMessage, Role, show, thought_of
from zot.store import Change, MessageAdded, MessagesReplaced, Row


async def _nothing() -> None:
    pass


class TranscriptPast(msgspec.Struct, frozen=True):
    """The rows a session starts from: transcript ``changes`` with the newest usage among them, the rows of the
    ``newest`` run, and its ``totals``. ``release`` frees their resources."""

    changes: Sequence[Row] = ()
    newest: Sequence[Row] = ()
    totals: Counters = ZERO
    release: Callable[[], Awaitable[None]] = _nothing


class RewindTarget(msgspec.Struct, frozen=True):
    """The target of a rewind: the first ``messages``, or the row ``at``. Without ``files``, files stay unchanged.

    With ``preview`` nothing changes; the result says what would.
    """

    messages: int | None = None
    at: int | None = None
    files: bool = True
    preview: bool = False


def past_of(messages: Sequence[Message], totals: Counters) -> TranscriptPast:
    """Return a past with these messages and totals."""
    return TranscriptPast([MessagesReplaced(0, 0, tuple(messages))] if messages else [], totals=totals)


#: The ends of turns that failed, were aborted or cut off, by role and time of the last message before the end.
Endings: TypeAlias = Mapping[tuple[Role, str], TurnEnd]
#: The most events that can follow a change before something new begins (`fork_end`).
CONCLUSION = 8
_CONCLUDING = UserMessage | Usage | AssistantMessage | ExtNotify | TurnEnd | ToolResult | CompactDone | Done


def all_messages(changes: Iterable[Change]) -> list[Message]:
    """Return every message that was ever in the transcript, in order.

    Compacted and cleared messages are included; their replacements follow at the place where they were inserted.
    """
    messages: list[Message] = []
    for change in changes:
        match change:
            case MessageAdded(message=message):
                messages.append(message)
            case MessagesReplaced(messages=new):
                messages += [message for message in new if message not in messages]
            case _:
                pass
    return messages


def endings(rows: Iterable[Row]) -> Endings:
    """Return the ends of turns that failed, or were aborted, cut off or blocked.

    ``rows`` has all changes of the transcript, and the events of the runs in question.
    """
    ended: dict[tuple[Role, str], TurnEnd] = {}
    transcript, is_asked = Transcript(), False
    for row in rows:
        match row:
            case MessageAdded() | MessagesReplaced():
                transcript.apply(row)
            case UserMessage() | TurnStart():
                is_asked = True  # A compaction's end says nothing about the last message.
            case Error(message=why) if is_asked:
                _mark(ended, transcript, TurnEnd("error", why))
            case ExtNotify(blocked="assistant_message", extension=name, message=why) if is_asked:
                _mark(ended, transcript, TurnEnd("end_turn", f"held back by {name}: {why}"))
            case TurnEnd(stop="error" | "aborted" | "length") if is_asked:
                _mark(ended, transcript, row)
            case Done():
                is_asked = False
            case _:
                pass
    return ended


def _mark(ended: dict[tuple[Role, str], TurnEnd], transcript: Transcript, end: TurnEnd) -> None:
    for message in transcript.messages[-1:]:
        ended[message.role, message.time] = end


def past_message(message: Message, ended: Endings) -> PastMessage:
    """Return a message as it is shown to a client that missed it."""
    shown, end = show(message), ended.get((message.role, message.time))
    past = PastMessage(shown.role, shown.content, shown.time, thought_of(message))
    return past if end is None else msgspec.structs.replace(past, stop=end.stop, error=end.error or "")


def current_messages(changes: Iterable[Change]) -> list[Message]:
    """Return the messages that remain after all changes."""
    transcript = Transcript()
    for change in changes:
        transcript.apply(change)
    return list(transcript.messages)


def fork_point(changes: Sequence[tuple[int, Change]], count: int, *, purpose: str = "fork at") -> int:
    """Return the newest row at which the transcript had exactly the first ``count`` of its messages.

    ``purpose`` is used in errors. Raise UserError if there is no such row: too many messages, or a tool call would lose
    its results.
    """
    now = current_messages(change for _, change in changes)
    wanted, then, point = now[:count], Transcript(), 0
    for seq, change in changes:
        then.apply(change)
        if list(then.messages) == wanted:
            point = seq
    if _is_open(wanted):
        raise UserError(f"cannot {purpose} message {count}: a tool call waits for its result there")
    if len(wanted) < count:
        raise UserError(f"cannot {purpose} message {count}: the conversation has {len(now)}")
    if count and not point:
        raise UserError(f"cannot {purpose} message {count}: the conversation was changed there")
    return point


def fork_end(point: int, following: Iterable[tuple[int, Row]]) -> int:
    """Return the last row of a fork at row ``point``: after the events that only report its effects.

    Without those events the fork would look like an interrupted run.
    """
    for seq, row in following:
        if not isinstance(row, _CONCLUDING):
            break
        point = seq
    return point


def _is_open(messages: Sequence[Message]) -> bool:
    """True if a tool call in these messages has no result."""
    part = Transcript()
    part.apply(MessagesReplaced(0, 0, tuple(messages)))
    return bool(part.unanswered())
