"""When a process that serves its standard streams must end before its work does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

from zot.serve.stdio import SIGNALS, abandoned, leave

_WATCH_S = 0.5


class Lifetime:
    """Ends on a signal, when nobody reads our output, or when the input has ended and so has our parent.

    A second signal leaves at once.
    """

    def __init__(self, outgoing: int) -> None:
        self._outgoing = outgoing
        self._parent = os.getppid()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.input_ended = False
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)
        self._look()

    def end(self) -> None:
        """Say that it is over."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def bound(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` until it is done or our time is over, whichever comes first."""
        task = self._loop.create_task(work, name="zot work")
        await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    def _on_signal(self) -> None:
        if self._ended.done():
            leave(0)
        self.end()

    def _look(self) -> None:
        orphaned = self.input_ended and os.getppid() != self._parent
        if orphaned or abandoned(self._outgoing):
            self.end()
        else:
            self._loop.call_later(_WATCH_S, self._look)
