"""How many notices an extension may send: in bursts, but not for ever. Does no I/O."""

from __future__ import annotations

from typing import Final

#: How many notices are shown at once, and how many a second after that.
BURST: Final = 1000
PER_S: Final = 100


class Pace:
    """A token bucket. Every time is seconds of whatever clock the shell uses."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = 0.0

    def admits(self, now: float) -> bool:
        """Count one more notice. False if it is one too many and must not be shown."""
        self._left = min(float(BURST), self._left + (now - self._at) * PER_S)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
