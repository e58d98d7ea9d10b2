"""The way to one client over a WebSocket: a text frame for each line, at the pace at which they are taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

log = logging.getLogger("zot")

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

#: Whoever replays goes on when less than this is unread.
_ROOM_BYTES = 256 << 10
#: With so much unread, not even requests are read.
_CHOKED_BYTES = 16 << 20
#: So many frames are sent before others have their turn: a fast reader could take all of them at once.
_AT_ONCE = 128
_GOING_AWAY = 1001
_POLICY = 1008
#: So much room has a frame that ends a connection for the reason.
_MAX_REASON_BYTES = 123


class Below(Protocol):
    """What carries the frames, where the server lets us have it."""

    @property
    def gone(self) -> asyncio.Event:
        """Set when the connection is over, whatever of the client's is still to be received."""

    @property
    def unread(self) -> int:
        """How many bytes it has taken, and the client has not."""

    async def send_lines(self, lines: bytes) -> None:
        """Send each line as a frame, all together, when there is room. Raise OSError if the client has gone."""

    def abort(self) -> None:
        """End the connection at once."""


class WebWire:
    """One client (`connection.ClientWire`). With ``below`` it is faster, and can be cut off in mid-write."""

    def __init__(self, send: Send, below: Below | None = None) -> None:
        self._send = send
        self._below = below
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent = 0
        #: Set while there is something to do for who pumps.
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_ending = False
        self._ended = asyncio.Event()
        self._closing: dict[str, Any] = {"code": _GOING_AWAY}

    def send(self, data: bytes) -> None:
        """Take lines that go out behind all that was taken before."""
        if self._is_ending or not data:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._sent += len(data)
        self._more.set()
        if self._size > _ROOM_BYTES:
            self._room.clear()

    @property
    def unread(self) -> int:
        """How many bytes have been sent and not been taken."""
        return self._size + (0 if self._below is None else self._below.unread)

    @property
    def taken(self) -> int:
        """How many bytes the client has taken, in all; what frames add to them is not counted."""
        return self._sent - self.unread

    @property
    def is_choked(self) -> bool:
        """True if so much is unread that nothing more should be asked for."""
        return self._size > _CHOKED_BYTES

    async def room(self) -> None:
        """Wait until little is unread, or the client has gone."""
        await self._room.wait()

    def finish(self, refusal: str = "") -> None:
        """Write what is left, and end; a ``refusal`` says what the client did wrong, cut to what a frame holds."""
        self._is_ending = True
        if refusal:
            self._closing = {"code": _POLICY, "reason": refusal.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")}
        self._more.set()

    def cut(self, reason: str) -> None:
        """End without waiting for the client."""
        if not self._is_ending:
            log.warning("a client was cut off: %s", reason)
        self.end()
        if self._below is not None:
            self._below.abort()

    def end(self) -> None:
        """Let go of everything: nobody reads it any more."""
        self._is_ending = True
        self._pieces, self._size = [], 0
        self._room.set()
        self._ended.set()

    async def attend(self, hearing: Coroutine[Any, Any, None]) -> None:
        """Send what there is while ``hearing`` takes what the client says, until one of both ends, or it is cut off."""
        tasks = [asyncio.ensure_future(one) for one in (hearing, self._pump(), self._ended.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            with suppress(OSError, asyncio.CancelledError):  # It has gone while it was told something.
                task.result()

    async def _pump(self) -> None:
        """Send what there is, until it is finished. Raise OSError when the client has gone."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._pieces:
                pieces, self._pieces = self._pieces, []
                for piece in pieces if self._size > _ROOM_BYTES else (b"".join(pieces),):
                    await self._send_lines(piece)
            if self._is_ending:
                await self._send({"type": "websocket.close", **self._closing})
                return

    async def _send_lines(self, lines: bytes) -> None:
        if self._below is not None:
            await self._below.send_lines(lines)
        else:
            await self._send_one_by_one(lines)
        self._size -= len(lines)
        if self._size <= _ROOM_BYTES:
            self._room.set()

    async def _send_one_by_one(self, lines: bytes) -> None:
        for at, line in enumerate(lines.split(b"\n")):
            if line:
                await self._send({"type": "websocket.send", "text": line.decode()})
            if at % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
