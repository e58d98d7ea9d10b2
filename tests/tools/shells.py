"""The bash tool as tests use it, and a search for the processes it started."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from zot.errors import ToolFailed
from zot.tools.base import CallReporter, Output, ToolContext
from zot.tools.bash import Bash
from zot.tools.process import Processes
from zot.tools.sandbox import Sandbox

from .calls import PATIENCE_S, answer, refusal

#: In the environment of everything a shell starts: sessions and parents can be changed, this cannot.
MARK = "ZOT_TEST_CALL"


class ProgressTo(CallReporter):
    """Passes the text that a running call shows to a function."""

    def __init__(self, show: Callable[[str], Awaitable[None]]) -> None:
        self._show = show

    async def progress(self, text: str) -> None:
        await self._show(text)


class Shell:
    """Runs commands for one test."""

    def __init__(self, processes: Processes, context: ToolContext, mark: str) -> None:
        self.processes = processes
        self.context = msgspec.structs.replace(context, env={**context.env, MARK: mark})
        self._mark = mark

    def tool(self, **options: Any) -> Bash:
        """Return the tool. With ``lock`` it has a sandbox, which passes the mark of its processes, too."""
        if not options.pop("lock", False):
            return Bash(self.processes, **options)
        spills = options.get("spills")
        sandbox = Sandbox(
            hidden=options.pop("hidden", ()), shown=() if spills is None else (spills.directory,), variables=(MARK,)
        )
        return Bash(self.processes, sandbox=sandbox, **options)

    async def run(self, command: str, tool: Bash | None = None, **args: Any) -> str:
        """The text of a command that works."""
        return untimed(await answer(tool or self.tool(), {"command": command, **args}, self.context))

    async def fail(self, command: str, tool: Bash | None = None, **args: Any) -> str:
        """The text of a command that fails."""
        return untimed(await refusal(tool or self.tool(), {"command": command, **args}, self.context))

    async def start(
        self, command: str, tool: Bash | None = None, *, owners: tuple[str, ...] = ()
    ) -> tuple[str, asyncio.Task[Output]]:
        """Start a command and return its first line of output, if any, and the call."""
        first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def progress(text: str) -> None:
            if not first.done():
                first.set_result(text.split("\n", 1)[0])

        context = msgspec.structs.replace(self.context, reporter=ProgressTo(progress), owners=owners)
        call = asyncio.create_task((tool or self.tool()).run({"command": command}, context))
        events: set[asyncio.Future[Any]] = {first, call}
        await asyncio.wait(events, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        return first.result() if first.done() else "", call

    def heard_by(self, progress: Callable[[str], Awaitable[None]]) -> Shell:
        return Shell(self.processes, msgspec.structs.replace(self.context, reporter=ProgressTo(progress)), self._mark)

    def left(self) -> list[str]:
        return left(self._mark)


def untimed(text: str) -> str:
    return re.sub(r"Took [0-9.]+s$", "Took T", text)


async def outcome(call: asyncio.Task[Output]) -> str:
    """Return the outcome of a call."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            await call
        except asyncio.CancelledError:
            return "cancelled"
        except ToolFailed:
            return "failed"
    return "done"


def left(mark: str) -> list[str]:
    """The command lines of all processes that have ``mark`` in their environment; zombies have none."""
    marked = [pid for pid in processes() if f"{MARK}={mark}".encode() in _read(pid, "environ")]
    lines = [_read(pid, "cmdline").replace(b"\0", b" ").decode() for pid in marked]
    return [line for line in lines if line]


def is_alive(pid: int) -> bool:
    return _state(pid) not in ("", "Z", "X")


def children(pid: int) -> dict[int, str]:
    """The children of a process and their states."""
    return {other: _state(other) for other in processes() if _stat(other)[1:2] == [str(pid)]}


def processes() -> list[int]:
    """All processes there are."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _stat(pid: int) -> list[str]:
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended while we looked, or is not ours
        return b""
