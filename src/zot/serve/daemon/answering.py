"""Answers of a handler that are more than what is said: they come later, or something is to be done behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


class Deferred:
    """An answer that comes later, from whoever `resolve`s it; it is sent in that moment, so that its place is exact."""

    def __init__(self) -> None:
        self._outcome: list[Any] = []
        self._call: Callable[[Any], None] | None = None

    def resolve(self, outcome: Any) -> None:
        """Give the answer, or the RpcError in its place. The first one counts."""
        if not self._outcome:
            self._outcome.append(outcome)
            if self._call is not None:
                self._call(outcome)

    def then(self, call: Callable[[Any], None]) -> None:
        """Let ``call`` have the answer when it is there."""
        self._call = call
        if self._outcome:
            call(self._outcome[0])


class Later:
    """An answer that takes its time; others are served meanwhile."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self.work = work


class Told:
    """An answer, and what is to be done right behind it."""

    def __init__(self, result: Any, then: Callable[[], object]) -> None:
        self.result = result
        self.then = then
