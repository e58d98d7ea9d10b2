"""What only the kernel can do for us.

It hands us orphans, keeps others from looking into us, wakes us when a child ends, and marks what we start.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
#: Marks are numbers of microseconds that no limit is ever about: from twelve days on.
_LEAST_MARK = 1 << 40
_LARGEST_MARK = 1 << 62
_MAX_COLLECTED = 100


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own. Not inherited by children. Raise OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wake_with_parent() -> None:
    """Go on when the parent ends, if somebody has stopped us: there may be nobody else to notice."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def hide_memory() -> None:
    """Keep other processes of this user, other than root's, out of our memory, environment and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def mark_processes() -> int:
    """Give this process and all it will start a number that no other has, and return it; 0 if that is not possible.

    It is the limit of RLIMIT_RTTIME, about which nothing cares that is not scheduled in real time. Limits are
    inherited, whatever a process does to its environment, session or parent; everyone can read them in
    /proc/PID/limits, and only the super-user can raise one again. A process that lowers its limit loses the mark.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    ceiling = _LARGEST_MARK if hard == resource.RLIM_INFINITY else min(hard, _LARGEST_MARK)
    # A process that has a mark, such as a zot inside of a zot, can only go down from there.
    mark = ceiling // 2 + int.from_bytes(os.urandom(8), "big") % (ceiling // 2 or 1)
    if mark < _LEAST_MARK:
        return 0
    resource.setrlimit(resource.RLIMIT_RTTIME, (mark, mark))
    return mark


def hurry(pid: int = 0) -> None:
    """Let a process, or this one, go before all others, if we may: a crowd leaves little time to who has to end it.

    What it starts does not. Only the super-user may; others take their turn.
    """
    with suppress(PermissionError, ProcessLookupError):
        os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def wake_on_child_exit() -> int:
    """Return a descriptor that becomes readable when a child ends. `collect` then says who did."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return ours


def collect(wakeups: int, options: int = 0) -> tuple[list[tuple[int, int]], bool]:
    """Return which children have ended, with their statuses, and True if there are no others.

    Of very many it returns some, and ``wakeups`` stays readable: children may end faster than we can count them.
    """
    with suppress(BlockingIOError):
        os.read(wakeups, 4096)
    ended: list[tuple[int, int]] = []
    try:
        while len(ended) < _MAX_COLLECTED:
            pid, status = os.waitpid(-1, os.WNOHANG | options)
            if pid == 0:
                return ended, False
            ended.append((pid, status))
    except ChildProcessError:
        return ended, True
    signal.raise_signal(signal.SIGCHLD)
    return ended, False


def _prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
