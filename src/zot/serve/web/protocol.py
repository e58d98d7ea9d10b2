"""What is added to the server that we use: nobody may take for ever to say what they want, or say too much."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from zot.serve.web.conversation import BELOW
from zot.serve.web.frames import text_frames
from zot.serve.web.limits import Limits

#: What is wrong with us is logged, and never what clients sent: their tokens could be in it. The server's own loggers
#: may be somebody else's, too.
log = logging.getLogger("zot.web")
log.setLevel(logging.ERROR)

#: So much is read at a time: thousands of tiny frames keep nobody else from running.
_CHUNK_BYTES = 16 << 10
#: So much is still read of who was hung up on, for the sake of its last word.
_LAST_BYTES = 64 << 10


class ServerConfig(Config):
    """How an application is served: nothing that it has not said itself is logged or sent.

    ``refused`` is told why something was refused that the application does not get to see.
    """

    def __init__(self, app: Any, limits: Limits, refused: Callable[[str], object]) -> None:
        super().__init__(
            app,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=limits.message,
            ws_ping_interval=limits.ping_s,
            ws_ping_timeout=limits.pong_s,
            ws_per_message_deflate=False,  # Costs more time than it saves, and could be made to cost memory.
            interface="asgi3",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
        self.limits = limits
        self.refused = refused
        #: Called when somebody has said what they want, or has gone.
        self.head_ended: Callable[[], None] = lambda: None


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    config: ServerConfig
    access_log: bool
    #: How much of a head has come that is not complete, and until when it must be.
    _head = 0
    _deadline: asyncio.TimerHandle | None = None
    _is_too_long = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger, self.access_log = log, False

    @property
    def awaits_head(self) -> bool:
        """True if somebody has come who has not said what they want."""
        return self._deadline is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > self.config.limits.connections:
            self._refuse(503, "Service Unavailable", "connections")
            return
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._head += len(data)
        super().data_received(data)
        if self._deadline is not None and self._head > self.config.limits.head:
            self._refuse(431, "Request Header Fields Too Large", "head")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.config.limits.head:
            self._is_too_long = True
            raise ValueError("the head is too long")  # So that the parser stops; it is answered below.
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._is_too_long:
            self._refuse(431, "Request Header Fields Too Large", "head")
            return
        self._end_head()
        self.config.refused("400 http")
        super().send_400_response(msg)

    def _begin_head(self) -> None:
        self._head = 0
        self._deadline = self.loop.call_later(self.config.limits.head_s, self._late)

    def _end_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self.config.head_ended()

    def _late(self) -> None:
        self._refuse(408, "Request Timeout", "head")

    def _refuse(self, status: int, phrase: str, reason: str) -> None:
        """Say no before an application has seen anything, and hang up on who does not listen."""
        self._end_head()
        self.config.refused(f"{status} {reason}")
        self.transport.write(_refusal(status, phrase))
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """One WebSocket (`web_wire.Below`)."""

    config: ServerConfig

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gone = asyncio.Event()
        self._chunk = bytearray(_CHUNK_BYTES)
        #: How much has come since it was hung up on.
        self._ignored = 0
        self.logger = self.conn.logger = log
        self.conn.debug = False  # It would log heads.

    @property
    def unread(self) -> int:
        """How many bytes have been written and not been taken."""
        return self.transport.get_write_buffer_size()

    async def send_lines(self, lines: bytes) -> None:
        """Send each line as a frame, all in one write: one by one they would cost ten times as much."""
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(text_frames(lines))

    def abort(self) -> None:
        """End at once."""
        self.transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(memoryview(self._chunk)[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        if self.close_sent:
            self._ignored += len(data)
            if self._ignored > _LAST_BYTES:
                self.transport.abort()  # It would talk on for as long as it may take to answer that it was hung up on.
                return
        super().data_received(data)
        if not self.handshake_initiated:  # A head comes whole, so nothing that follows could make it right.
            self.config.refused("400 handshake")
            self.handshake_initiated = True
            self.transport.write(_refusal(400, "Bad Request"))
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:  # The application runs from the next tick on.
            cast(dict[str, Any], self.scope)["extensions"][BELOW] = self
        else:
            self.config.refused(f"{self.response.status_code} handshake")

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # It was refused, which is no mistake of ours that has to be logged.

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= self.config.limits.fragments:
            self.conn.fail(1009, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # What is left to be written would be waited for.


def _refusal(status: int, phrase: str) -> bytes:
    return f"HTTP/1.1 {status} {phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode()
