"""Waits outside of any run that an abort ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from zot.errors import RunCancelled

T = TypeVar("T")


class Abortable:
    """What somebody waits for, until it is there or everything is aborted."""

    def __init__(self, said: str = "aborted before the extension answered") -> None:
        """``said`` is what those hear whose wait was ended."""
        self._said = said
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_waiting(self) -> bool:
        """True if somebody waits."""
        return bool(self._tasks)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` gives. Raise RunCancelled if an abort comes first."""
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
        """End every wait."""
        for task in self._tasks:
            task.cancel()
