"""Process trees as shown by /proc, and how to kill them completely.

Only `command_lines` reads the memory of a process: such a read may block for as long as the process likes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

#: Limit of a shown command line.
_MAX_SHOWN_BYTES = 200
_SANDBOX = b"bwrap\n"
#: Limit of processes found by one look. A faster fork loop needs another call.
_MAX_FOUND = 50_000
#: Limit of looks before the kill: processes still unstopped then are found by the next call.
_MAX_LOOKS = 50
_BETWEEN_LOOKS_S = 0.0005
_AT_REST = b"TtZX"


class ProcessStatus:
    """Fields of /proc/PID/stat: the state as a letter, group, session and number of threads."""

    def __init__(self, text: bytes) -> None:
        # The name comes second, in brackets, and may itself contain anything.
        fields = text.rpartition(b")")[2].split()
        self.state = fields[0]
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.threads = int(fields[17])

    @property
    def is_at_rest(self) -> bool:
        """True if it has stopped or ended, and so cannot fork."""
        return self.state in _AT_REST


def status(pid: int) -> ProcessStatus | None:
    """Return the status of a process; None if it has ended and been reaped."""
    text = _read(f"/proc/{pid}/stat")
    return ProcessStatus(text) if text else None


def children(pid: int, *, threads: int = 0) -> list[int]:
    """Return the children of a process; [] if it has ended. May miss one that starts or ends in the meantime."""
    if threads == 1:
        return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it has just ended
        pass
    return found


def below(roots: list[int]) -> Iterator[tuple[int, ProcessStatus]]:
    """Yield these processes and their descendants, parents first. Reads children only after yielding their parent."""
    found: set[int] = set()
    unseen = list(roots)
    for pid in unseen:  # grows during the walk
        seen = None if pid in found else status(pid)
        if seen is not None:
            found.add(pid)
            yield pid, seen
            unseen += children(pid, threads=seen.threads)
        if len(found) >= _MAX_FOUND:
            break


def end(look: Callable[[], Iterable[tuple[int, ProcessStatus]]]) -> list[int]:
    """Kill all processes that ``look`` finds, without letting them fork meanwhile. Return their pids.

    Killing one after the other would lose against a fork loop, which replaces processes faster than they are found.
    So all are stopped first. Only a fork begun before the stop may escape: repeat until none is found.
    """
    found = _stop(look)
    for pid in found:
        _send(pid, signal.SIGKILL)
    return found


def _stop(look: Callable[[], Iterable[tuple[int, ProcessStatus]]]) -> list[int]:
    """Stop all processes that ``look`` finds, until two looks find the same ones, all at rest."""
    before: set[int] = set()
    not_ours: set[int] = set()
    was_quiet = False
    for _ in range(_MAX_LOOKS):
        found: set[int] = set()
        is_quiet = True
        for pid, seen in look():
            found.add(pid)
            if not (seen.is_at_rest and pid in before) and pid not in not_ours:
                # At once: each stopped process of a crowd leaves more time to find the others.
                if not _halt(pid, seen.group):
                    not_ours.add(pid)
                # One that waits inside the kernel stops before it returns to user space.
                elif not seen.is_at_rest and seen.state != b"D":
                    is_quiet = False
        # A parent may have ended between two looks, and its child may have a new one: so two quiet looks are needed.
        if is_quiet and was_quiet and found == before:
            break
        before, was_quiet = found, is_quiet
        time.sleep(_BETWEEN_LOOKS_S)
    return list(before)


def _halt(pid: int, group: int) -> bool:
    """Stop a process, with its whole group if it leads one; False without permission to signal it.

    The kernel stops a group in one step, so that no member forks meanwhile.
    """
    if pid == group:
        with suppress(ProcessLookupError, PermissionError):  # no process left in the group, or none of this user
            os.killpg(group, signal.SIGSTOP)
    return _send(pid, signal.SIGSTOP)


def ask_to_end(pids: list[int]) -> None:
    """Send SIGTERM, then SIGCONT for stopped processes.

    Skips a sandbox's own processes: they end with the confined ones, and would not wait for them.
    """
    for pid in pids:
        if _read(f"/proc/{pid}/comm") != _SANDBOX:
            _send(pid, signal.SIGTERM)
            wake(pid)


def wake(pid: int) -> None:
    """Resume a stopped process."""
    _send(pid, signal.SIGCONT)


def kill(pids: list[int]) -> None:
    """Send SIGKILL."""
    for pid in pids:
        _send(pid, signal.SIGKILL)


def command_lines(pids: list[int], *, at_most: int) -> list[tuple[int, bytes]]:
    """Return the running processes among these with their command lines, without a sandbox's own processes."""
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
    except OSError:  # it has just ended
        return b""
    finally:
        os.close(fd)


def _send(pid: int, number: int) -> bool:
    """Send a signal; False without permission. True for a process that has ended.

    Kernels reuse pids only after all others, so the pid of a process that ended a moment ago hits no other process.
    """
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended
        return True
    except PermissionError:  # it has become another user's
        return False
    return True
