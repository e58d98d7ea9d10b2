"""Whether something that the daemon needs works: it is tried whenever somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from zot.errors import AgentError
from zot.messages import timestamp
from zot.wire.daemon_server import Component

#: How long it may take to show that it works.
_WITHIN_S = 5.0


class Checkup:
    """One part of the daemon: how it is, and when it last was well, and was not."""

    def __init__(self, attempt: Callable[[], Awaitable[object]], *, within_s: float = _WITHIN_S) -> None:
        """``attempt`` raises AgentError if it does not work."""
        self._attempt = attempt
        self._within_s = within_s
        self._last_ok: str | None = None
        self._last_error: str | None = None

    async def make(self) -> Component:
        """Try it, and return how it is now. Why it failed stays known when it works again."""
        problem = ""
        try:
            async with asyncio.timeout(self._within_s):
                await self._attempt()
        except TimeoutError:
            problem = f"no answer within {self._within_s:g} s"
        except AgentError as failure:
            problem = str(failure)
        now = timestamp()
        if problem:
            self._last_error = problem
        else:
            self._last_ok = now
        return Component(
            status="error" if problem else "ok", updated_at=now, last_ok=self._last_ok, last_error=self._last_error
        )
