"""How a session is at a moment."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from zot.events import ApprovalRequest
from zot.messages import Counters

Doing: TypeAlias = Literal["idle", "running", "waiting_approval"]


class State(msgspec.Struct, frozen=True):
    """A snapshot of a session. While it waits for a person, ``pending`` is what that person was asked."""

    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters
    state: Doing = "idle"
    pending: ApprovalRequest | None = None


def state_of(pending: ApprovalRequest | None, *, busy: bool) -> Doing:
    """Return what a session does, in a word."""
    if pending is not None:
        return "waiting_approval"
    return "running" if busy else "idle"
