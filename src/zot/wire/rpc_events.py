"""Events as the lines of zot RPC: which of them a client gets, by what it has switched on. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from zot.encoding import encode, encode_lines
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    CompactDone,
    ConversationReplaced,
    ExtNotify,
    ExtWaiting,
    PanelClosed,
    PanelOpened,
    PanelRendered,
    Reconfigured,
    Retry,
    ThinkingDelta,
    ToolResult,
    Usage,
)

_GATED: Final[dict[type, str]] = {
    ThinkingDelta: "thinking",
    Retry: "retries",
    ApprovalRequest: "approvals",
    ExtNotify: "extensions",
    ExtWaiting: "extensions",
    PanelOpened: "extensions",
    PanelRendered: "extensions",
    PanelClosed: "extensions",
}
#: What version 1 does not have: whoever answers, or changes something, knows it, and others see what follows.
UNTOLD: Final[frozenset[type]] = frozenset({ApprovalAnswer, ConversationReplaced, Reconfigured})
#: What is not shown to everybody, or not to everybody in the same way.
_SPECIAL: Final[frozenset[type]] = frozenset({*_GATED, *UNTOLD, Usage, CompactDone, ToolResult})


class EventEncoder:
    """Turns events into the lines one client gets, by the features it has switched on."""

    def __init__(self) -> None:
        self._seq = 0

    def lines(self, events: Sequence[AgentEvent], features: frozenset[str], *, run: int) -> bytes:
        """Return the lines for ``events`` of a run, each ending in LF."""
        shown = events
        if not _SPECIAL.isdisjoint(map(type, events)):  # Most batches are text alone.
            shown = _by_features(events, features)
        return self._numbered(shown, run) if "seq" in features else encode_lines(shown)

    def _numbered(self, events: Iterable[AgentEvent], run: int) -> bytes:
        lines = []
        for event in events:
            self._seq += 1
            lines.append(b'%s,"seq":%d,"run":%d}\n' % (encode(event)[:-1], self._seq, run))
        return b"".join(lines)


def _by_features(events: Sequence[AgentEvent], features: frozenset[str]) -> list[AgentEvent]:
    """Return what a client with these features gets to see of events, and how."""
    shown = [event for event in events if type(event) not in UNTOLD]
    shown = [event for event in shown if _GATED.get(type(event)) is None or _GATED[type(event)] in features]
    if "compaction" not in features:
        shown = [event for event in shown if not (isinstance(event, Usage | CompactDone) and event.auto)]
    if "extensions" not in features:
        shown = [_without_details(event) if type(event) is ToolResult else event for event in shown]
    if "prices" not in features:
        shown = [_as_first_published(event) if type(event) is Usage else event for event in shown]
    return shown


def _without_details(event: ToolResult) -> ToolResult:
    return event if event.details is None else msgspec.structs.replace(event, details=None)


def _as_first_published(event: Usage) -> Usage:
    """Return a usage event without the fields that version 1 does not have."""
    if event.price_known and event.cumulative.price_known and not event.cumulative.reasoning:
        return event
    cumulative = msgspec.structs.replace(event.cumulative, price_known=True, reasoning=0)
    return msgspec.structs.replace(event, cumulative=cumulative, price_known=True, reasoning=0)
