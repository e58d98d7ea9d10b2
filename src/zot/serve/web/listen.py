"""TCP listener of the daemon: uvicorn in the daemon's event loop, with bounds on slow and oversized requests."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import socket
import ssl
from collections.abc import Callable, Container, Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from zot.config.file import ListenAddress, Tls, checked_listen_address
from zot.config.tokens import path_in
from zot.errors import ConfigError
from zot.serve.daemon.audit import Identity, Refusals
from zot.serve.daemon.sockets import Acceptor, Handshake
from zot.serve.web.asgi import app_for
from zot.serve.web.gate import Limits, Tokens
from zot.serve.web.websocket import BELOW, text_frames

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon

log = logging.getLogger("zot")

#: Logs our own errors, never data from clients: it could contain tokens. uvicorn's loggers may belong to the program
#: that embeds the daemon.
server_log = logging.getLogger("zot.web")
server_log.setLevel(logging.ERROR)

#: Bytes per read: thousands of tiny frames must not starve other tasks.
_CHUNK_BYTES = 16 << 10
#: Bytes still read after we closed a WebSocket, to receive the client's close frame.
_LAST_BYTES = 64 << 10

#: Host and port, with two more fields for IPv6.
_Place: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]

_BACKLOG = 256
#: How long new connections may take to send their request when the daemon ends.
_GREET_S = 0.5


class ServerConfig(Config):
    """uvicorn settings: log nothing and send no headers beyond the application's own.

    ``refused`` is called with the reason of each refusal that the application does not see.
    """

    def __init__(self, app: Any, limits: Limits, refused: Callable[[str], object]) -> None:
        super().__init__(
            app,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=limits.message,
            ws_ping_interval=limits.ping_s,
            ws_ping_timeout=limits.pong_s,
            ws_per_message_deflate=False,  # Costs more time than it saves, and clients could make it use much memory.
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
        #: Called when a connection has sent its request head, or is lost.
        self.head_ended: Callable[[], None] = lambda: None


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    config: ServerConfig
    access_log: bool
    #: Size of the incomplete request head, and the timer of its deadline.
    _head = 0
    _deadline: asyncio.TimerHandle | None = None
    #: Refusal of a head that is complete: status, phrase and reason.
    _refusal: tuple[int, str, str] | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger, self.access_log = server_log, False
        self._came = self.loop.time()

    @property
    def awaits_head(self) -> bool:
        """True while the connection has not sent a whole request head."""
        return self._deadline is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        if not self._has_room():
            self._refuse(503, "Service Unavailable", "connections")
            return
        self._begin_head()

    @property
    def is_idle(self) -> bool:
        """True while no request is being answered; a head that is not complete is none."""
        has_request = self.cycle is not None and not self.cycle.response_complete
        return not has_request and not self.transport.is_closing()

    def _has_room(self) -> bool:
        """Make room by ending the oldest idle connection: of the same peer if it has many, of any if there are many.

        A client that sends its request at once is not kept waiting by others that send none. False if all are busy.
        """
        limits = self.config.limits
        others = (one for one in self.connections if isinstance(one, HttpProtocol) and one is not self)
        idle = sorted((one for one in others if one.is_idle), key=lambda one: one._came)
        peer = self.client[0] if self.client else None
        same = [one for one in idle if (one.client[0] if one.client else None) == peer]
        closing = sum(one.transport.is_closing() for one in self.connections if isinstance(one, HttpProtocol))
        if len(same) >= limits.idle:
            same[0]._refuse(408, "Request Timeout", "crowded")
        elif len(self.connections) - closing > limits.connections:
            if not idle:
                return False
            idle[0]._refuse(408, "Request Timeout", "crowded")
        return True

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
            self._refusal = 431, "Request Header Fields Too Large", "head"
        elif not self._is_addressed():
            self._refusal = 421, "Misdirected Request", "target"
        if self._refusal is not None:
            raise ValueError(self._refusal[1])  # Stops the parser; `send_400_response` answers.
        super().on_headers_complete()

    def _is_addressed(self) -> bool:
        """True unless the request's target has a scheme or host of its own that its ``Host`` does not name."""
        if self.url.startswith(b"/") and not self.url.startswith(b"//"):
            return True
        scheme, _, rest = self.url.partition(b"://")
        hosts = [value for name, value in self.headers if name.lower() == b"host"]
        authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
        return scheme.lower() in (b"http", b"https") and [authority.lower()] == [host.lower() for host in hosts]

    def send_400_response(self, msg: str) -> None:
        if self._refusal is not None:
            self._refuse(*self._refusal)
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
        """Answer with an error before the application sees the request, and close the connection."""
        self._end_head()
        self.config.refused(f"{status} {reason}")
        self.transport.write(_refusal(status, phrase))
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """One WebSocket. `WebWire` writes to it directly, past ASGI."""

    config: ServerConfig

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gone = asyncio.Event()
        self._chunk = bytearray(_CHUNK_BYTES)
        #: Bytes received since we sent the close frame.
        self._ignored = 0
        self.logger = self.conn.logger = server_log
        self.conn.debug = False  # It would log heads.

    @property
    def unread(self) -> int:
        """Bytes written that the client has not taken."""
        return self.transport.get_write_buffer_size()

    async def send_lines(self, lines: bytes) -> None:
        """Send each line as a frame, all in one write: separate writes cost ten times as much."""
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(text_frames(lines))

    def abort(self) -> None:
        """Close at once."""
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
                self.transport.abort()  # Otherwise the client could keep sending until the close timeout.
                return
        super().data_received(data)
        if not self.handshake_initiated:  # uvicorn passes a complete head, so more data cannot make it valid.
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
            self.handshake_complete = True  # Refused on purpose: uvicorn must not log it as an error.

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= self.config.limits.fragments:
            self.conn.fail(1009, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # Do not wait for unwritten data.


def _refusal(status: int, phrase: str) -> bytes:
    return f"HTTP/1.1 {status} {phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode()


class _InUse(ConfigError):
    """Another process listens there."""


class Listening:
    """An address at which a daemon listens. ``url`` contains the real port, even if 0 was requested."""

    def __init__(self, url: str, listener: socket.socket, server: _Server, forget: Callable[[], None]) -> None:
        self.url = url
        #: Closed by `stop`. A copy of it can continue to accept.
        self.listener = listener
        self.server = server
        self._forget = forget

    def stop(self) -> None:
        """Stop accepting; existing connections stay."""
        self._forget()
        self.server.stop()

    async def close(self) -> None:
        """Stop, answer clients that have just connected, flush, and close all connections, within a short limit."""
        self.stop()
        await self.server.greeted()
        await self.server.shutdown()


async def listen(
    daemon: Daemon,
    url: str,
    *,
    tls: Tls | None = None,
    limits: Limits | None = None,
    inherited: Sequence[socket.socket] = (),
) -> Listening:
    """Serve ``daemon`` at an address such as ws://127.0.0.1:7777. Raise ConfigError if that is not possible.

    If one of the ``inherited`` sockets listens there, a copy of it is used.
    """
    limits = limits or Limits(message=daemon.max_line_bytes)
    address = checked_listen_address(url, tls)
    context = _context(tls) if tls is not None and address.is_secure else None
    tokens = Tokens(path_in(daemon.place.data_dir))
    listener = await _bound(address, inherited)
    try:
        app = app_for(daemon, tokens=tokens, hosts=(address.host,), limits=limits, path=address.path)
        refusals = Refusals(daemon.parts.audit, daemon.metrics)
        config = ServerConfig(app, limits, lambda outcome: refusals.note(Identity("http"), "", outcome))
        server = _Server(config)
        handshake = None if context is None else Handshake(context, limits.head_s, max(1, limits.connections // 4))
        server.accept(listener, handshake, lambda reason: refusals.note(Identity("http"), "", "tls"))
    except BaseException:
        listener.close()
        raise
    real = str(msgspec.structs.replace(address, port=listener.getsockname()[1]))
    daemon.listens.append(real)
    log.info("the daemon listens at %s; tokens: %s", real, tokens.path)
    return Listening(real, listener, server, lambda: _forget(daemon.listens, real))


async def reserve(
    listens: Iterable[tuple[str, Tls | None]], data_dir: str, *, held: Container[int]
) -> list[socket.socket]:
    """Check every address and return sockets for `listen` to inherit. Raise ConfigError.

    A port in ``held`` may be in use: the current daemon will hand it over.
    """
    Tokens(path_in(data_dir))
    found: list[socket.socket] = []
    try:
        for url, tls in listens:
            address = checked_listen_address(url, tls)
            if tls is not None and address.is_secure:
                _context(tls)
            try:
                found.append(await _bound(address, ()))
            except _InUse:
                if address.port not in held:
                    raise
    except BaseException:
        for one in found:
            one.close()
        raise
    return found


async def matching(inherited: Sequence[socket.socket], urls: Iterable[str]) -> Sequence[socket.socket]:
    """Return the ``inherited`` sockets that listen at one of ``urls``. Raise ConfigError."""
    places = [await _place_of(ListenAddress.parse(url)) for url in urls] if inherited else []
    return [one for one in inherited if (one.family, one.getsockname()) in places]


class _Server(uvicorn.Server):
    """uvicorn server without an event loop, process or signal handlers of its own."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config)
        config.load()
        self.lifespan = config.lifespan_class(config)
        self.servers = []  # `accept` replaces them.
        self._acceptor: Acceptor | None = None
        self._has_changed = asyncio.Event()
        config.head_ended = self._has_changed.set

    def accept(self, listener: socket.socket, tls: Handshake | None, lost: Callable[[str], object]) -> None:
        """Accept clients; a slow TLS handshake delays no other client."""
        config, state = self.config, self.server_state
        listener.listen(_BACKLOG)
        self._acceptor = Acceptor(listener, lambda: HttpProtocol(config, state, app_state={}), tls=tls, lost=lost)
        self.started = True

    async def greeted(self) -> None:
        """Wait until all new connections have sent their request heads, within a limit."""
        if self._acceptor is not None:
            await self._acceptor.finish(_GREET_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GREET_S):
                while any(isinstance(one, HttpProtocol) and one.awaits_head for one in self.server_state.connections):
                    self._has_changed.clear()
                    await self._has_changed.wait()

    def pause(self) -> None:
        """Pause accepting."""
        if self._acceptor is not None:
            self._acceptor.pause()

    def resume(self) -> None:
        """Resume accepting."""
        if self._acceptor is not None:
            self._acceptor.resume()

    def stop(self) -> None:
        """Stop accepting. Safe to call repeatedly."""
        if self._acceptor is not None:
            self._acceptor.close()


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"{tls.cert}: no certificate with its key: {problem.strerror or problem}") from None
    return context


async def _bound(address: ListenAddress, inherited: Sequence[socket.socket]) -> socket.socket:
    """Return a socket bound to an address. Raise ConfigError."""
    family, place = await _place_of(address)
    for one in inherited:
        if (one.family, one.getsockname()) == (family, place):
            return one.dup()
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(place)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as problem:
        raise _unavailable(address, problem) from None
    return listener


async def _place_of(address: ListenAddress) -> tuple[socket.AddressFamily, _Place]:
    """Resolve an address, in the form of `getsockname`. Raise ConfigError."""
    host = "127.0.0.1" if address.host.lower() == "localhost" else address.host
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise _unavailable(address, problem) from None
    family, _, _, _, place = found[0]
    return family, place


def _unavailable(address: ListenAddress, problem: OSError) -> ConfigError:
    kind = _InUse if problem.errno == errno.EADDRINUSE else ConfigError
    return kind(f"cannot listen at {address}: {problem.strerror or problem}")


def _forget(listens: list[str], url: str) -> None:
    with contextlib.suppress(ValueError):
        listens.remove(url)
