"""Where a session's history goes before anybody sees it.

Two kinds of row under one increasing number: *events*, what clients saw, and *message* rows, what the provider
needs. A client's view is read from the first, the transcript from the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from zot.events import AgentEvent
from zot.messages import Message


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """A change of the transcript: ``message`` is appended, or takes the place of the first ``replaces`` messages.

    A cleared transcript is a row without a message that replaces them all; a compaction one whose message is
    the summary. What was replaced stays in the journal: a transcript is a view.
    """

    message: Message | None
    replaces: int = 0


Row: TypeAlias = AgentEvent | MessageRow


class Store(Protocol):
    """An append-only history of one session."""

    def append(self, rows: Sequence[Row]) -> int:
        """Take ``rows``, in order, and return the number of the first. Raise StoreFailed if they are not safe."""

    def read(self, after: int = 0) -> Iterator[tuple[int, Row]]:
        """Yield the rows numbered above ``after`` that are still held, in order."""

    @property
    def last_seq(self) -> int:
        """The number of the newest row; 0 before the first."""


class MemoryStore:
    """A store that lives and dies with its process.

    Nothing can come back to it after a crash, so it keeps only the newest ``keep`` rows; every row still gets its
    number.
    """

    def __init__(self, *, keep: int | None = 0) -> None:
        self._rows: deque[Row] = deque(maxlen=keep)
        self.last_seq = 0

    def append(self, rows: Sequence[Row]) -> int:
        first = self.last_seq + 1
        self._rows.extend(rows)
        self.last_seq += len(rows)
        return first

    def read(self, after: int = 0) -> Iterator[tuple[int, Row]]:
        oldest = self.last_seq - len(self._rows) + 1
        return ((seq, row) for seq, row in enumerate(self._rows, oldest) if seq > after)
