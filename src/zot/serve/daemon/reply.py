"""One run that a client of the daemon asked for, from its beginning to the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from zot.events import AssistantMessage, AssistantStart, Done, TextDelta
from zot.session.history import Batch
from zot.wire.turn import PIECES, Turn, TurnSummary

if TYPE_CHECKING:
    from zot.session.session import Session

#: Hears how a run ended, and the number of its last event; 0 if that could not be recorded.
Ended: TypeAlias = Callable[[TurnSummary, int], None]


class Reply:
    """Hears one run to its end (`history.Subscriber`). It subscribes behind the feed, so it is told last."""

    can_approve = False
    full = False

    def __init__(self, session: Session, ended: Ended) -> None:
        self._session = session
        self._ended = ended
        self._turn = Turn()
        #: What the model is saying, as long as it has not been said as a whole.
        self._words: list[str] = []
        self._leave: Callable[[], None] = lambda: None

    def started(self) -> None:
        """The run begins: from now on, everything that happens belongs to it."""
        self._leave = self._session.subscribe(self)

    def deliver(self, batch: Batch) -> None:
        """Take what happened."""
        for event in batch.events:
            if type(event) is TextDelta:  # Which most are.
                self._words.append(event.delta)
            elif type(event) not in PIECES:
                self._turn.take(event)
                if isinstance(event, AssistantStart | AssistantMessage):
                    self._words.clear()
        if isinstance(batch.events[-1], Done):
            self._leave()
            self._ended(self._summary(), batch.last)

    def _summary(self) -> TurnSummary:
        """Return how it ended. Words that were shown and could not be kept, such as on a full disk, count, too."""
        ended, words = self._turn.summary(), "".join(self._words)
        return msgspec.structs.replace(ended, content=words) if words else ended

    async def room(self) -> None:
        """There always is."""
