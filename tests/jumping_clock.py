"""zot in a process whose clock jumps: by as many seconds as a file says. What counts durations must not notice.

python jumping_clock.py FILE COMMAND...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_time, _time_ns, _gmtime = time.time, time.time_ns, time.gmtime


def _jump(path: Path) -> None:
    """Replace the clock before any module has imported it."""

    def ahead_s() -> float:
        return float(path.read_text())

    time.time = lambda: _time() + ahead_s()
    time.time_ns = lambda: _time_ns() + round(ahead_s() * 1e9)
    time.gmtime = lambda seconds=None: _gmtime(time.time() if seconds is None else seconds)


if __name__ == "__main__":
    _jump(Path(sys.argv[1]))
    from zot.cli import run

    sys.exit(run(sys.argv[2:]))
