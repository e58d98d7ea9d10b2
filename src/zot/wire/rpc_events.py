"""Events as the lines of zot RPC: which of them a client gets, by what it has switched on. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from zot.events import (
    AgentEvent,
    ApprovalRequest,
    CompactDone,
    ExtNotify,
    Retry,
    ThinkingDelta,
    Usage,
    encode,
    encode_lines,
)

_GATED: Final[dict[type, str]] = {
    ThinkingDelta: "thinking",
    Retry: "retries",
    ApprovalRequest: "approvals",
    ExtNotify: "extensions",
}
#: What also happens when nobody asked for it, and is then shown only with the feature `compaction`.
_MAYBE_AUTO: Final[frozenset[type]] = frozenset({Usage, CompactDone})


class EventEncoder:
    """Turns events into the lines one client gets, by the features it has switched on."""

    def __init__(self) -> None:
        self._seq = 0

    def lines(self, events: Sequence[AgentEvent], features: frozenset[str], *, run: int) -> bytes:
        """Return the lines for ``events`` of a run, each ending in LF."""
        shown = [event for event in events if _GATED.get(type(event)) is None or _GATED[type(event)] in features]
        if "compaction" not in features and not _MAYBE_AUTO.isdisjoint(map(type, shown)):
            shown = [event for event in shown if not (isinstance(event, Usage | CompactDone) and event.auto)]
        if "prices" not in features:
            shown = [_as_first_published(event) if type(event) is Usage else event for event in shown]
        return self._numbered(shown, run) if "seq" in features else encode_lines(shown)

    def _numbered(self, events: Iterable[AgentEvent], run: int) -> bytes:
        lines = []
        for event in events:
            self._seq += 1
            lines.append(b'%s,"seq":%d,"run":%d}\n' % (encode(event)[:-1], self._seq, run))
        return b"".join(lines)


def _as_first_published(event: Usage) -> Usage:
    """Return a usage event without the fields that version 1 does not have."""
    if event.price_known and event.cumulative.price_known and not event.cumulative.reasoning:
        return event
    cumulative = msgspec.structs.replace(event.cumulative, price_known=True, reasoning=0)
    return msgspec.structs.replace(event, cumulative=cumulative, price_known=True, reasoning=0)
