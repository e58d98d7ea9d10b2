"""What the changes of a transcript tell about its past. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zot.agent.transcript import Transcript
from zot.errors import UserError
from zot.messages import Message
from zot.store import Change, Said, Spliced


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


def fork_point(changes: Sequence[tuple[int, Change]], count: int, *, last_seq: int, purpose: str = "fork at") -> int:
    """Return the number of the last row at which the transcript had the first ``count`` of its messages, and no more.

    ``purpose`` is for errors. Raise UserError if it never was so: they are too many, or a call would be
    parted from its results.
    """
    now = Transcript()
    for _, change in changes:
        now.apply(change)
    wanted, then = list(now.messages[:count]), Transcript()
    point = None if count else 0
    # What was said of a change follows it: a point lies right before the next one.
    ends = [*(seq - 1 for seq, _ in changes[1:]), last_seq]
    for (_, change), end in zip(changes, ends, strict=False):
        then.apply(change)
        if list(then.messages) == wanted:
            point = end
    if len(wanted) < count or point is None or _is_open(wanted):
        raise UserError(f"the conversation has no point after {count} messages to {purpose}")
    return point


def _is_open(messages: Sequence[Message]) -> bool:
    """True if a call in these messages has no result there."""
    part = Transcript()
    part.apply(Spliced(0, 0, tuple(messages)))
    return bool(part.unanswered())
