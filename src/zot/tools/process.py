"""A command and what it starts: heard while it runs, listed when it stays, ended as a whole.

How that is done depends on the system: `open_processes` picks, and nobody else needs to know.
"""

from __future__ import annotations

import abc
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

#: How long we listen for the last words of what a command left behind, once it has exited itself.
DRAIN_S = 0.1
#: How long a killed process may take to be gone. Only one that hangs inside the kernel takes any time at all.
REAP_S = 1.0
#: What is told to end has this long when nobody said how long.
CLOSE_GRACE_S = 0.5
#: Why nobody knows how a command ended.
KILLED = "the process that kept it was killed"
_CHUNK_BYTES = 64 * 1024


class Streams(NamedTuple):
    """Descriptors for a program: what it reads, and where its complaints go. They stay their owner's to close."""

    input: int
    errors: int


class Processes(Protocol):
    """Starts commands and knows those that run. Belongs to one event loop."""

    async def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str,
        env: Mapping[str, str],
        owners: Sequence[str] = (),
        streams: Streams | None = None,
    ) -> Child:
        """Start a program with exactly ``env``, none of our descriptors but ``streams``. Raise OSError or ValueError.

        Without those it has no input, and its complaints are part of its output. It leads a new session and process
        group, and ends at the latest with the first of its ``owners``. When cancelled, leaves nothing running.
        """

    async def end_all(self, owner: str, *, grace_s: float) -> None:
        """End everything that was spawned for ``owner``. When cancelled, kills at once."""

    async def close(self) -> None:
        """End everything. Any number of times; afterwards nothing can be spawned."""

    def kill_all(self) -> None:
        """Kill everything at once. From any thread, also if the loop hangs.

        Does not wait for it. Afterwards nothing can be spawned; `close` may follow.
        """

    def kill(self, owner: str) -> None:
        """Kill everything that was spawned for ``owner``, as `kill_all` does; others can still be spawned."""

    def runs(self, owner: str | None = None) -> bool:
        """True while anything runs that was spawned, and not ended, for ``owner``, or at all."""


def open_processes(*, protected: bool = False) -> Processes:
    """Return what keeps processes best on this system: a `Guardian`, or `Groups` where there can be none.

    ``protected`` calls `protect_process` before the first command is started.
    """
    if _can_guard():
        from zot.tools.guardian import Guardian

        return Guardian(before_start=protect_process if protected else lambda: None)
    from zot.tools.groups import Groups

    return Groups()


def protect_process() -> None:
    """Keep the commands of this user out of our memory, environment and descriptors, as far as the system can.

    For a program of our own, before its first command; an embedding program decides for itself, since it then leaves no
    core dumps and cannot be debugged. Against commands of the super-user only a sandbox helps.
    """
    if sys.platform == "linux":
        from zot.tools.warden.kernel import hide_memory

        hide_memory()


def _can_guard() -> bool:
    """Tell if orphans can be adopted and trees walked here, and if there is an interpreter to do it."""
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    return sys.platform == "linux" and is_python and os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


class Child(abc.ABC):
    """A running command. Its output is one pipe; its exit is noticed apart from that pipe's end.

    A background job may hold the pipe for hours after the command itself has exited, so neither event waits
    for the other. Whoever spawns a child ends and closes it, or releases it.
    """

    #: The command's process, which leads a session and a group of the same number.
    pid: int

    def __init__(self, output: int, owners: Sequence[str]) -> None:
        self.owners = frozenset(owners)
        #: The exit status, or None if whoever would have known it was killed.
        self._exit: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._output: int | None = output
        self._silent_at: float | None = None
        os.set_blocking(output, False)

    async def read(self, *, until_exit: bool = True) -> bytes:
        """Return what the command or its children said next; b"" when it has exited and been heard out.

        With ``until_exit`` False b"" also when it has closed its output. Cancelling loses nothing: the next call goes
        on where this one was.
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
        if until_exit:
            await asyncio.wait({self._exit})
        return b""

    def arrived(self) -> int:
        """Return how many bytes of output wait to be read; 0 where the system does not say."""
        from fcntl import ioctl
        from termios import FIONREAD

        if self._output is None:
            return 0
        try:
            return int.from_bytes(ioctl(self._output, FIONREAD, bytes(4)), sys.byteorder)
        except OSError:
            return 0

    async def exited(self, *, within_s: float | None) -> bool:
        """Wait for the command to exit, at most ``within_s``. True if it has."""
        await asyncio.wait({self._exit}, timeout=within_s)
        return self._exit.done()

    def status(self) -> int:
        """Return the exit status, negative for the signal that ended the command; only after it has exited.

        Raise ChildProcessError if it cannot be known.
        """
        status = self._exit.result()
        if status is None:
            raise ChildProcessError(KILLED)
        return status

    @property
    def is_lost(self) -> bool:
        """True if whoever kept it was killed: nothing of it goes on, and nobody knows how it ended."""
        return self._exit.done() and self._exit.result() is None

    @abc.abstractmethod
    async def end(self, *, grace_s: float) -> None:
        """Ask the command and all it started to end, and kill what is left after ``grace_s``.

        Afterwards nothing of it runs, except what cannot be killed, and `read` does not wait for that. When
        cancelled, kills at once.
        """

    @abc.abstractmethod
    async def background(self) -> list[tuple[int, str]]:
        """Return what still runs of it and goes on, by pid and command line."""

    def _exited(self, status: int | None) -> None:
        """The command has exited; None if nobody will ever know how. What was said first counts."""
        if not self._exit.done():
            self._exit.set_result(status)

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of the command. What it left running goes on, and what that says is thrown away.

        Closing the pipe instead would kill a background server with its next line of log.
        """

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
        loop.add_reader(output, resolve, readable)
        try:
            if self._silent_at is None:
                events: set[asyncio.Future[Any]] = {readable, self._exit}
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.wait({readable}, timeout=self._silent_at - loop.time())
        finally:
            loop.remove_reader(output)


async def end_each(children: Sequence[Child], *, grace_s: float) -> None:
    """End several children at the same time."""
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child.end(grace_s=grace_s), name=f"zot end {child.pid}")
    for child in children:
        child.close()


def resolve(future: asyncio.Future[None]) -> None:
    """Mark a future as done, if it is not yet."""
    if not future.done():
        future.set_result(None)
