"""The bash tool: one shell command, heard while it runs, and never left running by an abort or a timeout."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import Output, ToolContext, decode_args, to_utf8
from zot.tools.command_output import Heard, Spills
from zot.tools.process import Child, Groups, Processes
from zot.tools.sandbox import Sandbox
from zot.tools.specs import BASH_MIN_TIMEOUT_S, BASH_TIMEOUT_S, bash

TIMEOUT_GRACE_S = 2.0
ABORT_GRACE_S = 0.5
_MAX_SHOWN_JOBS = 50


class BashArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    timeout: Annotated[float, msgspec.Meta(ge=BASH_MIN_TIMEOUT_S)] | None = None


class Bash:
    """Runs shell commands for the model.

    Whoever gives ``processes`` and ``spills`` closes them. Output that is too long for the model is kept in ``spills``.
    A call that names no timeout gets ``timeout_s``; what is told to end by a timeout has ``grace_s`` to do so. With
    ``lock``, every command runs in a sandbox, or not at all: it reaches its directory and the programs of the system,
    and ``hidden`` directories are empty; ``shown`` ones can be read nevertheless.
    """

    read_only = False

    def __init__(
        self,
        processes: Processes | None = None,
        *,
        spills: Spills | None = None,
        lock: bool = False,
        hidden: Sequence[str] = (),
        shown: Sequence[str] = (),
        timeout_s: float = BASH_TIMEOUT_S,
        grace_s: float = TIMEOUT_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = processes or Groups()
        self._spills = spills
        shown = (*shown, *(() if spills is None else (spills.directory,)))
        self._sandbox = Sandbox(hidden=hidden, shown=shown) if lock else None
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._clock = clock
        self.spec = bash(lock=lock, timeout_s=timeout_s)

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Run the command until it exits, whoever still holds its output then.

        Raise ToolFailed with the same text if it fails or takes too long. On timeout and when cancelled, everything
        it started has ended before this returns.
        """
        wanted = decode_args(args, BashArgs)
        timeout_s = self._timeout_s if wanted.timeout is None else wanted.timeout
        started = self._clock()
        child = await self._start(_shell(wanted.command), context)
        heard = Heard(child, context.progress, self._spills.new() if self._spills is not None else None)

        def told(ending: str) -> str:
            return f"$ {wanted.command}\n{heard.text()}\n{ending}  Took {_duration(self._clock() - started)}"

        try:
            timed_out = await _run_to_end(child, heard, timeout_s=timeout_s, grace_s=self._grace_s)
            jobs = await child.background()
        except BaseException as reason:
            # Cancellation passes through here: what it interrupts leaves nothing running.
            try:
                await child.end(grace_s=ABORT_GRACE_S)
            finally:
                child.close()
                if isinstance(reason, asyncio.CancelledError):
                    context.last_words(told("[exit -1] (aborted)"))
            raise
        finally:
            heard.close()
        # After a timeout nothing is left to go on; otherwise something may be.
        child.close() if timed_out else child.release()
        good, ending = (False, f"[exit -1] (timed out after {timeout_s:g} s)") if timed_out else _ending(child)
        text = told(_still_running(jobs) + ending)
        if not good:
            raise ToolFailed(text)
        return (TextBlock(text),)

    async def _start(self, argv: Sequence[str | bytes], context: ToolContext) -> Child:
        try:
            if self._sandbox is not None:
                argv = await self._sandbox.confine(argv, self._processes, context)
            return await self._processes.spawn(argv, cwd=context.cwd, env=context.env, owners=context.owners)
        except (OSError, ValueError) as exc:
            raise ToolFailed(f"cannot start the command: {exc}") from exc


def _shell(command: str) -> list[str | bytes]:
    if not command.strip():
        raise ToolFailed("command must not be empty")
    if "\0" in command:
        raise ToolFailed("command must not contain a NUL character")
    return ["/bin/sh", "-c", to_utf8(command, "command")]


async def _run_to_end(child: Child, heard: Heard, *, timeout_s: float, grace_s: float) -> bool:
    """Listen until the command exits by itself, or end it after ``timeout_s`` and return True.

    What has lost its keeper is ended, too: it was to end, and the result is not to come before that.
    """
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            await heard.listen()
    except TimeoutError:
        if not deadline.expired():
            raise
        await child.end(grace_s=grace_s)
        await heard.listen()
        return True
    if child.is_lost:
        await child.end(grace_s=ABORT_GRACE_S)
    return False


def _still_running(jobs: Sequence[tuple[int, str]]) -> str:
    more = "[still running: others, too]\n" if len(jobs) > _MAX_SHOWN_JOBS else ""
    return "".join(f"[still running: {pid} {command}]\n" for pid, command in jobs[:_MAX_SHOWN_JOBS]) + more


def _ending(child: Child) -> tuple[bool, str]:
    """Tell if a command ended well, and how it ended."""
    try:
        status = child.status()
    except ChildProcessError as exc:
        return False, f"[exit -1] ({exc})"
    if status >= 0:
        return status == 0, f"[exit {status}]"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # real-time signals have numbers only
        name = f"signal {-status}"
    return False, f"[exit {status}] (killed by {name})"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60}m"
