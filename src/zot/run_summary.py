"""Summary of one run: final text, usage and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from zot.events import (
    PIECES,
    AgentEvent,
    AssistantMessage,
    AssistantStart,
    CompactDone,
    Error,
    ExtNotify,
    TextDelta,
    TurnEnd,
    TurnStart,
    Usage,
)
from zot.messages import ZERO, Counters, Stop, text_of

#: The note and the error for a truncated answer.
CUT_SHORT: Final = "cut off at the model's length limit"
CUT_OFF: Final = f"the answer was {CUT_SHORT}"


class BlockedCall(msgspec.Struct, frozen=True):
    """A call of ``tool`` that nothing forbids, and that could not run: its approval could not be requested, or there is
    no sandbox for it, for the reason ``no_sandbox``."""

    tool: str
    no_sandbox: str = ""


class RunSummary:
    """Accumulator over the events of one run; it may be given all of them or none of the `PIECES`.

    ``stop`` is the stop reason of the model's last message. ``held_back`` says why an extension blocked that message;
    "" if none did. ``error`` is why the run failed; None if it did not.
    """

    def __init__(self) -> None:
        self.usage: Counters = ZERO
        self.stop: Stop | None = None
        self.held_back = ""
        self.error: str | None = None
        self._text = ""
        #: The text of a message that is not complete.
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The model's last message, or the beginning of it that arrived before the run failed."""
        return "".join(self._pieces) or self._text

    def take(self, events: Sequence[AgentEvent]) -> None:
        """Add ``events`` to the summary."""
        for event in events:
            if type(event) is TextDelta:  # The most frequent type.
                self._pieces.append(event.delta)
            elif type(event) not in PIECES:
                self._take(event)

    def _take(self, event: AgentEvent) -> None:
        match event:
            case TurnStart():
                self._text = self.held_back = ""
                self.error = None
            case AssistantStart():
                self._pieces.clear()
            case AssistantMessage(content=content):
                self._pieces.clear()
                self._text = text_of(content)
            case CompactDone(auto=False, summary=summary):
                self._text = summary
            case ExtNotify(blocked="assistant_message", message=message):
                self.held_back = message
            case TurnEnd(stop=stop, error=error):
                self.stop = stop
                self.error = (error or "") if stop == "error" else None
            case Error(message=message):
                self.error = message
            case Usage():
                self.usage += event.counters
            case _:
                pass
