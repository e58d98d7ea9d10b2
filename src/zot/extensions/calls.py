"""What an extension was asked and has not answered yet. No clock: every time is given."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from zot.wire.extension import AnyToExtension, encode_frame

#: What is asked: a tool, a command, or a decision.
Kind: TypeAlias = Literal["tool", "command", "intercept"]
#: How many ids are remembered after their end, to tell a late answer from an invented one.
_REMEMBERED: Final = 256


class Waiting(msgspec.Struct, frozen=True):
    """One question: to which tool or command, or about which event, and until when it may be answered."""

    id: str
    kind: Kind
    subject: str
    deadline: float


class Asked(msgspec.Struct, frozen=True):
    """A question on its way: its id, the bytes to write, and when it will have been answered at the latest."""

    id: str
    data: bytes
    deadline: float


def asked(waiting: Waiting, frame: AnyToExtension) -> Asked:
    """Return a question as the frame that asks it."""
    return Asked(waiting.id, encode_frame(frame), waiting.deadline)


class Calls:
    """Questions by id. Ids count up and are never used twice."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[str, Waiting] = {}
        self._over: dict[str, str] = {}

    def open(self, kind: Kind, subject: str, deadline: float) -> Waiting:
        """Ask something."""
        waiting = Waiting(self.new_id(), kind, subject, deadline)
        self._waiting[waiting.id] = waiting
        return waiting

    def new_id(self) -> str:
        """Return an id for something that is not waited for."""
        self._count += 1
        return str(self._count)

    def get(self, call_id: str) -> Waiting | None:
        """Return what waits under an id."""
        return self._waiting.get(call_id)

    def close(self, waiting: Waiting, how: str) -> None:
        """It is over. ``how`` is what is said of an answer that comes now."""
        del self._waiting[waiting.id]
        self._over[waiting.id] = how
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]

    def why_not(self, call_id: str) -> str:
        """Return why nothing waits under an id."""
        if call_id in self._over:
            return self._over[call_id]
        asked = call_id.isascii() and call_id.isdigit() and 0 < int(call_id[:20]) <= self._count
        return "was answered or given up long ago" if asked else "was never asked"

    def all(self) -> tuple[Waiting, ...]:
        """Return all that wait, in the order in which they were asked."""
        return tuple(self._waiting.values())

    def due(self, now: float) -> tuple[Waiting, ...]:
        """Return those whose time is up."""
        return tuple(waiting for waiting in self._waiting.values() if waiting.deadline <= now)

    def next_deadline(self) -> float | None:
        """Return when the next one's time is up."""
        return min((waiting.deadline for waiting in self._waiting.values()), default=None)
