"""Memory: what an idle `zot rpc` holds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from measure import Row, interleave, median, spread
from process import HELLO, Process, rpc
from subject import Subject

_SETTLE_S = 0.3


def memory(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """Resident memory of `zot rpc` when it has fully started and waits, beside that of a bare interpreter."""
    first = subjects[0]
    samplers = {"bare": partial(_bare, first), **{subject.name: partial(_idle, subject) for subject in subjects}}
    samples = interleave(samplers, max(3, rounds // 5))
    bare = median(samples["bare"])
    return [
        Row(
            "memory: idle rpc",
            subject.name,
            median(samples[subject.name]),
            "MB",
            at_most=26.0,
            spread=spread(samples[subject.name]),
            detail=f"{median(samples[subject.name]) / bare:.2f} x a bare interpreter's {bare:.1f} MB",
        )
        for subject in subjects
    ]


def _idle(subject: Subject) -> float:
    with Process(rpc(subject, "--provider", "anthropic"), subject) as process:
        # The state is known only when everything is up.
        process.write(HELLO + b'{"type":"ping"}\n{"type":"get_state"}\n')
        process.until(b'"command":"get_state"')
        time.sleep(_SETTLE_S)
        return resident_mb(process.pid)


def _bare(subject: Subject) -> float:
    program = "import sys; sys.stdout.write('{'); sys.stdout.flush(); sys.stdin.read()"
    with Process([subject.python, "-c", program], subject) as process:
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
