"""The processes below another one, as /proc shows them, and how all of them are stopped for good.

Nothing here but `command_lines` looks into the memory of a process: that can wait for as long as the process likes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

#: How much of a command line is worth telling.
_MAX_SHOWN_BYTES = 200
_SANDBOX = b"bwrap\n"
#: How many processes one look can find. Whoever starts more than that faster than we look is looked at again.
_MAX_FOUND = 50_000
#: How often we look before we kill what we have found: what still moves then is found by whoever calls again.
_MAX_LOOKS = 50
_BETWEEN_LOOKS_S = 0.0005
_AT_REST = b"TtZX"


class Status:
    """What /proc/PID/stat says: the state as a letter, and to which group and session a process belongs."""

    def __init__(self, text: bytes) -> None:
        # The name comes second, in brackets, and may itself contain anything.
        fields = text.rpartition(b")")[2].split()
        self.state = fields[0]
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.threads = int(fields[17])

    @property
    def is_at_rest(self) -> bool:
        """True for what has stopped or ended, and so cannot start another."""
        return self.state in _AT_REST


def status(pid: int) -> Status | None:
    """Return what a process is doing; None if it has ended and been reaped."""
    text = _read(f"/proc/{pid}/stat")
    return Status(text) if text else None


def children(pid: int, *, threads: int = 0) -> list[int]:
    """Return the children of a process; none if it has ended. One that is born or dies meanwhile may be missed."""
    if threads == 1:
        return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it ended while we looked
        pass
    return found


def below(roots: list[int]) -> Iterator[tuple[int, Status]]:
    """Yield these processes and everything below them, parents first. A parent's children are looked up afterwards."""
    found: set[int] = set()
    unseen = list(roots)
    for pid in unseen:  # grows while we walk
        seen = None if pid in found else status(pid)
        if seen is not None:
            found.add(pid)
            yield pid, seen
            unseen += children(pid, threads=seen.threads)
        if len(found) >= _MAX_FOUND:
            break


def end(look: Callable[[], Iterable[tuple[int, Status]]]) -> list[int]:
    """Kill all that ``look`` finds, so that nothing of it starts another meanwhile. Return whom it found.

    Killing one after the other would lose against a fork loop, which replaces each faster than we find it. Therefore
    all are stopped first. Only what began to start a process before we stopped it may escape: call this until there
    is nothing left.
    """
    found = _stop(look)
    for pid in found:
        _send(pid, signal.SIGKILL)
    return found


def _stop(look: Callable[[], Iterable[tuple[int, Status]]]) -> list[int]:
    """Stop all that ``look`` finds until two looks find the same processes, all at rest."""
    before: set[int] = set()
    not_ours: set[int] = set()
    was_quiet = False
    for _ in range(_MAX_LOOKS):
        found: set[int] = set()
        is_quiet = True
        for pid, seen in look():
            found.add(pid)
            if not (seen.is_at_rest and pid in before) and pid not in not_ours:
                # At once: in a crowd every one that has stopped leaves more time to find the others.
                if not _halt(pid, seen.group):
                    not_ours.add(pid)
                # What waits inside the kernel stops before it comes back from there.
                elif not seen.is_at_rest and seen.state != b"D":
                    is_quiet = False
        # A parent may have ended between two looks, and its child may have gone elsewhere: hence two quiet ones.
        if is_quiet and was_quiet and found == before:
            break
        before, was_quiet = found, is_quiet
        time.sleep(_BETWEEN_LOOKS_S)
    return list(before)


def _halt(pid: int, group: int) -> bool:
    """Stop a process with its whole group, if it leads one; False if it may not be signalled by us.

    The kernel stops a group in one step, so that no member has a child meanwhile.
    """
    if pid == group:
        with suppress(ProcessLookupError, PermissionError):  # nobody is left in it, or none of ours
            os.killpg(group, signal.SIGSTOP)
    return _send(pid, signal.SIGSTOP)


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


def command_lines(pids: list[int], *, at_most: int) -> list[tuple[int, bytes]]:
    """Return who of these runs, and what: without zombies, and without a sandbox's own processes."""
    found: list[tuple[int, bytes]] = []
    for pid in pids:
        if len(found) == at_most:
            break
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


def _send(pid: int, number: int) -> bool:
    """Send a signal to whoever can take it; False if a process may not be signalled by us.

    The number of a process is not given to another before all others have been used, so a process that ended a
    moment ago is not mistaken for a stranger.
    """
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended
        return True
    except PermissionError:  # it has become another user's
        return False
    return True
