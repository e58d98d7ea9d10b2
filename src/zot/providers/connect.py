"""Connecting: proxies, happy eyeballs (RFC 8305) and TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import msgspec

from zot.config.address import Origin, split_host
from zot.errors import ConnectionFailed, ConnectionImpossible, StreamBroken
from zot.providers.http_connection import HttpConnection

#: Delay before the next address is tried in parallel.
_NEXT_ADDRESS_S = 0.25

#: Family, type, protocol, canonical name and address, as `getaddrinfo` returns them.
_Place: TypeAlias = tuple[int, int, int, str, Any]

#: System directories with one certificate file per subject hash.
_HASHED_DIRECTORIES = ("/etc/ssl/certs", "/etc/pki/tls/certs")


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
    try:  # A numeric address needs no lookup, which takes a thread.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
        raise ConnectionImpossible(f"proxies of the kind {scheme}:// are not supported: use an http:// proxy")
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
        raise ConnectionImpossible(f"SSL_CERT_FILE cannot be loaded ({exc}): it must be a readable PEM file") from exc


def _is_hashed(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(len(entry.name) == 10 and entry.name.endswith(".0") for entry in entries)
    except OSError:
        return False


async def connect(
    origin: Origin, proxy: Proxy | None, *, within_s: float, tls_context: Callable[[], ssl.SSLContext]
) -> HttpConnection:
    """Return a connection ready for requests to ``origin``. Raise ConnectionFailed.

    On failure or cancellation, nothing stays open. ``tls_context`` is called for https only.
    """
    label = origin.label if proxy is None else f"{origin.label} (through the proxy {proxy.label})"
    connection = HttpConnection(label)
    try:
        async with asyncio.timeout(within_s):
            await _connect(connection, origin, proxy, tls_context)
    except OSError as exc:
        connection.abort()
        if connection.in_handshake:
            raise handshake_error(exc, label, within_s) from exc
        raise ConnectionFailed(_explain(exc, label, proxy, within_s)) from exc
    except BaseException:
        connection.abort()
        raise
    return connection


async def _connect(
    connection: HttpConnection, origin: Origin, proxy: Proxy | None, tls_context: Callable[[], ssl.SSLContext]
) -> None:
    # Report a wrong certificate setting before sending anything.
    context = tls_context() if origin.scheme == "https" else None
    host, port = (origin.host, origin.port) if proxy is None else (proxy.host, proxy.port)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: connection, sock=await connect_socket(host, port))
    if context is not None:
        if proxy is not None:
            await _open_tunnel(connection, origin, proxy)
        await connection.start_tls(context, origin.host.removesuffix("."))


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
