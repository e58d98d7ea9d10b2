"""The daemon at an address: a server in the loop that there is, beside everything else in it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import uvicorn

from zot.config.listen_address import ListenAddress, Tls, checked
from zot.config.tokens import path_in
from zot.errors import ConfigError
from zot.serve.daemon.acceptor import Acceptor, Handshake
from zot.serve.daemon.audit import Who
from zot.serve.daemon.refusals import Refusals
from zot.serve.web.app import app_for
from zot.serve.web.limits import Limits
from zot.serve.web.protocol import HttpProtocol, ServerConfig
from zot.serve.web.tokens import Tokens

if TYPE_CHECKING:
    import ssl

    from zot.serve.daemon.daemon import Daemon

log = logging.getLogger("zot")

#: A host and a port, with more behind them for IPv6.
_Place: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]

_BACKLOG = 256
#: How long those who have just come may take to say what they want when the daemon ends.
_GREET_S = 0.5


class _InUse(ConfigError):
    """Somebody else listens there."""


class Listening:
    """An address at which a daemon is reached. ``url`` is where it really is, whichever port was wanted."""

    def __init__(self, url: str, listener: socket.socket, server: _Server, forget: Callable[[], None]) -> None:
        self.url = url
        #: Closed by `stop`. Who has a copy of it can go on to accept there.
        self.listener = listener
        self._server = server
        self._forget = forget

    def rest(self) -> None:
        """Accept nobody for now: who comes waits."""
        self._server.rest()

    def go_on(self) -> None:
        """Accept again, also who waits."""
        self._server.go_on()

    def stop(self) -> None:
        """Accept nobody any more; who is there stays."""
        self._forget()
        self._server.stop()

    async def close(self) -> None:
        """Stop, and end what is there: who has just come is heard, and what was answered is written, for a moment."""
        self.stop()
        await self._server.greeted()
        await self._server.shutdown()


async def listen(
    daemon: Daemon,
    url: str,
    *,
    tls: Tls | None = None,
    limits: Limits | None = None,
    inherited: Sequence[socket.socket] = (),
) -> Listening:
    """Serve ``daemon`` at an address such as ws://127.0.0.1:7777. Raise ConfigError if that is not possible.

    If one of those that were ``inherited`` listens there, a copy of it is used.
    """
    limits = limits or Limits(message=daemon.max_line_bytes)
    address = checked(url, tls)
    context = _context(tls) if tls is not None and address.is_secure else None
    tokens = Tokens(path_in(daemon.place.data_dir))
    listener = await _bound(address, inherited)
    try:
        app = app_for(daemon, tokens=tokens, hosts=(address.host,), limits=limits, path=address.path)
        refusals = Refusals(daemon.parts.audit, daemon.metrics)
        config = ServerConfig(app, limits, lambda outcome: refusals.note(Who("http"), "", outcome))
        server = _Server(config)
        handshake = None if context is None else Handshake(context, limits.head_s, limits.connections)
        server.accept(listener, handshake, lambda reason: refusals.note(Who("http"), "", "tls"))
    except BaseException:
        listener.close()
        raise
    real = str(msgspec.structs.replace(address, port=listener.getsockname()[1]))
    daemon.listens.append(real)
    log.info("the daemon listens at %s; who has a token of %s may come in", real, tokens.path)
    return Listening(real, listener, server, lambda: _forget(daemon.listens, real))


async def reserve(
    listens: Iterable[tuple[str, Tls | None]], data_dir: str, *, held: Container[int]
) -> list[socket.socket]:
    """Return sockets at addresses, for `listen` to inherit, with all that is needed there looked at. Raise ConfigError.

    A port that is ``held`` by who will give it away need not be free.
    """
    Tokens(path_in(data_dir))
    found: list[socket.socket] = []
    try:
        for url, tls in listens:
            address = checked(url, tls)
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


async def of_use(inherited: Sequence[socket.socket], urls: Iterable[str]) -> Sequence[socket.socket]:
    """Return which of those that were ``inherited`` listen at one of some addresses. Raise ConfigError."""
    places = [await _place_of(ListenAddress.parse(url)) for url in urls] if inherited else []
    return [one for one in inherited if (one.family, one.getsockname()) in places]


class _Server(uvicorn.Server):
    """A server without a loop, a process and signals of its own."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config)
        config.load()
        self.lifespan = config.lifespan_class(config)
        self.servers = []  # It has none of its own: see `accept`.
        self._acceptor: Acceptor | None = None
        self._has_changed = asyncio.Event()
        config.head_ended = self._has_changed.set

    def accept(self, listener: socket.socket, tls: Handshake | None, lost: Callable[[str], object]) -> None:
        """Accept clients; who takes for ever to agree on a cipher is not waited for."""
        config, state = self.config, self.server_state
        listener.listen(_BACKLOG)
        self._acceptor = Acceptor(listener, lambda: HttpProtocol(config, state, app_state={}), tls=tls, lost=lost)
        self.started = True

    async def greeted(self) -> None:
        """Wait until all who have come have said what they want, but not for ever."""
        if self._acceptor is not None:
            await self._acceptor.finish(_GREET_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GREET_S):
                while any(isinstance(one, HttpProtocol) and one.awaits_head for one in self.server_state.connections):
                    self._has_changed.clear()
                    await self._has_changed.wait()

    def rest(self) -> None:
        """Accept nobody for now."""
        if self._acceptor is not None:
            self._acceptor.rest()

    def go_on(self) -> None:
        """Accept again."""
        if self._acceptor is not None:
            self._acceptor.go_on()

    def stop(self) -> None:
        """Accept nobody any more. Any number of times."""
        if self._acceptor is not None:
            self._acceptor.close()


def _context(tls: Tls) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"{tls.cert}: no certificate with its key: {problem.strerror or problem}") from None
    return context


async def _bound(address: ListenAddress, inherited: Sequence[socket.socket]) -> socket.socket:
    """Return a socket at an address. Raise ConfigError if it cannot be had."""
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
    """Return where an address is, as a socket says it. Raise ConfigError if nobody knows."""
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
