"""Opening a connection to an origin: name lookup, TCP, a proxy's tunnel, TLS; and saying why it failed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from zot.config.address import Origin
from zot.errors import ConnectionFailed, ConnectionImpossible, StreamBroken
from zot.providers import tls
from zot.providers.http_connection import Connection
from zot.providers.proxy import Proxy
from zot.providers.race import connected

if TYPE_CHECKING:
    import ssl


async def dial(
    origin: Origin, proxy: Proxy | None, *, within_s: float, tls_context: Callable[[], ssl.SSLContext]
) -> Connection:
    """Return a connection on which requests to ``origin`` can be written. Raise ConnectionFailed.

    When it fails or is cancelled, nothing stays open. ``tls_context`` is called for https only.
    """
    label = origin.label if proxy is None else f"{origin.label} (through the proxy {proxy.label})"
    connection = Connection(label)
    try:
        async with asyncio.timeout(within_s):
            await _connect(connection, origin, proxy, tls_context)
    except OSError as exc:
        connection.abort()
        if connection.in_handshake:
            raise tls.explain(exc, label, within_s) from exc
        raise ConnectionFailed(_explain(exc, label, proxy, within_s)) from exc
    except BaseException:
        connection.abort()
        raise
    return connection


async def _connect(
    connection: Connection, origin: Origin, proxy: Proxy | None, tls_context: Callable[[], ssl.SSLContext]
) -> None:
    # A wrong certificate setting is reported before anything is sent.
    context = tls_context() if origin.scheme == "https" else None
    host, port = (origin.host, origin.port) if proxy is None else (proxy.host, proxy.port)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: connection, sock=await connected(host, port))
    if context is not None:
        if proxy is not None:
            await _open_tunnel(connection, origin, proxy)
        await connection.start_tls(context, origin.host.removesuffix("."))


async def _open_tunnel(connection: Connection, origin: Origin, proxy: Proxy) -> None:
    lines = [f"CONNECT {origin.label} HTTP/1.1", f"host: {origin.label}"]
    if proxy.authorization:
        lines.append(f"proxy-authorization: {proxy.authorization}")
    try:
        answer = await connection.ask("\r\n".join([*lines, "", ""]).encode("ascii"), bodiless=True)
    except StreamBroken as exc:
        raise ConnectionFailed(f"{exc}: check that {proxy.label} is an HTTP proxy") from exc
    if not 200 <= answer.status < 300:
        advice = "its user name and password" if answer.status == 407 else "the proxy settings and NO_PROXY"
        # 4xx is a decision of the proxy: it would be the same next time.
        raise (ConnectionImpossible if 400 <= answer.status < 500 else ConnectionFailed)(
            f"the proxy {proxy.label} refused to connect to {origin.label} (HTTP {answer.status}): check {advice}"
        )


def _explain(exc: OSError, label: str, proxy: Proxy | None, within_s: float) -> str:
    """Say what failed and what to check."""
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
