"""The processes below another one, as /proc shows them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

#: How much of a command line is worth telling.
_MAX_SHOWN_BYTES = 200
_SANDBOX = b"bwrap\n"


def children(pid: int) -> list[int]:
    """Return the children of a process; none if it has ended. One that is born or dies meanwhile may be missed."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it ended while we looked
        pass
    return found


def descendants(roots: list[int]) -> list[int]:
    """Return these processes and everything below them, parents first."""
    found = list(roots)
    for pid in found:  # grows while we walk
        found += children(pid)
    return found


def ask_to_end(pids: list[int]) -> None:
    """Send TERM, also to what has been stopped.

    A sandbox's own processes are left out: they end when what they hold has ended, and would not wait for it.
    """
    for pid in pids:
        if _read(f"/proc/{pid}/comm") != _SANDBOX:
            _send(pid, signal.SIGTERM)
            wake(pid)


def wake(pid: int) -> None:
    """Let a process go on that has been stopped."""
    _send(pid, signal.SIGCONT)


def kill(pids: list[int]) -> None:
    """Send KILL."""
    for pid in pids:
        _send(pid, signal.SIGKILL)


def command_lines(pids: list[int]) -> list[tuple[int, bytes]]:
    """Return who of these runs, and what: without zombies, and without a sandbox's own processes."""
    found = []
    for pid in pids:
        shown = _read(f"/proc/{pid}/cmdline")[:_MAX_SHOWN_BYTES].replace(b"\0", b" ").replace(b"\n", b" ").strip()
        if shown and _read(f"/proc/{pid}/comm") != _SANDBOX:
            found.append((pid, shown))
    return found


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it has ended
        return b""
    try:
        return os.read(fd, 1 << 20)
    except OSError:  # it ended just now
        return b""
    finally:
        os.close(fd)


def _send(pid: int, number: int) -> None:
    """Send a signal to whoever can take it.

    The number of a process is not given to another before all others have been used, so a process that ended a
    moment ago is not mistaken for a stranger.
    """
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or has become another user's
        os.kill(pid, number)
