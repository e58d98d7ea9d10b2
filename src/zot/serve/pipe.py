"""Local endpoint on Windows: a named pipe that carries the same lines as the socket elsewhere.

Never run on Windows: elsewhere only its calls to the event loop are tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from zot.errors import ConfigError, DaemonRunning
from zot.serve.daemon.audit import Identity
from zot.serve.daemon.daemon import Daemon
from zot.serve.daemon.sockets import LocalWire

#: The system admits only the pipe's creator and itself, and does not tell which of them connected.
_LABEL = "pipe:local"


class _PipeServer(Protocol):
    def close(self) -> None: ...


class _ProactorLoop(Protocol):
    """The part of Windows' event loop that other loops lack."""

    def start_serving_pipe(self, factory: Callable[[], LocalWire], address: str) -> Awaitable[Sequence[_PipeServer]]:
        """Create a named pipe and serve it; fail if the name exists."""


async def listen_at_pipe(daemon: Daemon, name: str) -> None:
    """Accept clients at a named pipe until the daemon stops. Raise ConfigError, DaemonRunning if the name is taken."""
    loop = asyncio.get_running_loop()
    if not hasattr(loop, "start_serving_pipe"):
        raise ConfigError(f"{name}: there are named pipes on Windows only, with its proactor event loop")
    try:
        (server,) = await cast(_ProactorLoop, loop).start_serving_pipe(
            lambda: LocalWire(lambda wire: daemon.admit(wire, Identity("pipe"), _LABEL)), name
        )
    except PermissionError:  # Raised for every process but the first that creates the pipe.
        raise DaemonRunning(f"another process has the pipe {name}") from None
    daemon.when_stopping(server.close)
