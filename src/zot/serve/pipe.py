"""The local endpoint on Windows: a named pipe, which carries the same lines as the socket does elsewhere.

Nothing here was run on Windows: on other systems only what it asks of the event loop is tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from zot.errors import ConfigError, DaemonRunning
from zot.serve.daemon.audit import Who
from zot.serve.daemon.daemon import Daemon
from zot.serve.daemon.sockets import LocalWire

#: The system lets nobody in but the user who made the pipe, and itself; who of these it is it does not tell.
_LABEL = "pipe:local"


class _PipeServer(Protocol):
    def close(self) -> None: ...


class _ProactorLoop(Protocol):
    """What the event loop of Windows has besides."""

    def start_serving_pipe(self, factory: Callable[[], LocalWire], address: str) -> Awaitable[Sequence[_PipeServer]]:
        """Make a pipe, the first of its name, and serve it."""


async def listen_at_pipe(daemon: Daemon, name: str) -> None:
    """Accept clients at a named pipe until the daemon stops. Raise DaemonRunning if another has it, ConfigError."""
    loop = asyncio.get_running_loop()
    if not hasattr(loop, "start_serving_pipe"):
        raise ConfigError(f"{name}: there are named pipes on Windows only, with its proactor event loop")
    try:
        (server,) = await cast(_ProactorLoop, loop).start_serving_pipe(
            lambda: LocalWire(lambda wire: daemon.admit(wire, Who("pipe"), _LABEL)), name
        )
    except PermissionError:  # What the system says to whoever is not the first to make it.
        raise DaemonRunning(f"another process has the pipe {name}") from None
    daemon.when_stopping(server.close)
