"""Addresses of a daemon: which it listens at, and its claim to them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Container, Mapping, Sequence
from typing import Any

from msgspec import ValidationError, convert

from zot.config.file import DaemonSettings, ListenAddress, Tls, checked_listen_address
from zot.config.paths import DaemonPaths
from zot.errors import ConfigError, UserError
from zot.serve.daemon.claim import Claim, adopt_listener, claim_endpoint
from zot.serve.daemon.lifecycle import take_listeners

#: The time for the daemon to be replaced to report its addresses.
_ASKED_S = 5.0


def listen_addresses(own: Mapping[str, Any], settings: DaemonSettings) -> Sequence[tuple[str, Tls | None]]:
    """Return the addresses besides the socket, each once, with their certificate. Raise ConfigError.

    Reports mistakes before any client connects; the web server is imported later.
    """
    addresses = tuple(dict.fromkeys((*own.get("listen", ()), *settings.listen)))
    if not addresses:
        return ()

    from importlib.util import find_spec  # Imported lazily: only `--listen` needs it.

    if missing := [name for name in ("starlette", "uvicorn", "websockets") if find_spec(name) is None]:
        raise ConfigError(f"--listen needs {' and '.join(missing)}; in a clone of zot, run: pip install '.[web]'")
    cert, key = own.get("tls_cert") or settings.tls_cert, own.get("tls_key") or settings.tls_key
    tls = None if cert is None else Tls(cert, key)
    for address in addresses:
        checked_listen_address(address, tls)
    return tuple((address, tls) for address in addresses)


def claim_addresses(place: DaemonPaths, listens: Sequence[tuple[str, Tls | None]], *, replaces: bool) -> Claim:
    """Claim the endpoint. Raise DaemonRunning, ConfigError.

    With ``replaces``, reserve the addresses before the running daemon hands over.
    """
    passed = take_listeners(os.environ)
    if passed:
        for more in passed[1:]:
            more.close()
        return adopt_listener(_path_of(passed[0]) or place.socket, passed[0])
    if not replaces:
        return claim_endpoint(place.socket)

    from zot.serve.daemon.handover import take_over  # Imported lazily: only `--replace` needs it.

    reserved = _reserve(place, listens)
    claim = take_over(place.socket) or claim_endpoint(place.socket)
    claim.others += reserved
    return claim


def _reserve(place: DaemonPaths, listens: Sequence[tuple[str, Tls | None]]) -> Sequence[socket.socket]:
    """Return listening sockets for the addresses that can be bound before the other daemon ends. Raise ConfigError."""
    if not listens:
        return ()

    from zot.serve.web import reserve  # Imported lazily: an extra.

    return asyncio.run(reserve(listens, place.data_dir, held=_ports_in_use(place.socket)))


def _ports_in_use(path: str) -> Container[int]:
    """Return the ports of the running daemon; none if it does not report them."""
    # Imported lazily: only `--replace` needs them.
    from zot.client.blocking import DaemonLine
    from zot.wire.daemon_types import Status

    try:
        with DaemonLine(path, within_s=_ASKED_S) as line:
            listens = convert(line.ask("status", {}), Status).listens or ()
        return {ListenAddress.parse(url).port for url in listens}
    except (OSError, UserError, ValidationError, ValueError):
        return ()


def _path_of(listener: socket.socket) -> str:
    """Return the path of a passed socket; "" if it is unnamed. Raise ConfigError if it is not a local stream socket."""
    name = listener.getsockname()
    if not isinstance(name, str) or listener.type != socket.SOCK_STREAM:
        where = name.decode("utf-8", "replace").replace("\0", "@") if isinstance(name, bytes) else name
        raise ConfigError(
            f"the socket that was passed to the daemon is no local stream socket with a path, but at {where}: let"
            " ListenStream be a path; for WebSockets there is --listen"
        )
    return name
