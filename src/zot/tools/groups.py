"""Commands kept as process groups: what every Unix can do.

A child that starts a session of its own gets away, and nothing ends what runs when we are killed ourselves. Where a
`Guardian` is possible, it does better.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from zot.tools.process import CLOSE_GRACE_S, REAP_S, Child, Streams, end_each

if TYPE_CHECKING:
    import subprocess

#: How often we look whether a group has ended: soon at first, then less and less often.
_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.05
_DISCARD_BYTES = 64 * 1024


class Groups:
    """Starts each command as the leader of a process group, and ends that group."""

    def __init__(self) -> None:
        self._children: set[GroupChild] = set()
        self._closed = False

    async def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str,
        env: Mapping[str, str],
        owners: Sequence[str] = (),
        streams: Streams | None = None,
    ) -> Child:
        """See `Processes`."""
        if self._closed:
            raise ChildProcessError("nothing can be started any more: this has been closed")
        self._children = {child for child in self._children if child.runs()}
        ours, theirs = os.pipe()
        try:
            process = _popen(argv, cwd, env, theirs, streams)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        child = GroupChild(process, ours, owners)
        self._children.add(child)
        return child

    async def end_all(self, owner: str, *, grace_s: float) -> None:
        """See `Processes`."""
        await end_each([child for child in self._children if owner in child.owners], grace_s=grace_s)

    async def close(self) -> None:
        """See `Processes`."""
        self._closed = True
        await end_each(list(self._children), grace_s=CLOSE_GRACE_S)

    def kill_all(self) -> None:
        """See `Processes`."""
        self._closed = True
        for child in list(self._children):
            _signal_group(child.pid, signal.SIGKILL)

    def kill(self, owner: str) -> None:
        """See `Processes`."""
        for child in list(self._children):
            if owner in child.owners:
                _signal_group(child.pid, signal.SIGKILL)

    def runs(self, owner: str | None = None) -> bool:
        """See `Processes`."""
        return any(child.runs() for child in self._children if owner is None or owner in child.owners)


def _popen(
    argv: Sequence[str | bytes], cwd: str, env: Mapping[str, str], output: int, streams: Streams | None
) -> subprocess.Popen[bytes]:
    import subprocess

    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL if streams is None else streams.input,
        stdout=output,
        stderr=output if streams is None else streams.errors,
        start_new_session=True,
    )


class GroupChild(Child):
    """A command that is kept as a process group."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, owners: Sequence[str]) -> None:
        super().__init__(output, owners)
        self.pid = process.pid
        _watch_exit(process, self._exited)

    def runs(self) -> bool:
        """Tell if anything of the group still runs."""
        return not self._exit.done() or _runs(self.pid)

    async def end(self, *, grace_s: float) -> None:
        """See `Child`."""
        try:
            if _signal_group(self.pid, signal.SIGTERM):
                _signal_group(self.pid, signal.SIGCONT)
                await self._ended(grace_s)
        finally:
            _signal_group(self.pid, signal.SIGKILL)
            await self._ended(REAP_S)
            self._exited(None)

    async def background(self) -> list[tuple[int, str]]:
        """See `Child`. Without /proc only the group can be named."""
        if not _runs(self.pid):
            return []
        return [(pid, _command_line(pid)) for pid in _members(self.pid)] or [(-self.pid, "a process group")]

    def release(self) -> None:
        """See `Child`."""
        if self._output is not None:
            asyncio.get_running_loop().add_reader(self._output, self._discard, self._output)

    def close(self) -> None:
        """See `Child`."""
        if self._output is not None:
            asyncio.get_running_loop().remove_reader(self._output)
        super().close()

    async def _ended(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        await asyncio.wait({self._exit}, timeout=within_s)
        pause_s = _FIRST_LOOK_S
        while _runs(self.pid) and loop.time() < deadline:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)

    def _discard(self, output: int) -> None:
        if not os.read(output, _DISCARD_BYTES):
            self.close()


def _signal_group(pid: int, number: int) -> bool:
    """Send a signal to a process group; False if nobody there can take it.

    The number of a group that has ended is not given to another before all others have been used, so a look at
    a group that ended a moment ago does not hit a stranger.
    """
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _runs(group: int) -> bool:
    """Tell if any process of a group still runs.

    One that has ended but was not yet reaped by its new parent still takes signals, and nobody knows how long
    that parent sleeps; only its state tells it from a living one.
    """
    return _signal_group(group, 0) and (not os.path.exists("/proc/self/stat") or bool(_members(group)))


def _members(group: int) -> list[int]:
    """Return the living processes of a group, as far as this system shows them."""
    return [pid for pid, fields in _processes() if int(fields[2]) == group and fields[0] not in (b"Z", b"X")]


def _processes() -> list[tuple[int, list[bytes]]]:
    """Return every process with its state, parent, group, session and so on; none where there is no /proc."""
    found = []
    for name in os.listdir("/proc") if os.path.exists("/proc/self/stat") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name comes second, in brackets, and may itself contain anything.
                    found.append((int(name), file.read().rpartition(b")")[2].split()))
            except OSError:  # it ended while we looked
                pass
    return found


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # it ended while we looked
        return ""


def _watch_exit(process: subprocess.Popen[bytes], tell: Callable[[int], None]) -> None:
    """Call ``tell`` with the exit status. The process is reaped by the time it is known."""
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # Not Linux, or a sandbox that forbids it. The default executor would run out of threads.
        threading.Thread(target=_wait_for, args=(process, loop, tell), daemon=True).start()
    else:
        loop.add_reader(pidfd, _reap, process, pidfd, tell)


def _wait_for(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, tell: Callable[[int], None]) -> None:
    status = process.wait()
    loop.call_soon_threadsafe(tell, status)


def _reap(process: subprocess.Popen[bytes], pidfd: int, tell: Callable[[int], None]) -> None:
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    tell(process.wait())
