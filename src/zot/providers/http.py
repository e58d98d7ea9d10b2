"""HTTP/1.1 over the network: requests out, streamed answers in, connections kept for the next request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zot.config.address import Origin, Target, split_url
from zot.errors import BadRequest, ConnectionFailed, StreamBroken
from zot.providers.base import Deadlines, HttpRequest
from zot.providers.connect import Proxy, client_context, connect, find_proxy
from zot.providers.http_connection import HttpConnection, ResponseParser
from zot.version import __version__

if TYPE_CHECKING:
    import ssl

#: Environment variables that matter here: proxies and trusted certificates.
DECIDING = (
    *("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"),
    *("REQUEST_METHOD", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
MAX_IDLE_PER_ORIGIN = 4
IDLE_S = 60.0
_CLOSE_S = 1.0


class HttpTransport:
    """A `Transport` on the network. ``env`` decides proxies and trusted certificates, and is read once.

    Belongs to one event loop. After `close` it refuses to send.
    """

    def __init__(self, env: Mapping[str, str] | None = None, *, idle_s: float = IDLE_S) -> None:
        given = os.environ if env is None else env
        self._env = {name: given[name] for name in DECIDING if name in given}
        self._context: ssl.SSLContext | None = None
        self._idle = IdleConnections(idle_s)
        self._connections: set[HttpConnection] = set()
        self._closed = False

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> NetworkResponse:
        """Return when the response's head has arrived. Raise ConnectionFailed, Stalled or StreamBroken.

        Raise BadRequest for an invalid header. Cancellation closes the connection at once.
        """
        target = split_url(request.url)
        proxy = find_proxy(target.origin, self._env)
        data = encode_request(request, target, proxy if target.origin.scheme == "http" else None)
        kept = self._idle.take(target.origin)
        if kept is not None:
            try:
                return await self._exchange(kept, target.origin, request, data, deadlines)
            except ConnectionFailed:
                # The server closed it while idle and has not seen this request, so sending it again is safe.
                if kept.heard:
                    raise
        fresh = await self._open(target.origin, proxy, deadlines)
        return await self._exchange(fresh, target.origin, request, data, deadlines)

    async def close(self) -> None:
        """Close every connection, idle or not, and wait until their sockets are closed."""
        self._closed = True
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=_CLOSE_S)

    async def _open(self, origin: Origin, proxy: Proxy | None, deadlines: Deadlines) -> HttpConnection:
        self._refuse_when_closed(origin)
        connection = await connect(origin, proxy, within_s=deadlines.connect_s, tls_context=self._tls_context)
        self._connections.add(connection)
        connection.lost.add_done_callback(lambda _: self._connections.discard(connection))
        if self._closed:
            connection.abort()
        self._refuse_when_closed(origin)
        return connection

    async def _exchange(
        self, connection: HttpConnection, origin: Origin, request: HttpRequest, data: bytes, deadlines: Deadlines
    ) -> NetworkResponse:
        try:
            answer = await connection.ask(data, bodiless=request.method == "HEAD", within_s=deadlines.headers_s)
        except BaseException:
            # Also on cancellation: a request without a response leaves no open socket.
            connection.abort()
            raise
        return NetworkResponse(answer, connection, lambda: self._idle.give(origin, connection))

    def _refuse_when_closed(self, origin: Origin) -> None:
        if self._closed:
            raise ConnectionFailed(f"no connection to {origin.label}: this transport has been closed")

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = client_context(self._env)
        return self._context


class SharedHttpTransport(HttpTransport):
    """A transport that several sessions share: when one closes it, its connections stay open for the others."""

    async def close(self) -> None:
        """Do nothing: the owner calls `close_connections`."""

    async def close_connections(self) -> None:
        """Close every connection, as `HttpTransport.close` does."""
        await super().close()


class NetworkResponse:
    """An `HttpResponse` still being received on its connection."""

    def __init__(self, answer: ResponseParser, connection: HttpConnection, keep: Callable[[], None]) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._connection: HttpConnection | None = connection
        self._keep = keep
        self._ended = False

    async def read(self) -> bytes:
        """Return all body bytes that arrived since the last read; b"" at the proper end. Raise StreamBroken."""
        if self._connection is None:
            if self._ended:
                return b""
            raise StreamBroken("the answer was closed before its end")
        data = await self._connection.read()
        if not data:
            self.close()
        return data

    def close(self) -> None:
        """Release the connection: keep it if the body was read to its end, else close it at once."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._ended = connection.ended
        if connection.usable:
            self._keep()
        else:
            connection.abort()


class IdleConnections:
    """Pool of idle connections: few per origin, for a short time."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._by_origin: dict[Origin, list[tuple[HttpConnection, asyncio.TimerHandle]]] = {}

    def take(self, origin: Origin) -> HttpConnection | None:
        """Return the connection used last, or None. The server may be closing it already."""
        waiting = self._by_origin.get(origin, [])
        while waiting:
            connection, expiry = waiting.pop()
            expiry.cancel()
            if connection.usable:
                return connection
        return None

    def give(self, origin: Origin, connection: HttpConnection) -> None:
        """Keep a usable connection; evict the oldest if there are too many."""
        waiting = [entry for entry in self._by_origin.get(origin, []) if entry[0].usable]
        expiry = asyncio.get_running_loop().call_later(self._idle_s, connection.abort)
        waiting.append((connection, expiry))
        self._by_origin[origin] = waiting
        if len(waiting) > MAX_IDLE_PER_ORIGIN:
            oldest, its_expiry = waiting.pop(0)
            its_expiry.cancel()
            oldest.abort()


def encode_request(request: HttpRequest, target: Target, proxy: Proxy | None) -> bytes:
    """Return the bytes of a request; with a proxy, in absolute form for plain http. Raise BadRequest."""
    headers = {"user-agent": f"zot/{__version__}", **request.headers}
    headers.pop("transfer-encoding", None)
    headers |= {"host": target.origin.authority, "accept-encoding": "identity", "connection": "keep-alive"}
    if request.body or request.method not in ("GET", "HEAD"):
        headers["content-length"] = str(len(request.body))
    where = target.path
    if proxy is not None:
        where = f"http://{target.origin.authority}{target.path}"
        if proxy.authorization:
            headers["proxy-authorization"] = proxy.authorization
    lines = [f"{request.method} {where} HTTP/1.1".encode("ascii")]
    lines += [_encode_header(name, value) for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", request.body])


def _encode_header(name: str, value: str) -> bytes:
    """Return one header line. BadRequest names the header and never shows its value."""
    try:
        line = f"{name}: {value}".encode("latin-1")
    except UnicodeEncodeError:
        raise BadRequest(f"the header {name!r} contains a character that HTTP cannot carry") from None
    if any(byte in line for byte in b"\r\n\0"):
        raise BadRequest(f"the header {name!r} contains a line break: check how the key or header was set")
    return line
