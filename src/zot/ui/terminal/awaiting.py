"""What keeps this terminal waiting, whatever runs: what it does itself, or an extension. Of that, all hear that
somebody waits; that it is over, only who has waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zot.events import ExtWaiting

#: What commands of our own want of extensions.
_OURS = {"btw": ("start", "intercept"), "reload-ext": ("start",)}


def wanted_by(command: str, *, is_ours: bool) -> tuple[str, ...]:
    """Return what a command waits for: one of an extension, that this has started and answers."""
    return _OURS.get(command, ()) if is_ours else ("start", f"command {command}")


class Awaiting:
    """What this terminal does that takes a while, what it wants of extensions, and who has not given that yet."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """``changed`` is called when a wait is over, or something is done, or about to be."""
        self._changed = changed
        self._busy: list[str] = []
        #: What is waited for, as an `ExtWaiting` says it, or the first word of that.
        self._awaited: list[str] = []
        self._told: ExtWaiting | None = None

    @property
    def doing(self) -> str:
        """Who is waited for, or what is done, for people; "" if that is nothing."""
        return next(reversed(self._busy), "") if self._told is None else f"waiting for {self._told.extension}"

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Say what is done, as long as the block takes."""
        self._busy.append(text)
        self._changed()
        try:
            yield
        finally:
            self._busy.remove(text)
            self._changed()

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
