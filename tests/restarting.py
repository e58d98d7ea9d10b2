"""A daemon in the test's own event loop that can be stopped and started again, and whose connections can be cut."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from daemons import Running, running
from zot.client.client import Client
from zot.events import AgentEvent
from zot.journal import replay


class Restarting:
    """A daemon that keeps its endpoint across restarts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stack = AsyncExitStack()
        self.running: Running

    async def start(self) -> None:
        self.running = await self._stack.enter_async_context(running(self._home))

    async def stop(self) -> None:
        """Stop it at once, as a signal without a grace period would."""
        self.running.daemon.stop(grace_s=0)
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def client(self, **more: Any) -> Client:
        return Client.connect(socket=self.running.path, **more)

    def cut(self) -> None:
        """Break every connection."""
        for connection in self.running.daemon.connections:
            connection.wire.cut("the test wants it")

    async def recorded(self, session_id: str) -> list[tuple[int, AgentEvent]]:
        """Return every recorded event with its sequence number."""
        journal = self.running.journal
        return [*await journal.reading(replay.events_after, session_id, 0, 1 << 20)]
