"""What happened and was not shown yet: taken at once, shown as often as the screen can keep up with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from zot.events import AgentEvent, TextDelta, ThinkingDelta

if TYPE_CHECKING:
    from zot.session.history import Batch

#: So many events may wait before the run does.
_MAX_UNSHOWN = 20_000


class Feed:
    """A `Subscriber` for a screen. ``arrived`` is called when something waits to be taken."""

    can_approve = True

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._unshown: list[AgentEvent] = []
        self._taken = asyncio.Event()

    def deliver(self, batch: Batch) -> None:
        self._unshown.extend(batch.events)
        self._arrived()

    @property
    def full(self) -> bool:
        return len(self._unshown) > _MAX_UNSHOWN

    @property
    def waits(self) -> bool:
        """True if there is something to take."""
        return bool(self._unshown)

    async def room(self) -> None:
        while self.full:
            self._taken.clear()
            await self._taken.wait()

    def take(self) -> list[AgentEvent]:
        """Return what waits, deltas that follow each other joined."""
        events, self._unshown = self._unshown, []
        self._taken.set()
        return _joined(events)


def _joined(events: list[AgentEvent]) -> list[AgentEvent]:
    joined: list[AgentEvent] = []
    parts: list[str] = []
    kind: type[TextDelta | ThinkingDelta] | None = None
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta):
            if kind is not None and type(event) is not kind:
                joined.append(kind("".join(parts)))
                parts = []
            kind = type(event)
            parts.append(event.delta)
            continue
        if kind is not None:
            joined.append(kind("".join(parts)))
            parts, kind = [], None
        joined.append(event)
    if kind is not None:
        joined.append(kind("".join(parts)))
    return joined
