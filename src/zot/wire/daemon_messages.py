"""The daemon's dialect, about what was said in sessions. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from zot.messages import PastMessage, ShownBlock, ShownMessage, Stop, text_of
from zot.wire.daemon_types import ABSENT, Absent, Count
from zot.wire.spelling import Spelled

BadEnd: TypeAlias = Literal["length", "cancelled", "error"]
#: How a turn ended that came to no good end, as this dialect spells it.
_STOPS: Final[Mapping[Stop, BadEnd]] = {"length": "length", "aborted": "cancelled", "error": "error"}


class Messages(Spelled, frozen=True):
    """``limit`` messages before the one with the number ``before_index``; the last ones, if it is not given."""

    session_id: str
    limit: Count | None = None
    before_index: Count | None = None
    view: Literal["shown", "full", "past"] = "shown"


class MessageEntry(Spelled, frozen=True):
    """A message. ``content`` is its text; ``blocks`` all of it, spelled as in zot RPC on every connection.

    With the view ``past``, ``thinking`` is what the model thought. If the turn came to no good end behind the message,
    ``stop_reason`` is which, and ``error`` says why.
    """

    role: Literal["user", "assistant", "tool"]
    content: str
    time: str
    blocks: tuple[ShownBlock, ...]
    thinking: str | Absent = ABSENT
    stop_reason: BadEnd | Absent = ABSENT
    error: str | Absent = ABSENT

    @staticmethod
    def of(message: ShownMessage) -> MessageEntry:
        """Return a message as this dialect shows it."""
        blocks = message.content
        said = text_of(blocks) or "".join(text_of(getattr(block, "content", ())) for block in blocks)
        entry = MessageEntry(message.role, said, message.time, blocks)
        if not isinstance(message, PastMessage):
            return entry
        stop = _STOPS.get(message.stop, ABSENT)
        return msgspec.structs.replace(
            entry, thinking=message.thought or ABSENT, stop_reason=stop, error=message.error or ABSENT
        )

    def past(self) -> PastMessage:
        """Return the message as a face shows it."""
        stops: list[Stop] = [stop for stop, spelled in _STOPS.items() if spelled == self.stop_reason]
        stop = stops[0] if stops else "end_turn"
        return PastMessage(self.role, self.blocks, self.time, self.thinking or "", stop, self.error or "")


class MessagePage(Spelled, frozen=True):
    """``start`` is the number of the first of these ``messages``, ``total`` how many there are.

    With the view ``past``, `session/attach` after ``last_seq`` tells all that followed.
    """

    session_id: str
    messages: tuple[MessageEntry, ...]
    total: int
    start: int
    last_seq: int | Absent = ABSENT
