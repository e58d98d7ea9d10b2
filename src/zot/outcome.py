"""What came of a run: its last words, what it used, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from zot.events import AgentEvent, AssistantMessage, TurnEnd, TurnStart, Usage
from zot.messages import ZERO, Counters, Stop, text_of


class Outcome:
    """Adds up the events of one run. ``text`` is the model's last message, ``stop`` why its last turn ended."""

    def __init__(self) -> None:
        self.text = ""
        self.usage: Counters = ZERO
        self.stop: Stop | None = None

    def take(self, events: Sequence[AgentEvent]) -> None:
        """Hear what happened."""
        for event in events:
            match event:
                case TurnStart():
                    self.text = ""
                case AssistantMessage(content=content):
                    self.text = text_of(content)
                case TurnEnd(stop=stop):
                    self.stop = stop
                case Usage():
                    self.usage += event.counters
                case _:
                    pass
