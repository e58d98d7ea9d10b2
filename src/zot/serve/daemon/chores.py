"""What is done beside the main work: owned, so that nothing of it goes on when that is over, or fails unheard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Self

from zot.errors import AgentError

log = logging.getLogger("zot")

#: How long what was ended may take to wind down.
_END_S = 5.0


class Chores:
    """Work that is done as long as an ``async with`` block, and no longer. One that fails costs itself only."""

    def __init__(self, *, within_s: float = _END_S) -> None:
        self._within_s = within_s
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin with something; if it fails, the log has why."""
        task = asyncio.get_running_loop().create_task(work, name=f"zot {name}")
        self._tasks.append(task)
        task.add_done_callback(_over)

    async def end(self) -> None:
        """End everything, and wait for that. Any number of times."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._within_s)
            for task in late:
                log.warning("%s has not ended within %g s", task.get_name(), self._within_s)


def _over(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (problem := task.exception()) is not None:
        if isinstance(problem, AgentError):  # its text says all there is to know
            log.error("%s has failed: %s", task.get_name(), problem)
        else:
            log.error("%s has failed", task.get_name(), exc_info=problem)
