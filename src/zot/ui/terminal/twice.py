"""A key that is meant only when it is pressed twice."""

from __future__ import annotations

from collections.abc import Callable

#: Later than this it is the first time again.
_TWICE_S = 2.0


class Twice:
    """Knows if a key was pressed twice, with nothing done between. ``clock`` has the seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pressed_s: float | None = None

    def press(self) -> bool:
        """It is pressed; True if that is the second time."""
        is_second, self._pressed_s = self.is_pressed, self._clock()
        return is_second

    @property
    def is_pressed(self) -> bool:
        """True while it would be the second time."""
        return self._pressed_s is not None and self._clock() - self._pressed_s < _TWICE_S

    def forget(self) -> None:
        """Something else was done: the next time is the first."""
        self._pressed_s = None
