"""lab on a socket: the scripted service for any client that can be pointed at a base URL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from zot.errors import ConfigError
from zot.providers.lab.exchange import Connection
from zot.providers.lab.script import Script
from zot.providers.lab.service import Service
from zot.providers.lab.transport import Sleep

log = logging.getLogger(__name__)


async def serve(
    script: Script,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ready: Callable[[str], None] = lambda _: None,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Answer HTTP until cancelled. Calls ``ready`` with the base URL. Raise ConfigError if the port cannot be had."""
    service = Service(script)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:

        def connected() -> Connection:
            connection = Connection(service, sleep)
            group.create_task(_keep(connection), name="lab connection")
            return connection

        try:
            server = await loop.create_server(connected, host, port)
        except OSError as exc:
            raise ConfigError(f"cannot listen on {host}:{port}: {exc}") from exc
        try:
            ready(_url(server))
            await loop.create_future()
        finally:
            server.close()


async def _keep(connection: Connection) -> None:
    """Run one connection. A bug costs this connection, not the server."""
    try:
        await connection.run()
    except Exception:
        log.exception("lab: a connection failed")


def _url(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
