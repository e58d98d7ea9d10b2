"""Punctuality of `zot host`: a bridge that waits a moment longer than its deadline has its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forked import Forked
from harness import PATIENCE_S, read_some
from hosts import Hosts, failure, request
from timing import slowness

TIMEOUT_S = 0.6
#: How much later the answer may be there, and the process gone.
LATE_S = 0.05
#: Others that come to a machine may hold it up while nobody measures how busy they are, but not every time.
TRIES = 5


def alone(hosts: Hosts) -> tuple[float, float]:
    """Return how late a process is with its answer, and with its end. Its time runs from when it was started."""
    process = hosts.fork()
    deadline = started(process.pid) + TIMEOUT_S
    late_s = answered(process) - deadline
    process.wait(PATIENCE_S)
    ended_s = now() - deadline
    assert process.communicate() == (b"", b"")
    return late_s, ended_s


def among_many(hosts: Hosts) -> tuple[float, float]:
    """Return how late one request of many is answered, twice. Its time runs from its arrival."""
    process = hosts.fork("--single-request", "false")
    asked = now()
    late_s = answered(process) - asked - TIMEOUT_S
    assert process.communicate() == (b"", b"")
    return late_s, late_s


@pytest.mark.parametrize("measure", [alone, among_many])
def test_a_stalled_model_costs_only_the_deadline(hosts: Hosts, measure: Callable[[Hosts], tuple[float, float]]) -> None:
    late_s: list[float] = []
    while len(late_s) < TRIES and min(late_s, default=LATE_S) >= LATE_S:
        answer_s, end_s = measure(hosts)
        assert answer_s >= 0, "it did not wait"
        late_s.append(max(answer_s, end_s) / slowness())
    assert min(late_s) < LATE_S, late_s


def answered(process: Forked) -> float:
    """Send a prompt to a silent model; return the time of the answer."""
    process.stdin.write(json.dumps(request("!stall", timeout_ms=TIMEOUT_S * 1000)).encode() + b"\n")
    process.stdin.flush()
    line = read_some(process.stdout.fileno(), time.monotonic() + PATIENCE_S)
    at = now()
    assert failure(json.loads(line)) == ("TIMEOUT", "request exceeded timeout_ms")
    return at


def now() -> float:
    """Return the time at which a process was started, by the system's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started(pid: int) -> float:
    """Return when a process was started, to a hundredth of a second, as it finds that out itself."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


#: Guards a request that is late, with a watchdog that cannot answer it.
UNABLE = """
import time
from zot.serve.host.watchdog import Signals, Slot, Watchdog
from zot.wire.host import Ids
class Unable:
    stays = False
    def answer_late(self, *_):
        raise ValueError("cannot write")
watchdog = Watchdog(Signals(), (0, 1))
watchdog.guard(Slot(Ids(), 0.0))
watchdog.start(Unable())
time.sleep(60)
"""


def test_a_watchdog_that_fails_ends_the_process_with_a_failure() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNABLE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (4, b"zot: the watchdog failed: ValueError('cannot write')\n")
