"""Somebody waits for an extension: told to others once it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from zot.messages import timestamp

#: So long nobody is told.
PATIENCE_S = 1.0


class Wait:
    """While in this context somebody waits. If that takes long, ``tell`` hears since when; once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._tell, timestamp())

    def __exit__(self, *problem: object) -> None:
        self._timer.cancel()
