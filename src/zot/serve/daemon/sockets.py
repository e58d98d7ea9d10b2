"""Clients on a local socket: bytes in, lines to a connection, lines out, one write a tick."""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import Callable
from typing import Protocol, cast

from zot.wire.lines import MAX_LINE_BYTES, LineSplitter, TooLong

log = logging.getLogger("zot")

#: Whoever replays goes on when less than this is unread.
_ROOM_BYTES = 256 << 10
#: What is sent in one tick goes out in one piece, but for so much: the client reads the first while we make the next.
_TOGETHER_BYTES = 64 << 10
#: With so much unread, not even requests are read.
_CHOKED_BYTES = 16 << 20

#: How often we look if a client that says nothing more is still there.
_LOOK_S = 0.25


class Listener(Protocol):
    """Who hears what a client says (`connection.Connection`)."""

    def take(self, line: bytes | TooLong) -> None:
        """Do what one line says."""

    def end_input(self) -> None:
        """Nothing more will come; what is owed is still wanted."""

    def close(self) -> None:
        """The client has gone."""


class LocalWire(asyncio.Protocol):
    """One client on a stream socket (`feed.Wire`). ``connected`` makes the listener when it is there."""

    def __init__(self, connected: Callable[[LocalWire], Listener | None], *, max_line: int = MAX_LINE_BYTES) -> None:
        self._connected = connected
        self._lines = LineSplitter(max_line_bytes=max_line)
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent = 0
        #: Set while little is unread.
        self._room = asyncio.Event()
        self._room.set()
        self._is_ending = False
        self.transport: asyncio.Transport

    # What the client does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_ROOM_BYTES)
        self._listener = self._connected(self)
        if self._listener is None and not self._is_ending:  # Else it is being told why.
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._take(line)

    def eof_received(self) -> bool:
        for line in self._lines.finish():
            self._take(line)
        if self.transport.get_extra_info("socket") is None:
            return False  # A pipe of Windows cannot be half closed: who says nothing more has gone.
        if self._listener is not None:
            self._listener.end_input()
        self._look_if_gone()
        return True  # What it is owed is still written.

    def connection_lost(self, problem: Exception | None) -> None:
        del problem
        self._is_ending = True
        self.resume_writing()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()
        if not self._is_ending:
            self.transport.resume_reading()

    # What is told to the client.

    def send(self, data: bytes) -> None:
        """Take lines that go out together with whatever else is sent in this tick."""
        if self._is_ending or not data:
            return
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        self._sent += len(data)
        if self._size > _TOGETHER_BYTES:
            self._flush()

    @property
    def unread(self) -> int:
        """How many bytes have been sent and not been taken."""
        return self._size + self.transport.get_write_buffer_size()

    @property
    def taken(self) -> int:
        """How many bytes the client has taken, in all."""
        return self._sent - self.unread

    async def room(self) -> None:
        """Wait until little is unread, or the client has gone."""
        self._flush()
        await self._room.wait()

    def finish(self) -> None:
        """Write what is left, and end."""
        if not self._is_ending:
            self._flush()
            self._is_ending = True
            self.transport.close()

    async def release(self) -> int:
        """Read no more, write what is left, and return a descriptor of the connection, which stays open.

        Raise OSError if the client has gone.
        """
        self._is_ending = True
        self.transport.pause_reading()
        self.transport.set_write_buffer_limits(0)
        self._flush()
        await self._room.wait()
        return os.dup(self.transport.get_extra_info("socket").fileno())

    def cut(self, reason: str) -> None:
        """End without waiting for the client."""
        if not self._is_ending:
            log.warning("a client was cut off: %s", reason)
        self._is_ending = True
        self.transport.abort()

    def _flush(self) -> None:
        if self._pieces and not self.transport.is_closing():
            pieces, self._pieces, self._size = self._pieces, [], 0
            try:
                self.transport.write(b"".join(pieces))
            except (MemoryError, OSError) as problem:
                # Part of a frame may be out, and the rest is lost: no other frame must follow.
                self.cut(f"it could not be written to: {problem!r}")
                return
            if self.transport.get_write_buffer_size() > _CHOKED_BYTES:
                self.transport.pause_reading()

    def _look_if_gone(self) -> None:
        """After the end of its input nothing tells that a client has gone altogether, until something is written."""
        if not self.transport.is_closing():
            poll = select.poll()
            poll.register(self.transport.get_extra_info("socket").fileno(), 0)
            if poll.poll(0):
                self.transport.abort()
            else:
                self._loop.call_later(_LOOK_S, self._look_if_gone)

    def _take(self, line: bytes | TooLong) -> None:
        if self._listener is not None:
            self._listener.take(line)
