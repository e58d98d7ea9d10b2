"""How long this process has been there: whoever waits for it has waited as long."""

from __future__ import annotations

import os
import time

#: Nothing takes so long to start: a process that is older was another program before, which then became us.
_MAX_AGE_S = 10.0
_loaded = time.monotonic()


def process_began() -> float:
    """Return when this process began, on the clock of `time.monotonic`.

    As the system says (Linux tells it to the hundredth of a second); else as well as we know: when we were loaded.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            # The name comes second, in brackets, and may itself contain anything.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return _loaded
    return time.monotonic() - age_s if 0 <= age_s <= _MAX_AGE_S else _loaded
