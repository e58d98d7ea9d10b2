"""How a session is at a moment."""

from __future__ import annotations

from typing import Literal

import msgspec

from zot.events import ApprovalRequest
from zot.messages import Counters


class State(msgspec.Struct, frozen=True):
    """A snapshot of a session. While it waits for a person, ``pending`` is what that person was asked."""

    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters
    state: Literal["idle", "running", "waiting_approval"] = "idle"
    pending: ApprovalRequest | None = None
