"""What is added to the server that we use: nobody may take for ever to say what they want, or say too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from zot.web.conversation import BELOW
from zot.web.frames import text_frames
from zot.web.limits import Limits


class ServerConfig(Config):
    """How an application is served: nothing that it has not said itself is logged or sent.

    ``refused`` is told why something was refused that the application does not get to see.
    """

    def __init__(self, app: Any, limits: Limits, refused: Callable[[str], None]) -> None:
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
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
        self.limits = limits
        self.refused = refused


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    config: ServerConfig
    #: How much of a head has come that is not complete, and until when it must be.
    _head = 0
    _deadline: asyncio.TimerHandle | None = None
    _is_too_long = False

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

    def _late(self) -> None:
        self._refuse(408, "Request Timeout", "head")

    def _refuse(self, status: int, phrase: str, reason: str) -> None:
        """Say no before an application has seen anything, and hang up on who does not listen."""
        self._end_head()
        self.config.refused(f"{status} {reason}")
        self.transport.write(f"HTTP/1.1 {status} {phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket (`web_wire.Below`)."""

    config: ServerConfig

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

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # It runs from the next tick on.
            cast(dict[str, Any], self.scope)["extensions"][BELOW] = self

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
