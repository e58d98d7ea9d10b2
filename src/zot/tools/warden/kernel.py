"""What only the kernel can do for us: hand us orphans, keep others from looking into us, wake us when a child ends."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own. Not inherited by children. Raise OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep other processes of this user, other than root's, out of our memory, environment and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def wake_on_child_exit() -> int:
    """Return a descriptor that becomes readable when a child ends. `clear` it before looking who did."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return ours


def clear(wakeups: int) -> None:
    """Make such a descriptor wait for the next child."""
    with suppress(BlockingIOError):
        os.read(wakeups, 4096)


def _prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
