"""One connection that carries one request at a time: an asyncio protocol around `Answer`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from zot.errors import Stalled
from zot.providers.answer import Answer, Progress

if TYPE_CHECKING:
    import ssl

PAUSE_BYTES = 1024 * 1024
#: What one read returns at most, roughly: an abort waits no longer than this takes to decode.
READ_BYTES = 64 * 1024


class Connection(asyncio.Protocol):
    """A TCP or TLS connection. ``label`` names the peer in messages.

    Reading stops while more than `PAUSE_BYTES` wait to be read. Bytes that nobody asked for end the connection.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._socket: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        #: True while the peer's part of a TLS handshake is awaited.
        self.in_handshake = False

    @property
    def usable(self) -> bool:
        """Whether a request may be written: connected, and what was asked is sent, answered and read."""
        if self._transport is None or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        return self._answer is None or (self._answer.reusable and self.ended)

    @property
    def ended(self) -> bool:
        """Whether the answer has arrived and been read to its proper end."""
        return self._answer is not None and self._answer.progress is Progress.WHOLE and not self._answer.unread_bytes

    @property
    def heard(self) -> bool:
        """Whether the peer has sent a single byte since the last request was written."""
        return self._answer is not None and self._answer.heard

    async def ask(self, request: bytes, *, bodiless: bool = False, within_s: float | None = None) -> Answer:
        """Write a request and return when the head of its answer is here; its body comes from `read`.

        ``within_s`` counts from the moment the request is written. Raise ConnectionFailed, Stalled or StreamBroken.
        """
        assert self._transport is not None
        self._answer = answer = Answer(self.label, bodiless=bodiless)
        if self._transport.is_closing():
            # It may have been lost before anybody asked; nothing would tell us a second time.
            answer.end(clean=False)
        else:
            self._transport.write(request)
        while answer.progress is Progress.HEAD:
            await self._step_to_head(answer, self._transport, within_s)
        if answer.failure is not None and not answer.has_head:
            raise answer.failure
        return answer

    async def read(self) -> bytes:
        """Return the body that has arrived since the last call, b"" at its end. Raise StreamBroken if it is cut."""
        assert self._answer is not None
        answer = self._answer
        while answer.progress is Progress.BODY and not answer.unread_bytes:
            await self._wait()
        if answer.unread_bytes > READ_BYTES:
            # Who reads without ever having to wait would keep everyone else from running.
            await asyncio.sleep(0)
        if answer.unread_bytes:
            data = answer.take(READ_BYTES)
            if answer.unread_bytes <= PAUSE_BYTES // 4:
                self._resume()
            return data
        if answer.failure is not None:
            raise answer.failure
        return b""

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt the connection and check that the peer is ``host``. Raise OSError."""
        assert self._transport is not None
        self._answer = None
        self.in_handshake = True
        if self._transport.is_closing():
            raise ConnectionResetError("the peer closed the connection before the TLS handshake")
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError("the peer closed the connection during the TLS handshake")
        self.in_handshake = False
        self._adopt(transport)

    def abort(self) -> None:
        """Close the socket at once, whatever is going on. Whoever waits is told. Safe at any time."""
        self._close()
        self._end(clean=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        self._adopt(transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.progress is Progress.WHOLE:
            self.abort()
            return
        answer.feed(data)
        if answer.progress is Progress.HEAD:
            return
        if answer.progress is Progress.BROKEN:
            self._close()
        elif answer.unread_bytes > PAUSE_BYTES:
            self._pause()
        self._wake()

    def eof_received(self) -> None:
        self._end(clean=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(clean=exc is None)
        if not self.lost.done():
            self.lost.set_result(None)

    def resume_writing(self) -> None:
        # The request has left us: the wait for its answer begins now.
        self._wake()

    def _adopt(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # `resume_writing` then means that all is written, not that a quarter of the buffer is left.
        transport.set_write_buffer_limits(high=0)

    async def _step_to_head(self, answer: Answer, transport: asyncio.Transport, within_s: float | None) -> None:
        """Return when the head is here or the request has got further; raise Stalled when neither happens in time."""
        unsent = transport.get_write_buffer_size()
        try:
            async with asyncio.timeout(within_s):
                await self._wait()
        except TimeoutError:
            if answer.progress is Progress.HEAD and transport.get_write_buffer_size() >= unsent:
                raise Stalled(
                    f"no answer from {self.label} within {within_s:g} s: the service may be overloaded"
                ) from None

    async def _wait(self) -> None:
        assert self._waiter is None, "one reader at a time"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, *, clean: bool) -> None:
        if self._answer is not None:
            self._answer.end(clean=clean)
        self._wake()

    def _close(self) -> None:
        # Below TLS, if there is any: the TLS transport of early Pythons 3.11 cannot be aborted once it was closed.
        if self._socket is not None:
            self._socket.abort()

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()
