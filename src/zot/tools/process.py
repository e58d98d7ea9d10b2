"""A command and what it starts: spawned in its own session, heard while it runs, ended as a group."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

#: How long we listen for the last words of what a command left behind, once it has exited itself.
DRAIN_S = 0.1
#: How long a killed process may take to be gone. Only one that hangs inside the kernel takes any time at all.
REAP_S = 1.0
#: How often we look whether a group has ended: soon at first, then less and less often.
_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.05
_CHUNK_BYTES = 64 * 1024


def spawn(argv: Sequence[str | bytes], *, cwd: str, env: Mapping[str, str]) -> Child:
    """Start a program with exactly ``env``, no input and none of our descriptors. Raise OSError.

    It leads a new session and process group. Whoever spawns a child ends and closes it, or releases it.
    """
    import subprocess

    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    os.set_blocking(ours, False)
    return Child(process, ours)


class Child:
    """A running command. Its output is one pipe; its exit is noticed apart from that pipe's end.

    A background job may hold the pipe for hours after the command itself has exited, so neither event waits
    for the other.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self.pid = process.pid
        self._output: int | None = output
        self._exit = _exit_of(process)
        self._silent_at: float | None = None

    async def read(self) -> bytes:
        """Return what the command or its children said next; b"" when it has exited and been heard out.

        Cancelling loses nothing: the next call goes on where this one was.
        """
        while self._output is not None and self._may_speak():
            # A command that talks faster than we listen would otherwise keep everyone else from running.
            await asyncio.sleep(0)
            try:
                data = os.read(self._output, _CHUNK_BYTES)
            except BlockingIOError:
                await self._news(self._output)
                continue
            if data:
                return data
            self.close()
        await asyncio.wait({self._exit})
        return b""

    def status(self) -> int:
        """Return the exit status, negative for the signal that ended the command; only after it has exited."""
        return self._exit.result()

    async def end(self, *, grace_s: float) -> None:
        """Ask the whole group to end, and kill what is left after ``grace_s``.

        Afterwards nothing of the group runs and the command has been reaped. When cancelled, kills at once.
        """
        try:
            if _signal_group(self.pid, signal.SIGTERM):
                await self._group_ended(grace_s)
        finally:
            _signal_group(self.pid, signal.SIGKILL)
            await asyncio.wait({self._exit}, timeout=REAP_S)

    def release(self) -> None:
        """Let go of the command. What it left running goes on, and what that says is thrown away.

        Closing the pipe instead would kill a background server with its next line of log.
        """
        if self._output is not None:
            asyncio.get_running_loop().add_reader(self._output, self._discard, self._output)

    def close(self) -> None:
        """Stop listening. Safe any number of times."""
        if self._output is not None:
            os.close(self._output)
            self._output = None

    def _may_speak(self) -> bool:
        if not self._exit.done():
            return True
        now = asyncio.get_running_loop().time()
        if self._silent_at is None:
            self._silent_at = now + DRAIN_S
        return now < self._silent_at

    async def _news(self, output: int) -> None:
        """Wait until there is output, or the command exits, or the time to listen is over."""
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(output, _resolve, readable)
        try:
            if self._silent_at is None:
                events: set[asyncio.Future[Any]] = {readable, self._exit}
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.wait({readable}, timeout=self._silent_at - loop.time())
        finally:
            loop.remove_reader(output)

    async def _group_ended(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        await asyncio.wait({self._exit}, timeout=within_s)
        pause_s = _FIRST_LOOK_S
        while _runs(self.pid) and loop.time() < deadline:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)

    def _discard(self, output: int) -> None:
        if not os.read(output, _CHUNK_BYTES):
            asyncio.get_running_loop().remove_reader(output)
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
    if not _signal_group(group, 0):
        return False
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no such thing on this system
        return True
    return any(_is_alive_in(group, pid) for pid in pids)


def _is_alive_in(group: int, pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name comes second, in brackets, and may itself contain anything.
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
    except OSError:  # it ended while we looked
        return False
    return int(its_group) == group and state not in (b"Z", b"X")


def _exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Return a future for the exit status. The process is reaped by the time it is known."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # Not Linux, or a sandbox that forbids it. The default executor would run out of threads.
        threading.Thread(target=_wait_for, args=(process, loop, exited), daemon=True).start()
    else:
        loop.add_reader(pidfd, _reap, process, pidfd, exited)
    return exited


def _wait_for(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, exited: asyncio.Future[int]) -> None:
    status = process.wait()
    loop.call_soon_threadsafe(exited.set_result, status)


def _reap(process: subprocess.Popen[bytes], pidfd: int, exited: asyncio.Future[int]) -> None:
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    exited.set_result(process.wait())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
