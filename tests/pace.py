"""How long things take where others use the machine too: a limit judges there as it does on an idle one."""

from __future__ import annotations

import time
from collections.abc import Iterator

_SAMPLE_S = 0.02


def slowness() -> float:
    """How many times as long as on an idle machine something takes just now."""
    begun, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < _SAMPLE_S:
        pass
    return max(1.0, (time.monotonic() - begun) / _SAMPLE_S)


def longer(seconds: float) -> Iterator[float]:
    """Times to give to what must get somewhere before its own deadline: a machine may stand still for the first."""
    yield from (seconds, 3 * seconds, 9 * seconds)


class Stopwatch:
    """Runs from when it is made. Others may come and go meanwhile: it looks how busy they are at both ends."""

    def __init__(self) -> None:
        self._slowness = slowness()
        self._begun = time.monotonic()

    def read_s(self) -> float:
        """How long it has been, in seconds of an idle machine; never more than in seconds of this one."""
        elapsed_s = time.monotonic() - self._begun
        return elapsed_s / max(self._slowness, slowness())
