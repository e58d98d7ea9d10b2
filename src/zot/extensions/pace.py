"""How fast an extension may talk when nobody has asked it: in bursts, but not for ever. Does no I/O."""

from __future__ import annotations

from typing import Final

#: So many things may be said at once, and so many a second after that.
BURST: Final = 1000
PER_S: Final = 100


class Pace:
    """Counts what was said. Every time is seconds of whatever clock the shell uses."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = 0.0

    def pause(self, said: int, now: float) -> float:
        """Return how long nothing more should be heard, after so many things were said; 0.0 if there is no hurry."""
        self._left = min(float(BURST), self._left + (now - self._at) * PER_S) - said
        self._at = now
        return max(0.0, -self._left / PER_S)
