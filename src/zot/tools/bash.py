"""The bash tool: one shell command with streamed output. No process outlives an abort or a timeout."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from zot.errors import ToolFailed, plain_reason
from zot.messages import TextBlock
from zot.tools.base import Output, ToolContext, decode_args, to_utf8
from zot.tools.command_output import OutputCollector, Spills
from zot.tools.process import Child, Groups, Processes, Program
from zot.tools.specs import BASH_MIN_TIMEOUT_S, BASH_TIMEOUT_S, bash

if TYPE_CHECKING:
    from zot.tools.sandbox import Sandbox

TIMEOUT_GRACE_S = 2.0
ABORT_GRACE_S = 0.5
_MAX_SHOWN_JOBS = 50
_MAX_COUNT_DIGITS = 6
#: Set for every command: `git status` and `git diff` then report without rewriting the index, and leave no lock in the
#: way. The second is a setting, which only its own variables pass to every git.
_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0"}
_GIT_SETTING = ("diff.autoRefreshIndex", "false")


class BashArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    timeout: Annotated[float, msgspec.Meta(ge=BASH_MIN_TIMEOUT_S)] | None = None


class Bash:
    """Runs shell commands for the model.

    The caller closes ``processes`` and ``spills``. Output too long for the model goes to ``spills``. ``timeout_s`` is
    the default timeout; a command that exceeds it gets SIGTERM and ``grace_s`` before SIGKILL. With a ``sandbox``,
    every command runs in it or not at all.
    """

    read_only = False

    def __init__(
        self,
        processes: Processes | None = None,
        *,
        spills: Spills | None = None,
        sandbox: Sandbox | None = None,
        timeout_s: float = BASH_TIMEOUT_S,
        grace_s: float = TIMEOUT_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = processes or Groups()
        self._spills = spills
        self._sandbox = sandbox
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._clock = clock
        self.spec = bash(lock=sandbox is not None, lock_net=sandbox is not None and sandbox.net, timeout_s=timeout_s)

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Run the command until it exits, even if background jobs still hold its output then.

        Raise ToolFailed with the same kind of text if it fails or times out. On timeout and when cancelled, all its
        processes have ended before this returns.
        """
        wanted = decode_args(args, BashArgs)
        timeout_s = self._timeout_s if wanted.timeout is None else wanted.timeout
        started = self._clock()
        try:
            child = await self._start(_shell(wanted.command), context)
        except BaseException:
            await self.sweep()  # A cancelled start may come after the command's first steps.
            raise
        output = OutputCollector(child, context.reporter, self._spills.new() if self._spills is not None else None)

        def report(ending: str) -> str:
            return f"$ {wanted.command}\n{output.text()}\n{ending}  Took {_duration(self._clock() - started)}"

        try:
            timed_out = await _run_to_end(child, output, timeout_s=timeout_s, grace_s=self._grace_s)
            jobs = await child.background()
        except BaseException as reason:
            # Also on cancellation: leave no process.
            try:
                await child.end(grace_s=ABORT_GRACE_S)
                await self.sweep()
            finally:
                child.close()
                if isinstance(reason, asyncio.CancelledError):
                    context.reporter.last_words(report("[exit -1] (aborted)"))
            raise
        finally:
            output.close()
        # Only without a timeout there may be background jobs.
        child.close() if timed_out else child.release()
        good, ending = (False, f"[exit -1] (timed out after {timeout_s:g} s)") if timed_out else _ending(child)
        text = report(_still_running(jobs) + await self.sweep(is_over=not jobs) + ending)
        if not good:
            raise ToolFailed(text)
        return (TextBlock(text),)

    async def sweep(self, *, is_over: bool = True) -> str:
        """Move away protected files that locked commands have created; return a notice, "" if there are none.

        ``is_over``: no job of the command runs any more.
        """
        moved = [] if self._sandbox is None else await self._sandbox.sweep(is_over=is_over)
        return f"[moved away, because --lock protects it: {', '.join(moved)}]\n" if moved else ""

    async def _start(self, argv: Sequence[str | bytes], context: ToolContext) -> Child:
        command = Program(argv, context.cwd, {**context.env, **_ENVIRONMENT}, context.owners)
        try:
            if self._sandbox is not None:
                command = await self._sandbox.confine(command, self._processes)
            # After the sandbox: it lets none of the user's settings in, which may contain secrets.
            command = command._replace(env={**command.env, **_git_setting(command.env)})
            return await self._processes.spawn(command)
        except (OSError, ValueError) as exc:
            raise ToolFailed(f"cannot start the command: {plain_reason(exc)}") from exc


def _git_setting(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that add our setting of git to those that ``env`` has."""
    given = env.get("GIT_CONFIG_COUNT", "")
    count = int(given) if given.isascii() and given.isdigit() and len(given) < _MAX_COUNT_DIGITS else 0
    key, value = _GIT_SETTING
    return {"GIT_CONFIG_COUNT": str(count + 1), f"GIT_CONFIG_KEY_{count}": key, f"GIT_CONFIG_VALUE_{count}": value}


def _shell(command: str) -> list[str | bytes]:
    if not command.strip():
        raise ToolFailed("command must not be empty")
    if "\0" in command:
        raise ToolFailed("command must not contain a NUL character")
    return ["/bin/sh", "-c", to_utf8(command, "command")]


async def _run_to_end(child: Child, output: OutputCollector, *, timeout_s: float, grace_s: float) -> bool:
    """Collect output until the command exits; end it after ``timeout_s`` and return True.

    Also ends a command that lost its keeper: its processes must have ended before the result.
    """
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            await output.listen()
    except TimeoutError:
        if not deadline.expired():
            raise
        await child.end(grace_s=grace_s)
        await output.listen()
        return True
    if child.is_lost:
        await child.end(grace_s=ABORT_GRACE_S)
    return False


def _still_running(jobs: Sequence[tuple[int, str]]) -> str:
    more = "[still running: others, too]\n" if len(jobs) > _MAX_SHOWN_JOBS else ""
    return "".join(f"[still running: {pid} {command}]\n" for pid, command in jobs[:_MAX_SHOWN_JOBS]) + more


def _ending(child: Child) -> tuple[bool, str]:
    """Return whether a command succeeded, and how it ended."""
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
