"""HTTP/1.1 connection: response parser and asyncio protocol, one request at a time."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

import httptools

from zot.errors import ConnectionFailed, ProviderError, Stalled, StreamBroken

if TYPE_CHECKING:
    import ssl

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024
MAX_INTERIM = 10

PAUSE_BYTES = 1024 * 1024
#: Approximate limit of one read: an abort waits until it is decoded.
READ_BYTES = 64 * 1024


class Progress(enum.Enum):
    """Progress of a response."""

    HEAD = "waiting for the head"
    BODY = "receiving the body"
    WHOLE = "all there"
    BROKEN = "will never be whole"


class ResponseParser:
    """The response to one request, parsed as it arrives.

    ``label`` names the peer in messages; ``bodiless``: no body follows the head whatever the headers claim (HEAD,
    CONNECT). ``status`` and ``headers`` are valid once ``has_head`` is true, ``failure`` once ``progress`` is
    BROKEN. ``heard``: a byte has arrived. ``reusable``: the connection may carry another request afterwards.
    """

    def __init__(self, label: str, *, bodiless: bool = False) -> None:
        self.progress = Progress.HEAD
        self.status = 0
        self.headers: dict[str, str] = {}
        self.failure: ProviderError | None = None
        self.has_head = False
        self.heard = False
        self.reusable = False
        self.unread_bytes = 0
        self._label = label
        self._bodiless = bodiless
        self._until_close = False
        self._interim = 0
        self._header_count = 0
        self._header_bytes = 0
        self._barren_bytes = 0
        self._parts: list[bytes] = []
        # The parser calls the list's own append for each body piece: no Python code runs per chunk.
        self.on_body: Callable[[bytes], None] = self._parts.append
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes from the peer."""
        self.heard = True
        if self.progress is not Progress.HEAD and self.progress is not Progress.BODY:
            self.reusable = False
            return
        parts_before = len(self._parts)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("switched protocols without being asked")
        except httptools.HttpParserError as exc:
            self._stopped(str(exc))
        self._weigh(len(data), fruitful=len(self._parts) > parts_before)

    def end(self, *, clean: bool) -> None:
        """Record the end of the connection; ``clean`` if the peer closed it properly."""
        self.reusable = False
        if self.progress is Progress.HEAD:
            self.progress = Progress.BROKEN
            how = "closed" if clean else "lost"
            self.failure = ConnectionFailed(
                f"the connection to {self._label} was {how} before an answer came: "
                "check the address and any proxy or firewall in between"
            )
        elif self.progress is Progress.BODY:
            if clean and self._until_close:
                self.progress = Progress.WHOLE
            else:
                self._break("was cut short")

    def take(self, limit: int) -> bytes:
        """Return the oldest unread part of the body, about ``limit`` bytes at most; b"" if there is none."""
        size = count = 0
        for part in self._parts:
            size += len(part)
            count += 1
            if size >= limit:
                break
        data = b"".join(self._parts[:count])
        # In place: the parser appends to this very list.
        del self._parts[:count]
        self.unread_bytes = max(1, self.unread_bytes - size) if self._parts else 0
        return data

    def on_message_begin(self) -> None:
        """Stop at a message after the complete response: it was not requested."""
        if self.progress is Progress.WHOLE:
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are counted, not stored."""
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > MAX_HEADERS or self._header_bytes > MAX_HEAD_BYTES:
            self._break("has too many or too large headers")
            raise _Stop
        if self.progress is Progress.HEAD:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Record a complete head; skip 1xx heads."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self._skip_interim()
            return
        self.progress = Progress.BODY
        self.has_head = True
        self.reusable = self._parser.should_keep_alive()
        self._until_close = not self._has_length()
        if self._bodiless:
            # The parser does not know the method and would wait for the announced body.
            self.progress = Progress.WHOLE
            raise _Stop

    def on_message_complete(self) -> None:
        """Record the end of the response, unless it was a 1xx head."""
        if self.progress is Progress.BODY:
            self.progress = Progress.WHOLE

    def _skip_interim(self) -> None:
        self.headers.clear()
        self._interim += 1
        if self._interim > MAX_INTERIM:
            self._break("is preceded by too many 1xx answers")
            raise _Stop

    def _has_length(self) -> bool:
        codings = self.headers.get("transfer-encoding", "").lower().split(",")
        return "content-length" in self.headers or codings[-1].strip() == "chunked"

    def _stopped(self, reason: str) -> None:
        """Record that the parser stopped: on malformed input, or because a callback stopped it."""
        if self.progress is Progress.HEAD or self.progress is Progress.BODY:
            self._break(f"is not valid HTTP ({reason})")
        self.reusable = False

    def _weigh(self, size: int, *, fruitful: bool) -> None:
        """Limit bytes that bring no body: endless heads, trailers and chunk extensions."""
        if fruitful:
            self.unread_bytes += size
            self._barren_bytes = 0
            return
        self._barren_bytes += size
        if self._barren_bytes > MAX_HEAD_BYTES and self.progress in (Progress.HEAD, Progress.BODY):
            self._break("has too many or too large headers")

    def _break(self, how: str) -> None:
        self.progress = Progress.BROKEN
        self.reusable = False
        self.failure = StreamBroken(f"the answer of {self._label} {how}")


class _Stop(Exception):
    """Raised inside a parser callback to skip the rest of the input."""


class HttpConnection(asyncio.Protocol):
    """A TCP or TLS connection. ``label`` names the peer in messages.

    Reading pauses while more than `PAUSE_BYTES` are unread. Unrequested bytes end the connection.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._socket: asyncio.Transport | None = None
        self._answer: ResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        #: True while waiting for the peer in a TLS handshake.
        self.in_handshake = False

    @property
    def usable(self) -> bool:
        """True if a request may be written: connected, and the previous exchange is complete and read."""
        if self._transport is None or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        return self._answer is None or (self._answer.reusable and self.ended)

    @property
    def ended(self) -> bool:
        """True if the response has arrived and been read to its proper end."""
        return self._answer is not None and self._answer.progress is Progress.WHOLE and not self._answer.unread_bytes

    @property
    def heard(self) -> bool:
        """True if the peer has sent anything since the last request."""
        return self._answer is not None and self._answer.heard

    async def ask(self, request: bytes, *, bodiless: bool = False, within_s: float | None = None) -> ResponseParser:
        """Write a request and return when the head of its response has arrived; `read` returns its body.

        ``within_s`` counts from the moment the request is written. Raise ConnectionFailed, Stalled or StreamBroken.
        """
        assert self._transport is not None
        self._answer = answer = ResponseParser(self.label, bodiless=bodiless)
        if self._transport.is_closing():
            # It may have been lost before the request; `connection_lost` is not called again.
            answer.end(clean=False)
        else:
            self._transport.write(request)
        while answer.progress is Progress.HEAD:
            await self._step_to_head(answer, self._transport, within_s)
        if answer.failure is not None and not answer.has_head:
            raise answer.failure
        return answer

    async def read(self) -> bytes:
        """Return the body received since the last call, b"" at its end. Raise StreamBroken if it is cut short."""
        assert self._answer is not None
        answer = self._answer
        while answer.progress is Progress.BODY and not answer.unread_bytes:
            await self._wait()
        if answer.unread_bytes > READ_BYTES:
            # A reader that never waits would starve other tasks.
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
        """Start TLS and verify that the peer is ``host``. Raise OSError."""
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
        """Close the socket at once and wake any waiter. Safe at any time."""
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
        # The request is written: the response's deadline starts now.
        self._wake()

    def _adopt(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # `resume_writing` then means that everything is written.
        transport.set_write_buffer_limits(high=0)

    async def _step_to_head(self, answer: ResponseParser, transport: asyncio.Transport, within_s: float | None) -> None:
        """Return when the head has arrived or the request has made progress. Raise Stalled at the deadline."""
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
        # Below TLS: early Python 3.11 cannot abort a closed TLS transport.
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
