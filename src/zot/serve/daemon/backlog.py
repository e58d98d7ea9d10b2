"""Unread bytes of one client, and the limit at which it is cut off."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from zot.serve.daemon.metrics import Metrics

#: A client with more unread updates is cut off: it can reconnect and resume at its cursor.
MAX_UNREAD_BYTES = 4 << 20
#: One burst may exceed that limit: the client has this long to read it, and the burst this limit.
_PATIENCE_S = 0.25
_MAX_BURST_BYTES = 16 << 20
_MAX_PIECES = 1024


class Wire(Protocol):
    """Outgoing half of a client's connection."""

    def send(self, data: bytes) -> None:
        """Enqueue lines; all lines of one tick leave together. Never blocks."""

    @property
    def unread(self) -> int:
        """Bytes sent that the client has not taken."""

    @property
    def taken(self) -> int:
        """Bytes the client has taken in total."""

    async def room(self) -> None:
        """Wait until little is unread, or the client has gone."""

    def cut(self, reason: str) -> None:
        """Close the connection without waiting for the client."""

    def finish(self) -> None:
        """Flush, then close."""


class Backlog:
    """Unread updates of one client, over all sessions; answers to its requests do not count."""

    def __init__(self, wire: Wire, metrics: Metrics) -> None:
        self.wire = wire
        self._metrics = metrics
        #: Position of each piece's end in the byte stream, and its size.
        self._pieces: deque[tuple[int, int]] = deque()
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, data: bytes) -> None:
        """Send an update."""
        self.wire.send(data)
        self._pieces.append((self.wire.taken + self.wire.unread, len(data)))
        self._size += len(data)
        if len(self._pieces) < _MAX_PIECES and self._size <= MAX_UNREAD_BYTES:
            return  # Too little to justify asking the wire.
        if self._unread() <= MAX_UNREAD_BYTES:
            return
        if self._size > _MAX_BURST_BYTES and len(self._pieces) > 1:
            self._cut()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._check)

    def _unread(self) -> int:
        taken = self.wire.taken
        while self._pieces and self._pieces[0][0] <= taken:
            self._size -= self._pieces.popleft()[1]
        return self._size

    def _check(self) -> None:
        self._timer = None
        if self._unread() > MAX_UNREAD_BYTES:
            self._cut()

    def _cut(self) -> None:
        self._metrics.cut_off += 1
        self.wire.cut(f"it has not read {self._size} bytes of what happened")
        self._pieces.clear()
        self._size = 0
