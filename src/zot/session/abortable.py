"""Awaitable work outside of any run that an abort cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from zot.errors import RunCancelled

T = TypeVar("T")


class AbortableWaits:
    """A set of waits that `abort` cancels together."""

    def __init__(self, said: str = "aborted before the extension answered") -> None:
        """``said`` is the message of the RunCancelled that aborted waits raise."""
        self._said = said
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_waiting(self) -> bool:
        """True if any wait is in progress."""
        return bool(self._tasks)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` and return its result. Raise RunCancelled if an abort comes first."""
        task = asyncio.get_running_loop().create_task(work, name="zot wait")
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()
        if task.cancelled():
            raise RunCancelled(self._said)
        return task.result()

    def abort(self) -> None:
        """Cancel every wait."""
        for task in self._tasks:
            task.cancel()
