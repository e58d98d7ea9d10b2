"""lab on a socket: the scripted service for any client that can be pointed at a base URL."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

from zot.errors import ConfigError
from zot.providers.lab.script import Script
from zot.providers.lab.server import Connection
from zot.providers.lab.service import Service
from zot.providers.lab.transport import Sleep

log = logging.getLogger(__name__)


async def serve(
    script: Script,
    *,
    host: str,
    port: int,
    ready: Callable[[str], None],
    sleep: Sleep = asyncio.sleep,
    log_request: Callable[[str], None] | None = None,
) -> None:
    """Answer HTTP until cancelled. Calls ``ready`` with the base URL, and ``log_request`` with a line per request.

    Raise ConfigError if the port cannot be had.
    """
    service = Service(script, log_request)
    group = asyncio.TaskGroup()

    def start(talk: Coroutine[Any, Any, None]) -> None:
        group.create_task(_survive(talk), name="lab connection")

    server = await _listen(lambda: Connection(service, sleep, start), host, port)
    try:
        async with group:
            await server.start_serving()
            ready(_url(server))
            await asyncio.get_running_loop().create_future()
    finally:
        server.close()


async def _listen(factory: Callable[[], Connection], host: str, port: int) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(factory, host, port, start_serving=False)
    except OSError as exc:
        # Not what asyncio says, which names the address once more; what is no number of the system's is a name's.
        reason = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from exc


async def _survive(talk: Coroutine[Any, Any, None]) -> None:
    """Run one connection. A bug costs this connection, not the server."""
    try:
        await talk
    except Exception:
        log.exception("a lab connection failed")


def _url(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
