"""The bash tool: one shell command with streamed output. No process outlives an abort or a timeout."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import Output, ToolContext, decode_args, to_utf8
from zot.tools.command_output import OutputCollector, Spills
from zot.tools.process import Child, Groups, Processes
from zot.tools.specs import BASH_MIN_TIMEOUT_S, BASH_TIMEOUT_S, bash

if TYPE_CHECKING:
    from zot.config.private_paths import PrivatePath
    from zot.tools.sandbox import Sandbox

TIMEOUT_GRACE_S = 2.0
ABORT_GRACE_S = 0.5
_MAX_SHOWN_JOBS = 50
#: Set for every command: `git status` then reports without rewriting the index, and leaves no lock in the way.
_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0"}


class BashArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    timeout: Annotated[float, msgspec.Meta(ge=BASH_MIN_TIMEOUT_S)] | None = None


class Bash:
    """Runs shell commands for the model.

    The caller closes ``processes`` and ``spills``. Output too long for the model goes to ``spills``. ``timeout_s`` is
    the default timeout; a command that exceeds it gets SIGTERM and ``grace_s`` before SIGKILL. With ``lock``, every
    command runs in a sandbox or not at all: it sees its directory and the system's programs; ``hidden`` paths are
    empty, ``shown`` directories readable nevertheless, and ``protected`` paths stay as they are. It has no network
    without ``lock_net``, and no variables but those that every program needs and ``lock_env``.
    """

    read_only = False

    def __init__(
        self,
        processes: Processes | None = None,
        *,
        spills: Spills | None = None,
        lock: bool = False,
        hidden: Sequence[PrivatePath] = (),
        shown: Sequence[str] = (),
        protected: Sequence[str] = (),
        lock_net: bool = False,
        lock_env: Sequence[str] = (),
        timeout_s: float = BASH_TIMEOUT_S,
        grace_s: float = TIMEOUT_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = processes or Groups()
        self._spills = spills
        shown = (*shown, *(() if spills is None else (spills.directory,)))
        self._sandbox: Sandbox | None = None
        if lock:
            from zot.tools.sandbox import Sandbox  # Imported lazily: start-up budget.

            self._sandbox = Sandbox(hidden=hidden, shown=shown, protected=protected, net=lock_net, variables=lock_env)
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._clock = clock
        self.spec = bash(lock=lock, lock_net=lock_net, timeout_s=timeout_s)

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
        heard = OutputCollector(child, context.progress, self._spills.new() if self._spills is not None else None)

        def told(ending: str) -> str:
            return f"$ {wanted.command}\n{heard.text()}\n{ending}  Took {_duration(self._clock() - started)}"

        try:
            timed_out = await _run_to_end(child, heard, timeout_s=timeout_s, grace_s=self._grace_s)
            jobs = await child.background()
        except BaseException as reason:
            # Also on cancellation: leave no process.
            try:
                await child.end(grace_s=ABORT_GRACE_S)
                await self.sweep()
            finally:
                child.close()
                if isinstance(reason, asyncio.CancelledError):
                    context.last_words(told("[exit -1] (aborted)"))
            raise
        finally:
            heard.close()
        # Only without a timeout there may be background jobs.
        child.close() if timed_out else child.release()
        good, ending = (False, f"[exit -1] (timed out after {timeout_s:g} s)") if timed_out else _ending(child)
        text = told(_still_running(jobs) + await self.sweep(is_over=not jobs) + ending)
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
        context = msgspec.structs.replace(context, env={**context.env, **_ENVIRONMENT})
        try:
            if self._sandbox is not None:
                return await self._sandbox.spawn(argv, self._processes, context)
            return await self._processes.spawn(argv, cwd=context.cwd, env=context.env, owners=context.owners)
        except (OSError, ValueError) as exc:
            raise ToolFailed(f"cannot start the command: {exc}") from exc


def _shell(command: str) -> list[str | bytes]:
    if not command.strip():
        raise ToolFailed("command must not be empty")
    if "\0" in command:
        raise ToolFailed("command must not contain a NUL character")
    return ["/bin/sh", "-c", to_utf8(command, "command")]


async def _run_to_end(child: Child, heard: OutputCollector, *, timeout_s: float, grace_s: float) -> bool:
    """Collect output until the command exits; end it after ``timeout_s`` and return True.

    Also ends a command that lost its keeper: its processes must have ended before the result.
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
