"""A connection that an extension has made to zot, as its carrier: whoever keeps the connection brings it lines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

#: So much may wait to be read; whoever brings more waits.
MAX_UNREAD_BYTES = 1024 * 1024


class Link:
    """A `Carrier` without a process. ``send`` takes what is told to the extension, ``hang_up`` ends the connection.

    Whoever keeps the connection calls `bring` for what the extension says and `hung_up` when it is over; neither
    ``send`` nor ``hang_up`` may wait. One that does not read what it is told is theirs to hang up on.
    """

    advice = ""

    def __init__(self, send: Callable[[bytes], None], hang_up: Callable[[], None]) -> None:
        self._send = send
        self._hang_up = hang_up
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._over = asyncio.Event()
        self._lost = False
        self._ended = False

    async def bring(self, data: bytes) -> None:
        """The extension said ``data``, cut anywhere. Waits while it talks faster than it is heard."""
        await self._room.wait()
        if self._over.is_set():
            return
        self._unread.append(data)
        self._size += len(data)
        self._news.set()
        if self._size >= MAX_UNREAD_BYTES and not self._lost:
            self._room.clear()

    def lost(self) -> None:
        """The connection is over, and what of it was not brought yet can be brought without waiting."""
        self._lost = True
        self._room.set()

    def hung_up(self) -> None:
        """The connection is over; what was brought is still read. Any number of times."""
        self._over.set()
        self._news.set()
        self._room.set()

    def send(self, data: bytes) -> None:
        if data and not self._over.is_set():
            self._send(data)

    async def read(self) -> bytes:
        while not self._unread:
            if self._over.is_set():
                return b""
            self._news.clear()
            await self._news.wait()
        data = self._unread.popleft()
        self._size -= len(data)
        if self._size < MAX_UNREAD_BYTES:
            self._room.set()
        return data

    def arrived(self) -> int:
        return self._size

    async def gone(self, *, within_s: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._over.wait()
        return self._over.is_set()

    async def leftovers(self) -> Sequence[str]:
        return ()

    def acknowledged(self) -> None:
        self.end()  # It need not exit, so nothing would tell that it is done.

    def end(self) -> None:
        if not self._over.is_set():
            self._ended = True
            self._unread.clear()  # Nobody wants to hear it any more.
            self._size = 0
            self.hung_up()
            self._hang_up()

    async def close(self) -> str:
        self.end()
        return "was disconnected" if self._ended else "disconnected"
