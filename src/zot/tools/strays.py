"""What a command left behind when those who kept it were killed: found by its mark, and ended by us."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from zot.tools.warden import tree
from zot.tools.warden.kernel import hurry

_RESTING_S = 0.001


def end_strays(mark: int, session: int, *, within_s: float) -> None:
    """Kill every process that has a keeper's ``mark``, or is still in a command's ``session``; 0 stands for none.

    A direct call that takes ``within_s`` at most, and usually some milliseconds. What it cannot kill stays.
    """
    deadline = time.monotonic() + within_s
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    hurry()
    try:
        while tree.end(lambda: _found(mark, session)) and time.monotonic() < deadline:
            time.sleep(_RESTING_S)
    finally:
        os.sched_setscheduler(0, *before)


def _found(mark: int, session: int) -> Iterator[tuple[int, tree.Status]]:
    for name in os.listdir("/proc"):
        status = tree.status(int(name)) if name.isdigit() else None
        if status is None or status.state in b"ZX":
            continue
        if (session and status.session == session) or (mark and _has_mark(int(name), mark)):
            yield int(name), status


def _has_mark(pid: int, mark: int) -> bool:
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            return b"%d" % mark in file.read().split()
    except OSError:  # it ended while we looked, or is hidden from us
        return False
