"""Daemon processes that a test starts, kills and replaces, and clients that connect to them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from daemons import PATIENCE_S, Caller
from forked import Forked, ForkServer
from harness import environment, read_some


class Daemons:
    """Daemons of one home, one after the other, or one replacing another."""

    def __init__(self, directory: Path, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self.cwd = directory / "project"
        self.home = directory / "home"
        self.cwd.mkdir()
        self.home.mkdir()
        self.path = str(self.home / "data" / "daemon.sock")
        self.env = environment({"HOME": str(directory), "ZOT_HOME": str(self.home)})
        self._started: list[Forked] = []
        self._callers: list[Caller] = []

    def start(self, *flags: str) -> Forked:
        """Start a daemon; return once it listens."""
        daemon = self.fork("daemon", "--provider", "lab", *flags)
        self.hears(daemon, "listens at")
        return daemon

    def fork(self, *argv: str) -> Forked:
        """Start a command."""
        self._started.append(self._fork_server.fork(argv, self.cwd, self.env))
        return self._started[-1]

    def hears(self, daemon: Forked, words: str) -> str:
        """Return a daemon's standard error once it contains these words."""
        said, deadline = b"", time.monotonic() + PATIENCE_S
        while words.encode() not in said:
            more = read_some(daemon.stderr.fileno(), deadline)
            assert more, said
            said += more
        return said.decode()

    async def caller(self) -> Caller:
        """Return an initialized client."""
        caller = Caller(*await asyncio.open_unix_connection(self.path, limit=1 << 26))
        self._callers.append(caller)
        await caller.get("initialize", protocolVersion=1)
        return caller

    async def end(self, daemon: Forked, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        daemon.send_signal(number)
        return await self.ended(daemon)

    async def ended(self, daemon: Forked) -> int:
        """Wait for its end; return the exit code."""
        return await asyncio.to_thread(daemon.wait, PATIENCE_S)

    def log(self) -> str:
        """Return the daemons' log."""
        return (self.home / "data" / "logs" / "daemon.log").read_text()

    async def close(self) -> None:
        for caller in self._callers:
            await caller.close()
        for daemon in self._started:
            await self.end(daemon, signal.SIGKILL)
            for stream in (daemon.stdin, daemon.stdout, daemon.stderr):
                stream.close()


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


def is_there(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
