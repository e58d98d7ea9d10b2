"""The ids of the calls of a conversation, each message of which is looked at once."""

from __future__ import annotations

from collections.abc import Sequence

from zot.messages import CallBlock, Message, begins_with


class KnownCalls:
    """Knows the ids of all calls in a conversation that grows at its end; one that was changed is looked at anew."""

    def __init__(self) -> None:
        self._seen: list[Message] = []
        self._ids: set[str] = set()

    def of(self, messages: Sequence[Message]) -> set[str]:
        """Return the ids of the calls in ``messages``; what is returned is the caller's."""
        if not begins_with(messages, self._seen):
            self._seen.clear()
            self._ids.clear()
        for message in messages[len(self._seen) :]:
            self._ids.update(block.id for block in message.content if isinstance(block, CallBlock))
            self._seen.append(message)
        return set(self._ids)
