"""Preloading: imports the parts of a session while the journal opens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

_MODULES = (
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
    """Import the modules of a session with this provider while the caller awaits something else."""
    task = asyncio.ensure_future(preload(provider))
    try:
        yield
    finally:
        task.cancel()


async def preload(provider: str) -> None:
    """Import the modules of a session one by one, yielding to the event loop in between."""
    for part in _MODULES if provider == "lab" else (*_MODULES, "providers.http"):
        await asyncio.sleep(0)
        __import__(f"zot.{part}")
