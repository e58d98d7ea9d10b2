"""Time limits that hold on a busy machine as on an idle one."""

from __future__ import annotations

import time
from collections.abc import Iterator

_SAMPLE_S = 0.02


def slowness() -> float:
    """Return how many times slower this process is now than on an idle machine."""
    begun, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < _SAMPLE_S:
        pass
    return max(1.0, (time.monotonic() - begun) / _SAMPLE_S)


def longer(seconds: float) -> Iterator[float]:
    """Yield growing deadlines for an attempt that must pass a point before its own deadline expires."""
    yield from (seconds, 3 * seconds, 9 * seconds)


class Stopwatch:
    """Measures from its creation; the load is sampled at the beginning and at the end."""

    def __init__(self) -> None:
        self._slowness = slowness()
        self._begun = time.monotonic()

    def read_s(self) -> float:
        """Return the elapsed time in seconds of an idle machine, at most the real time."""
        elapsed_s = time.monotonic() - self._begun
        return elapsed_s / max(self._slowness, slowness())
