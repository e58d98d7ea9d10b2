"""What one extension hears of a run, in order, and of what it decides about only after it was asked."""

from __future__ import annotations

from collections import deque
from typing import Any

from zot.extensions.happenings import Decision
from zot.extensions.supervisor import Extension
from zot.wire.extension import Event, Intercepted


class Listener:
    """Tells ``extension`` what happens. An event that it decides about waits until `release` or its own `decide`.

    The store may show an event before or after the extension is asked about it: either way it hears the question first.
    """

    def __init__(self, extension: Extension) -> None:
        self.name = extension.name
        self.extension = extension
        self._waiting: deque[tuple[Event, str]] = deque()
        self._asked: set[tuple[str, str]] = set()

    async def decide(self, event: Intercepted, **about: Any) -> Decision:
        """Ask it. Cancelling ends the wait at once."""
        if not self.extension.peer.decides(event):
            return Decision()
        return await self.extension.decide(event, **about)

    def tell(self, event: Event, about: str) -> None:
        """Let it hear of ``event``, after what came before; ``about`` says which question is about the same."""
        self._waiting.append((event, about))
        self._flush()

    def release(self, event: str, about: str) -> None:
        """Everybody was asked about this."""
        self._asked.add((event, about))
        self._flush()

    def release_all(self) -> None:
        """A run is over: what nobody asked about will not be asked about."""
        for event, _ in self._waiting:
            self.extension.tell(event)
        self._waiting.clear()
        self._asked.clear()

    def _flush(self) -> None:
        while self._waiting:
            event, about = self._waiting[0]
            if self._must_be_asked_first(event) and (event.event, about) not in self._asked:
                return
            self._waiting.popleft()
            self._asked.discard((event.event, about))
            self.extension.tell(event)

    def _must_be_asked_first(self, event: Event) -> bool:
        match event.event:
            case "turn_start" | "tool_call":
                return self.extension.peer.decides(event.event)
            case _:
                return False
