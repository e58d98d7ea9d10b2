"""What stored changes tell about a transcript's past. Does no I/O."""

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
from zot.store import Change, Row, Said, Spliced


async def _nothing() -> None:
    pass


class Past(msgspec.Struct, frozen=True):
    """What a session remembers when it begins: changes of its transcript, and among them what the service counted last;
    everything of its newest run, what it has used, and what to let go of."""

    changes: Sequence[Row] = ()
    newest: Sequence[Row] = ()
    totals: Counters = ZERO
    release: Callable[[], Awaitable[None]] = _nothing


def told(messages: Sequence[Message], totals: Counters) -> Past:
    """Return a past in which this was said, and so much used."""
    return Past([Spliced(0, 0, tuple(messages))] if messages else [], totals=totals)


#: How turns ended that came to no good end, by the role and the time of the last message before that.
Endings: TypeAlias = Mapping[tuple[Role, str], TurnEnd]
#: More events than these do not follow a change before something new begins (`concluded`).
CONCLUSION = 8
_CONCLUDING = UserMessage | Usage | AssistantMessage | ExtNotify | TurnEnd | ToolResult | CompactDone | Done


def everything(changes: Iterable[Change]) -> list[Message]:
    """Return every message that ever stood in the transcript, in the order in which they came.

    What was compacted or cleared away is still there; what took its place follows where it was put.
    """
    messages: list[Message] = []
    for change in changes:
        match change:
            case Said(message=message):
                messages.append(message)
            case Spliced(messages=new):
                messages += [message for message in new if message not in messages]
            case _:
                pass
    return messages


def endings(rows: Iterable[Row]) -> Endings:
    """Return how the turns ended that failed, were aborted, cut off or blocked.

    ``rows`` has all changes of the transcript, and the events of the runs in question.
    """
    ended: dict[tuple[Role, str], TurnEnd] = {}
    transcript, is_asked = Transcript(), False
    for row in rows:
        match row:
            case Said() | Spliced():
                transcript.apply(row)
            case UserMessage() | TurnStart():
                is_asked = True  # Else it is a compaction that ends, which is not what the last message came to.
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


def recalled(message: Message, ended: Endings) -> PastMessage:
    """Return a message as a face shows it that was not there."""
    shown, end = show(message), ended.get((message.role, message.time))
    past = PastMessage(shown.role, shown.content, shown.time, thought_of(message))
    return past if end is None else msgspec.structs.replace(past, stop=end.stop, error=end.error or "")


def standing(changes: Iterable[Change]) -> list[Message]:
    """Return the messages of the transcript as the changes leave it."""
    transcript = Transcript()
    for change in changes:
        transcript.apply(change)
    return list(transcript.messages)


def fork_point(changes: Sequence[tuple[int, Change]], count: int, *, purpose: str = "fork at") -> int:
    """Return the number of the row at which the transcript had the first ``count`` of its messages, and no more.

    ``purpose`` is for errors. Raise UserError if it never was so: they are too many, or a call would be
    parted from its results.
    """
    now = standing(change for _, change in changes)
    wanted, then, point = now[:count], Transcript(), 0
    for seq, change in changes:
        then.apply(change)
        if list(then.messages) == wanted:
            point = seq
    if _is_open(wanted):
        raise UserError(f"after {count} messages a call waits for its result: there is no point to {purpose}")
    if len(wanted) < count or (count and not point):
        raise UserError(f"the conversation has no point after {count} messages to {purpose}")
    return point


def concluded(point: int, following: Iterable[tuple[int, Row]]) -> int:
    """Return where a fork at row ``point`` ends: behind the events that only tell what its row brought about.

    Without them the fork would seem to have been cut off in the middle of it.
    """
    for seq, row in following:
        if not isinstance(row, _CONCLUDING):
            break
        point = seq
    return point


def _is_open(messages: Sequence[Message]) -> bool:
    """True if a call in these messages has no result there."""
    part = Transcript()
    part.apply(Spliced(0, 0, tuple(messages)))
    return bool(part.unanswered())
