"""Kernel features of the guardian: subreapers, protected memory, child wake-ups, and marks on processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
#: Number of the system call keyctl, by machine.
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_KEYCTL_GET_KEYRING_ID = 0
_USER_KEYRING = -4
#: Range of marks, in microseconds: no real limit is above twelve days.
_LEAST_MARK = 1 << 40
_LARGEST_MARK = 1 << 62
_MAX_COLLECTED = 100


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants. Not inherited by children. Raise OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wake_with_parent() -> None:
    """Resume this process when its parent ends: if it is stopped, no other process may resume it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def hide_memory() -> None:
    """Keep the user's other processes, except root's, out of this one's memory, environment and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def join_new_keyring() -> None:
    """Give this process and its future children an empty session keyring, where the kernel has keyrings."""
    _keyctl(_KEYCTL_JOIN_SESSION_KEYRING, None)


def why_no_keyring() -> str:
    """Return why this system cannot give commands a session keyring of their own; "" if it can."""
    if os.uname().machine not in _KEYCTL:
        return f"zot does not know the system call on {os.uname().machine}"
    problem = _keyctl(_KEYCTL_GET_KEYRING_ID, _USER_KEYRING)
    return "" if problem in (0, errno.ENOKEY) else os.strerror(problem)


def _keyctl(operation: int, argument: int | None) -> int:
    """Call keyctl; return its error number, or 0."""
    number = _KEYCTL.get(os.uname().machine)
    return errno.ENOSYS if number is None else _call("syscall", number, operation, argument, 0, 0, 0)


def mark_processes() -> int:
    """Mark this process and its future descendants with a unique number, and return it; 0 if that fails.

    The mark is the limit RLIMIT_RTTIME, which affects only real-time scheduling. Limits are inherited, whatever a
    process does to its environment, session or parent; every process can read them in /proc/PID/limits, and only the
    superuser can raise one again. A process that lowers its limit loses the mark.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    ceiling = _LARGEST_MARK if hard == resource.RLIM_INFINITY else min(hard, _LARGEST_MARK)
    # Below the current limit: a marked process, such as a zot inside of a zot, can only lower it.
    mark = ceiling // 2 + int.from_bytes(os.urandom(8), "big") % (ceiling // 2 or 1)
    if mark < _LEAST_MARK:
        return 0
    resource.setrlimit(resource.RLIMIT_RTTIME, (mark, mark))
    return mark


def raise_priority(pid: int = 0) -> None:
    """Give a process, or this one, real-time priority if permitted, to win against a crowd of processes.

    Its children do not inherit it. Without permission it does nothing.
    """
    with suppress(PermissionError, ProcessLookupError):
        os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def wake_on_child_exit() -> int:
    """Return a descriptor that becomes readable when a child ends; `collect` then reaps it."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return ours


def collect(wakeups: int, options: int = 0) -> tuple[list[tuple[int, int]], bool]:
    """Reap children; return their pids and statuses, and True if none is left.

    Reaps a limited number at a time and keeps ``wakeups`` readable: children may end faster than they are reaped.
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
    if number := _call("prctl", option, value, 0, 0, 0):
        raise OSError(number, os.strerror(number))


def _call(function: str, *arguments: int | None) -> int:
    """Call a function of the C library; return its error number, or 0."""
    import ctypes  # Imported lazily: few processes make such a call.

    failed = getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) < 0
    return ctypes.get_errno() if failed else 0
