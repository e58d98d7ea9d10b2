"""Preloading: import the parts of a session while the journal opens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

_PARTS = (
    "agent.loop",
    "session.session",
    "runtime.toolbox",
    "runtime.extensions",
    "config.skills",
    "tools.base",
    "tools.specs",
    "agent.approvals",
    "providers.service",
)


@contextmanager
def preloading(provider: str) -> Iterator[None]:
    """Load what a session with this provider will need, as long as the caller is busy with something else."""
    task = asyncio.ensure_future(preload(provider))
    try:
        yield
    finally:
        task.cancel()


async def preload(provider: str) -> None:
    """Load what a session will need, a piece at a time: whoever waits for the file goes on in between."""
    for part in _PARTS if provider == "lab" else (*_PARTS, "providers.http"):
        await asyncio.sleep(0)
        __import__(f"zot.{part}")
