"""An observer of a store that passes its reports to functions of a test."""

from __future__ import annotations

from collections.abc import Callable

from zot.errors import StoreFailed
from zot.store import StoreObserver


class StoreWatch(StoreObserver):
    """Calls ``safe`` with the number of the newest safe row, and ``failed`` with the error of lost rows."""

    def __init__(
        self,
        safe: Callable[[int], object] = lambda seq: None,
        failed: Callable[[StoreFailed], object] = lambda problem: None,
    ) -> None:
        self._safe = safe
        self._failed = failed

    def on_safe(self, seq: int) -> None:
        self._safe(seq)

    def on_failed(self, problem: StoreFailed) -> None:
        self._failed(problem)
