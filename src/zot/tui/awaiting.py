"""Which extension keeps this terminal waiting. All hear that somebody waits; that it is over, only who has waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zot.events import ExtWaiting


class Awaiting:
    """What this terminal wants of extensions, and the one that has not given it yet."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """``changed`` is called when a wait is over."""
        self._changed = changed
        #: What is waited for, as an `ExtWaiting` says it, or the first word of that.
        self._awaited: list[str] = []
        self._told: ExtWaiting | None = None

    @property
    def doing(self) -> str:
        """Who is waited for, for people; "" if nobody is."""
        return "" if self._told is None else f"waiting for {self._told.extension}"

    @contextmanager
    def wait(self, *awaited: str) -> Iterator[None]:
        """Wait for something, as long as the block takes."""
        self._awaited += awaited
        try:
            yield
        finally:
            for one in awaited:
                self._awaited.remove(one)
            if self._told is not None and not self._concerns(self._told):
                self._told = None
            self._changed()

    def hear(self, event: ExtWaiting) -> None:
        """Somebody waits: show it if that is this terminal."""
        if self._concerns(event):
            self._told = event

    def _concerns(self, event: ExtWaiting) -> bool:
        return event.what in self._awaited or event.what.partition(" ")[0] in self._awaited
