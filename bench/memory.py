"""Memory of an idle `zot rpc`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from installation import Installation
from measure import Row, interleave, median, spread
from process import HELLO, Process, rpc

_SETTLE_S = 0.3


def memory(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """Resident memory of `zot rpc` when it has fully started and waits, beside that of a bare interpreter."""
    first = installations[0]
    samplers = {
        "bare": partial(_bare, first),
        **{installation.name: partial(_idle, installation) for installation in installations},
    }
    samples = interleave(samplers, max(3, rounds // 5))
    bare = median(samples["bare"])
    return [
        Row(
            "memory: idle rpc",
            installation.name,
            median(samples[installation.name]),
            "MB",
            at_most=26.0,
            spread=spread(samples[installation.name]),
            detail=f"{median(samples[installation.name]) / bare:.2f} x a bare interpreter's {bare:.1f} MB",
        )
        for installation in installations
    ]


def _idle(installation: Installation) -> float:
    with Process(rpc(installation, "--provider", "anthropic"), installation) as process:
        # `state` is answered only after a full start.
        process.write(HELLO + b'{"type":"ping"}\n{"type":"get_state"}\n')
        process.until(b'"command":"get_state"')
        time.sleep(_SETTLE_S)
        return resident_mb(process.pid)


def _bare(installation: Installation) -> float:
    program = "import sys; sys.stdout.write('{'); sys.stdout.flush(); sys.stdin.read()"
    with Process([installation.python, "-c", program], installation) as process:
        process.until(b"{")
        time.sleep(_SETTLE_S)
        return resident_mb(process.pid)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        text = status.read_text().partition("VmRSS:")[2].split()[0]
    else:
        text = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True).stdout.decode()
    return int(text) / 1024
