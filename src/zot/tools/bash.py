"""The bash tool: one shell command, heard while it runs, and never left running by an abort or a timeout."""

from __future__ import annotations

import asyncio
import codecs
import signal
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from zot.errors import ToolFailed
from zot.messages import TextBlock, ToolSpec
from zot.tools.arguments import decode_args, to_utf8
from zot.tools.base import Output, ToolContext
from zot.tools.excerpt import MAX_BYTES, MAX_LINES, Excerpt
from zot.tools.process import Child, spawn

DEFAULT_TIMEOUT_S = 120.0
TIMEOUT_GRACE_S = 2.0
ABORT_GRACE_S = 0.5
MIN_TIMEOUT_S = 0.1


class BashArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    timeout: Annotated[float, msgspec.Meta(ge=MIN_TIMEOUT_S)] | None = None


class Bash:
    """Runs shell commands for the model.

    A call that names no timeout gets ``timeout_s``; what is told to end by a timeout has ``grace_s`` to do so.
    """

    read_only = False

    def __init__(
        self,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        grace_s: float = TIMEOUT_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._clock = clock
        self.spec = ToolSpec(
            name="bash",
            description=(
                "Run a command with /bin/sh in the cwd and return its output, stdout and stderr together. "
                f"Of long output you see the beginning and the end, {MAX_LINES} lines or {MAX_BYTES // 1024} KiB. "
                "There is no input: a command that asks for some reads end of file. "
                "Use & for what shall go on in the background."
            ),
            schema={
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "The shell command"},
                    "timeout": {
                        "type": "number",
                        "minimum": MIN_TIMEOUT_S,
                        "description": f"Seconds after which the command is killed, {timeout_s:g} by default",
                    },
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        )

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Run the command until it exits, whoever still holds its output then.

        Raise ToolFailed with the same text if it fails or takes too long. On timeout and when cancelled, its
        whole process group has ended before this returns.
        """
        wanted = decode_args(args, BashArgs)
        timeout_s = self._timeout_s if wanted.timeout is None else wanted.timeout
        started = self._clock()
        child = _start(wanted.command, context)
        heard = _Heard(child, context)
        try:
            timed_out = await _run_to_end(child, heard, timeout_s=timeout_s, grace_s=self._grace_s)
        except BaseException:
            # Cancellation passes through here: what it interrupts leaves nothing running.
            try:
                await child.end(grace_s=ABORT_GRACE_S)
            finally:
                child.close()
            raise
        ending = f"[exit -1] (timed out after {timeout_s:g} s)" if timed_out else _ending(child.status())
        took = _duration(self._clock() - started)
        text = f"$ {wanted.command}\n{heard.text()}\n{ending}  Took {took}"
        if timed_out or child.status() != 0:
            raise ToolFailed(text)
        return (TextBlock(text),)


class _Heard:
    """What a command has said: passed on as it comes, kept within the budget for the result."""

    def __init__(self, child: Child, context: ToolContext) -> None:
        self._child = child
        self._progress = context.progress
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._excerpt = Excerpt()

    async def listen(self) -> None:
        """Return when the command has exited."""
        while data := await self._child.read():
            self._excerpt.feed(data)
            await self._show(self._decoder.decode(data))
        await self._show(self._decoder.decode(b"", final=True))

    def text(self) -> str:
        """Return the output as a paragraph of its own; nothing if there was none."""
        output = self._excerpt.text()
        if not output:
            return ""
        return f"\n{output}" if output.endswith("\n") else f"\n{output}\n"

    async def _show(self, text: str) -> None:
        if text:
            await self._progress(text)


def _start(command: str, context: ToolContext) -> Child:
    if not command.strip():
        raise ToolFailed("command must not be empty")
    if "\0" in command:
        raise ToolFailed("command must not contain a NUL character")
    try:
        return spawn(["/bin/sh", "-c", to_utf8(command, "command")], cwd=context.cwd, env=context.env)
    except OSError as exc:
        raise ToolFailed(f"cannot start the command: {exc}") from exc


async def _run_to_end(child: Child, heard: _Heard, *, timeout_s: float, grace_s: float) -> bool:
    """Listen until the command exits by itself, or end it after ``timeout_s`` and return True."""
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            await heard.listen()
    except TimeoutError:
        if not deadline.expired():
            raise
        await child.end(grace_s=grace_s)
        await heard.listen()
        child.close()
        return True
    child.release()
    return False


def _ending(status: int) -> str:
    if status >= 0:
        return f"[exit {status}]"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # real-time signals have numbers only
        name = f"signal {-status}"
    return f"[exit {status}] (killed by {name})"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60}m"
