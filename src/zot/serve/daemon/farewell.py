"""How clients hear that the daemon is about to end, or after all is not; and how they are seen off when it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from zot.wire.daemon import TELLS_RESUMED, TELLS_STOPPING
from zot.wire.jsonrpc import encode_notification

if TYPE_CHECKING:
    from zot.serve.daemon.connection import Connection

#: How long those who have just come may take to say something when the daemon ends, and all others to read the rest.
_GREET_S = 1.0
_FLUSH_S = 1.0
#: How long those are waited for who were told that their turns are over, and not yet answered.
_OWED_S = 0.5


class Farewell:
    """Tells those who want to know. ``leaving`` are all clients that the daemon does not outlive."""

    def __init__(self, leaving: Callable[[], Collection[Connection]]) -> None:
        self._leaving = leaving
        #: Those who want to be told that the daemon is about to end, and those of them who were.
        self._curious: set[Connection] = set()
        self._warned: set[Connection] = set()
        #: Set when somebody has introduced itself, or gone.
        self._has_changed = asyncio.Event()
        #: Set when the last one that was seen off has gone.
        self._is_empty = asyncio.Event()

    def greeted(self, connection: Connection, *, is_curious: bool) -> None:
        """A client has introduced itself. A curious one is told of what is to come."""
        self._has_changed.set()
        if is_curious:
            self._curious.add(connection)
        else:
            self._curious.discard(connection)

    def left(self, connection: Connection) -> None:
        """A client has gone."""
        self._curious.discard(connection)
        self._warned.discard(connection)
        self._has_changed.set()
        if not self._leaving():
            self._is_empty.set()

    def warn(self) -> None:
        """Tell those who want to know, and have not been told, that the daemon is about to end."""
        for connection in self._curious - self._warned:
            connection.wire.send(encode_notification(TELLS_STOPPING, {}))
        self._warned |= self._curious

    def take_back(self) -> None:
        """Tell them that it goes on, also who was not warned: it may have been refused something."""
        for connection in self._curious:
            connection.wire.send(encode_notification(TELLS_RESUMED, {}))
        self._warned.clear()

    async def see_off(self) -> None:
        """End all connections, when those who have just come were answered and what they are owed is written."""
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GREET_S):
                while not all(one.is_welcome for one in self._leaving()):
                    self._has_changed.clear()
                    await self._has_changed.wait()
        if unanswered := [task for one in self._leaving() for task in one.unanswered]:
            await asyncio.wait(unanswered, timeout=_OWED_S)
        self._is_empty.clear()
        leaving = self._leaving()
        for connection in leaving:
            connection.wire.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S if leaving else 0):
                await self._is_empty.wait()
