"""HTTP/1.1 over the network: a transport that keeps connections, the connections and their parser, and connecting.

Connecting covers proxies, happy eyeballs (RFC 8305) and TLS.
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
import ssl
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import httptools
import msgspec

from zot.config.base_url import Origin, Target, split_host, split_url
from zot.errors import (
    BadRequest,
    ConnectionFailed,
    ConnectionImpossible,
    ProviderError,
    Stalled,
    StreamBroken,
    plain_reason,
)
from zot.providers.base import Deadlines, HttpRequest
from zot.version import __version__

#: Environment variables that matter here: proxies and trusted certificates.
DECIDING = (
    *("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"),
    *("REQUEST_METHOD", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
MAX_IDLE_PER_ORIGIN = 4
IDLE_S = 60.0
_CLOSE_S = 1.0

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024
MAX_INTERIM = 10

PAUSE_BYTES = 1024 * 1024
#: Approximate limit of one read: an abort waits until it is decoded.
READ_BYTES = 64 * 1024

#: Delay before the next address is tried in parallel.
_NEXT_ADDRESS_S = 0.25

#: Family, type, protocol, canonical name and address, as `getaddrinfo` returns them.
_Place: TypeAlias = tuple[int, int, int, str, Any]

#: System directories with one certificate file per subject hash.
_HASHED_DIRECTORIES = ("/etc/ssl/certs", "/etc/pki/tls/certs")


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
                if kept.has_begun:
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
        # Before anything is sent: it reports a wrong certificate setting.
        tls = self._tls_context() if origin.scheme == "https" else None
        connection = await connect(origin, proxy, tls, within_s=deadlines.connect_s)
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
        return NetworkResponse(answer, connection, origin, self._idle)

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
    """An `HttpResponse` still being received on its connection, which goes to ``idle`` at its end."""

    def __init__(
        self, answer: ResponseParser, connection: HttpConnection, origin: Origin, idle: IdleConnections
    ) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._connection: HttpConnection | None = connection
        self._origin = origin
        self._idle = idle
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
            self._idle.give(self._origin, connection)
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
    BROKEN. ``has_begun``: a byte has arrived. ``reusable``: the connection may carry another request afterwards.
    """

    def __init__(self, label: str, *, bodiless: bool = False) -> None:
        self.progress = Progress.HEAD
        self.status = 0
        self.headers: dict[str, str] = {}
        self.failure: ProviderError | None = None
        self.has_head = False
        self.has_begun = False
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
        self.has_begun = True
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
    def has_begun(self) -> bool:
        """True if the peer has sent anything since the last request."""
        return self._answer is not None and self._answer.has_begun

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


async def connect(
    origin: Origin, proxy: Proxy | None, tls: ssl.SSLContext | None, *, within_s: float
) -> HttpConnection:
    """Return a connection ready for requests to ``origin``, encrypted with ``tls``. Raise ConnectionFailed.

    On failure or cancellation, nothing stays open.
    """
    label = origin.label if proxy is None else f"{origin.label} (through the proxy {proxy.label})"
    connection = HttpConnection(label)
    try:
        async with asyncio.timeout(within_s):
            await _connect(connection, origin, proxy, tls)
    except OSError as exc:
        connection.abort()
        if connection.in_handshake:
            raise handshake_error(exc, label, within_s) from exc
        raise ConnectionFailed(_explain(exc, label, proxy, within_s)) from exc
    except BaseException:
        connection.abort()
        raise
    return connection


async def _connect(connection: HttpConnection, origin: Origin, proxy: Proxy | None, tls: ssl.SSLContext | None) -> None:
    host, port = (origin.host, origin.port) if proxy is None else (proxy.host, proxy.port)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: connection, sock=await connect_socket(host, port))
    if tls is not None:
        if proxy is not None:
            await _open_tunnel(connection, origin, proxy)
        await connection.start_tls(tls, origin.host.removesuffix("."))


async def _open_tunnel(connection: HttpConnection, origin: Origin, proxy: Proxy) -> None:
    lines = [f"CONNECT {origin.label} HTTP/1.1", f"host: {origin.label}"]
    if proxy.authorization:
        lines.append(f"proxy-authorization: {proxy.authorization}")
    try:
        answer = await connection.ask("\r\n".join([*lines, "", ""]).encode("ascii"), bodiless=True)
    except StreamBroken as exc:
        raise ConnectionFailed(f"{exc}: check that {proxy.label} is an HTTP proxy") from exc
    if not 200 <= answer.status < 300:
        advice = "its user name and password" if answer.status == 407 else "the proxy settings and NO_PROXY"
        # 4xx is a decision of the proxy: a retry would get the same.
        raise (ConnectionImpossible if 400 <= answer.status < 500 else ConnectionFailed)(
            f"the proxy {proxy.label} refused to connect to {origin.label} (HTTP {answer.status}): check {advice}"
        )


def _explain(exc: OSError, label: str, proxy: Proxy | None, within_s: float) -> str:
    """Return the reason of a failed connection, with advice."""
    if isinstance(exc, TimeoutError):
        return f"no connection to {label} within {within_s:g} s: check the network and the proxy settings"
    if isinstance(exc, socket.gaierror):
        name = "the proxy's host name" if proxy is not None else "the host name"
        return f"{name} for {label} cannot be resolved ({exc.strerror}): check the address and the DNS settings"
    if isinstance(exc, ConnectionRefusedError):
        return f"the connection to {label} was refused: check the address and that the server is running"
    if isinstance(exc, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return f"the connection to {label} was reset while it was being opened: check the address and any firewall"
    return f"no connection to {label} ({exc}): check the address and the network"


async def connect_socket(host: str, port: int) -> socket.socket:
    """Return a socket connected to ``host``; the caller closes it. Raise OSError.

    On failure or cancellation, nothing stays open.
    """
    waiting = iter(await _places(host, port))
    attempts: list[asyncio.Task[socket.socket]] = []
    won: asyncio.Task[socket.socket] | None = None
    try:
        while won is None:
            place = next(waiting, None)
            if place is not None:
                attempts.append(asyncio.get_running_loop().create_task(_attempt(place), name="zot connect"))
            running = [one for one in attempts if not one.done()]
            if not running:
                raise _explained(attempts)
            delay_s = None if place is None else _NEXT_ADDRESS_S
            done, _ = await asyncio.wait(running, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            won = next((one for one in done if one.exception() is None), None)
        return won.result()
    finally:
        for attempt in attempts:
            if attempt is not won:
                attempt.cancel()
                attempt.add_done_callback(_abandon)


async def _places(host: str, port: int) -> Sequence[_Place]:
    """Return the addresses of a host, alternating between families, so that one broken family costs little."""
    name = host.encode("ascii")  # For a str, Python would load its tables of international names.
    try:  # A numeric address needs no lookup, which takes a thread.
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    families: dict[int, list[_Place]] = {}
    for place in found:
        families.setdefault(place[0], []).append(place)
    return [place for turn in zip_longest(*families.values()) for place in turn if place is not None]


async def _attempt(place: _Place) -> socket.socket:
    family, kind, protocol, _, address = place
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _abandon(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the socket of an attempt that lost the race, or succeeded after a cancellation."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _explained(attempts: Sequence[asyncio.Task[socket.socket]]) -> BaseException:
    """Return why no address accepted the connection: the first reason, or all if they differ in type."""
    problems = [problem for one in attempts if (problem := one.exception()) is not None]
    if not problems:
        return OSError("the name has no address")
    return problems[0] if len({*map(type, problems)}) == 1 else OSError("; ".join(map(str, problems)))


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy. ``authorization`` is the value of its proxy-authorization header, or empty."""

    host: str
    port: int
    authorization: str = ""

    def __repr__(self) -> str:
        """Show the address without the password."""
        return f"Proxy({self.label})"

    @property
    def label(self) -> str:
        """``host:port``, for messages."""
        return Origin("http", self.host, self.port).label


def find_proxy(origin: Origin, env: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for this origin, None for a direct connection.

    Reads ``https_proxy`` or ``http_proxy``, then ``all_proxy``, unless ``no_proxy`` matches; lower case before
    upper case, and an empty value counts as absent. Raise ConnectionImpossible for an unsupported proxy.
    """
    url = _proxy_url(origin.scheme, env)
    if not url or _is_exempt(origin, env.get("no_proxy") or env.get("NO_PROXY") or ""):
        return None
    return _parse_proxy(url)


def _proxy_url(scheme: str, env: Mapping[str, str]) -> str:
    names = [f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    if scheme == "http" and "REQUEST_METHOD" in env:
        # In a CGI program HTTP_PROXY is the client's "Proxy:" header: an attacker would choose our proxy.
        names.remove("HTTP_PROXY")
    values = (env.get(name, "").strip() for name in names)
    return next(filter(None, values), "")


def _parse_proxy(url: str) -> Proxy:
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    if scheme.lower() != "http":
        raise ConnectionImpossible(f"{scheme}:// proxies are not supported: use an http:// proxy")
    userinfo, _, after = rest.rpartition("@")
    host, port = split_host(after.partition("/")[0], 80)
    return Proxy(host, port, _basic(userinfo) if userinfo else "")


def _basic(userinfo: str) -> str:
    from urllib.parse import unquote_to_bytes  # Imported lazily: few proxies need a password.

    user, _, password = userinfo.partition(":")
    credentials = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return "Basic " + b2a_base64(credentials, newline=False).decode("ascii")


def _is_exempt(origin: Origin, no_proxy: str) -> bool:
    return any(_matches(origin, entry) for entry in no_proxy.replace(",", " ").lower().split())


def _matches(origin: Origin, entry: str) -> bool:
    if entry == "*":
        return True
    name, port = _split_entry(entry)
    if port and port != str(origin.port):
        return False
    host = origin.host.rstrip(".")
    if _looks_like_ip(host):
        return _ip_matches(host, name)
    name = name.removeprefix("*").removeprefix(".").rstrip(".")
    return bool(name) and (host == name or host.endswith("." + name))


def _split_entry(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        return name, port.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _looks_like_ip(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _ip_matches(host: str, entry: str) -> bool:
    """Compare an address with an address or a network; any other entry matches nothing."""
    from ipaddress import ip_address, ip_network  # Imported lazily: few proxies have exceptions.

    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False


def client_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context that verifies chain and host name, with TLS 1.2 or later and ALPN http/1.1.

    Trusts only the certificates in ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``; without them, the system's. Raise
    ConnectionImpossible if they cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    cafile, capath = env.get("SSL_CERT_FILE"), env.get("SSL_CERT_DIR")
    if cafile or capath:
        _trust_named(context, cafile or None, capath or None)
    elif directory := next(filter(_is_hashed, _HASHED_DIRECTORIES), None):
        # A directory is searched by hash when needed (0.3 ms); a bundle is parsed whole (23 to 48 ms).
        context.load_verify_locations(capath=directory)
    else:
        context.load_default_certs()
    return context


def handshake_error(exc: OSError, label: str, within_s: float) -> ConnectionFailed:
    """Return the error for a failed handshake. ConnectionImpossible means that a retry would fail too."""
    if isinstance(exc, TimeoutError):
        # Most plain http servers wait for the end of a line that never comes.
        return ConnectionImpossible(
            f"{label} accepts connections, but did not answer the TLS handshake within {within_s:g} s: "
            "check that it speaks https; the address of a server that does not begins with http://"
        )
    if isinstance(exc, ssl.SSLCertVerificationError):
        return ConnectionImpossible(
            f"the certificate of {label} is not trusted ({exc.verify_message}): check the address; "
            "if a private authority signed it, set SSL_CERT_FILE to that authority's PEM file"
        )
    if isinstance(exc, ssl.SSLError) and not isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ConnectionImpossible(
            f"no TLS connection to {label} ({exc.reason or 'handshake failed'}): "
            "check that it speaks https; the address of a server that does not begins with http://"
        )
    return ConnectionFailed(
        f"{label} closed the connection during the TLS handshake: check that it speaks https, and any firewall"
    )


def _trust_named(context: ssl.SSLContext, cafile: str | None, capath: str | None) -> None:
    try:
        context.load_verify_locations(cafile=cafile, capath=capath)
    except OSError as exc:
        raise ConnectionImpossible(
            f"SSL_CERT_FILE cannot be loaded ({plain_reason(exc)}): it must be a readable PEM file"
        ) from exc


def _is_hashed(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(len(entry.name) == 10 and entry.name.endswith(".0") for entry in entries)
    except OSError:
        return False
