"""Unread bytes of one client, and the limit at which it is cut off."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

#: A client that has so much unread of what happens is cut off: it can come back and read on where it was.
MAX_UNREAD_BYTES = 4 << 20
#: What happens in one moment may be more than that, so a client has this long to take it; and no more than so much.
_PATIENCE_S = 0.25
_MAX_BURST_BYTES = 16 << 20
_MANY = 1024


class Wire(Protocol):
    """The way to one client."""

    def send(self, data: bytes) -> None:
        """Take lines that go out together with whatever else is sent in this tick. Never blocks."""

    @property
    def unread(self) -> int:
        """How many bytes have been sent and not been taken."""

    @property
    def taken(self) -> int:
        """How many bytes the client has taken, in all."""

    async def room(self) -> None:
        """Wait until little is unread, or the client has gone."""

    def cut(self, reason: str) -> None:
        """End the connection without waiting for the client."""


class Backlog:
    """What one client is told of what happens, in whichever session; what it asked for does not count."""

    def __init__(self, wire: Wire, *, cut_off: Callable[[], None] = lambda: None) -> None:
        """``cut_off`` hears that it was."""
        self.wire = wire
        self._cut_off = cut_off
        #: Where each piece ends among all bytes, and its size.
        self._pieces: deque[tuple[int, int]] = deque()
        self._size = 0
        self._looking: asyncio.TimerHandle | None = None

    def tell(self, data: bytes) -> None:
        """Tell what happened."""
        self.wire.send(data)
        self._pieces.append((self.wire.taken + self.wire.unread, len(data)))
        self._size += len(data)
        if len(self._pieces) < _MANY and self._size <= MAX_UNREAD_BYTES:
            return  # To look how much it has taken is not worth it.
        if self._unread() <= MAX_UNREAD_BYTES:
            return
        if self._size > _MAX_BURST_BYTES and len(self._pieces) > 1:
            self._cut()
        elif self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_PATIENCE_S, self._look)

    def _unread(self) -> int:
        taken = self.wire.taken
        while self._pieces and self._pieces[0][0] <= taken:
            self._size -= self._pieces.popleft()[1]
        return self._size

    def _look(self) -> None:
        self._looking = None
        if self._unread() > MAX_UNREAD_BYTES:
            self._cut()

    def _cut(self) -> None:
        self._cut_off()
        self.wire.cut(f"it has not read {self._size} bytes of what happened")
        self._pieces.clear()
        self._size = 0
