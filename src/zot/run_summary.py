"""Summary of one run: final text, usage and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from zot.events import AgentEvent, AssistantMessage, ExtNotify, TurnEnd, TurnStart, Usage
from zot.messages import ZERO, Counters, Stop, text_of

#: Error text for a truncated answer.
CUT_OFF: Final = "the answer was cut off at the model's length limit"


class RunSummary:
    """Accumulator over the events of one run. ``text`` is the model's last message, ``stop`` its stop reason.

    ``held_back`` says why an extension blocked that message; "" if none did.
    """

    def __init__(self) -> None:
        self.text = ""
        self.usage: Counters = ZERO
        self.stop: Stop | None = None
        self.held_back = ""

    def take(self, events: Sequence[AgentEvent]) -> None:
        """Add ``events`` to the summary."""
        for event in events:
            match event:
                case TurnStart():
                    self.text = self.held_back = ""
                case ExtNotify(blocked="assistant_message", message=message):
                    self.held_back = message
                case AssistantMessage(content=content):
                    self.text = text_of(content)
                case TurnEnd(stop=stop):
                    self.stop = stop
                case Usage():
                    self.usage += event.counters
                case _:
                    pass
