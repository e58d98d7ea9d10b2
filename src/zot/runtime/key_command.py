"""API keys printed by a command, such as `pass show anthropic`, run when a model is first called."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack

import msgspec

from zot.config.credentials import checked
from zot.errors import AuthFailed, ConfigError, plain_reason
from zot.tools.process import GroupChild

DEADLINE_S = 30.0
_MAX_KEY_BYTES = 16 * 1024
#: Keep much more of standard error than is shown: a key that is cut in half could not be masked.
_MAX_ERROR_BYTES = 32 * 1024
_MAX_SHOWN = 500
_READ_BYTES = 64 * 1024

#: Runs a command line and kills its process group when our end of its standard input closes, even by our own death.
#: Processes in a session of their own, such as a passphrase agent, survive.
_GUARDED_SHELL = """
exec 3<&0 </dev/null
(read -r _ <&3; kill -9 -$$) >/dev/null 2>&1 &
exec 3<&-
eval "$1"
"""

#: Printed keys of this process: with several sessions, the user enters a passphrase once.
_printed: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}


class KeyCommand:
    """A command that prints the key of ``provider``. Its environment is ``env``, its input is empty."""

    def __init__(self, provider: str, command: str, env: Mapping[str, str], *, deadline_s: float = DEADLINE_S) -> None:
        self._provider = provider
        self._command = command
        self._env = dict(env)
        self._deadline_s = deadline_s
        self._cache_key = (command, frozenset(self._env.items()))
        #: The running command, and its waiters.
        self._running: tuple[asyncio.Task[str], set[object]] | None = None

    async def read(self) -> str:
        """Return the cached key, else run the command. Raise AuthFailed if it prints none.

        Concurrent callers share one run. When it is late, or all callers were cancelled, its process group is killed.
        """
        key = _printed.get(self._cache_key)
        return await self._awaited() if key is None else key

    def renew(self, refused: str) -> bool:
        """Drop a refused key from the cache. True: the command may print a newer one."""
        if _printed.get(self._cache_key) == refused:
            del _printed[self._cache_key]
        return True

    async def _awaited(self) -> str:
        """Start the command unless it runs, and wait for its key."""
        if self._running is None:
            task = asyncio.get_running_loop().create_task(self._run(), name="zot key command")
            task.add_done_callback(self._ended)
            self._running = task, set()
        running, waiting = self._running
        waiting.add(me := object())
        try:
            await asyncio.wait({running})
        finally:
            waiting.discard(me)
            if not waiting and not running.done():
                # Later callers start it again; wait until this one is dead.
                self._running = None
                running.cancel()
                await asyncio.wait({running})
        if isinstance(problem := running.exception(), AuthFailed):
            raise AuthFailed(str(problem))  # Each caller gets its own exception, because callers add to it.
        return running.result()

    def _ended(self, task: asyncio.Task[str]) -> None:
        if self._running is not None and self._running[0] is task:
            self._running = None
        if not task.cancelled() and task.exception() is None:
            _printed[self._cache_key] = task.result()

    async def _run(self) -> str:
        try:
            ended = await _output(self._command, self._env, self._deadline_s)
        except (OSError, ValueError) as problem:
            raise self._failed(f"could not be started: {plain_reason(problem)}") from None
        key = ended.said.split("\n", 1)[0].strip()
        if ended.status is None:
            raise self._failed(f"did not end within {self._deadline_s:g} s{ended.complaint}")
        if len(ended.said) > _MAX_KEY_BYTES:
            raise self._failed("printed more than a key can be")
        if ended.status != 0:
            raise self._failed(f"{_how(ended.status)}{ended.complaint}")
        if not key:
            raise self._failed(f"printed nothing{ended.complaint}")
        try:
            return checked(self._provider, key)
        except ConfigError as problem:
            raise AuthFailed(f"{problem} (a command printed it)") from None

    def _failed(self, how: str) -> AuthFailed:
        return AuthFailed(f"the command that prints the key for {self._provider} {how}")


class _Ended(msgspec.Struct, frozen=True):
    """The result of a command: ``status`` is None if it was killed; ``complaint`` is standard error, as part of a
    message."""

    status: int | None
    said: str
    complaint: str


async def _output(command: str, env: Mapping[str, str], within_s: float) -> _Ended:
    """Run a command line until it ends, is late or prints too much. Raise OSError, ValueError."""
    process, life, output, errors = _start(command, env)
    child = GroupChild(process, output, ())
    complaint = _Complaint(errors)
    said, is_late = b"", False
    try:
        async with asyncio.timeout(within_s):
            while len(said) <= _MAX_KEY_BYTES and (data := await child.read()):
                said += data
    except TimeoutError:
        is_late = True
    finally:
        # Cancellation passes through here, too: no process survives.
        os.close(life)
        try:
            await child.end(grace_s=0)
        finally:
            child.close()
            complaint.close()
    text = said.decode(errors="replace")
    return _Ended(None if is_late else child.status(), text, _shown_complaint(complaint.text(), text))


def _start(command: str, env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int, int, int]:
    """Start the command; return it with our ends of the life line, of its output and of its errors."""
    with ExitStack() as theirs, ExitStack() as ours:
        its_life, life = _pipe(theirs, ours)
        output, its_output = _pipe(ours, theirs)
        errors, its_errors = _pipe(ours, theirs)
        process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDED_SHELL, "sh", command],
            env=env,
            stdin=its_life,
            stdout=its_output,
            stderr=its_errors,
            start_new_session=True,
        )
        ours.pop_all()
        return process, life, output, errors


def _pipe(readers: ExitStack, writers: ExitStack) -> tuple[int, int]:
    """Return a pipe whose ends ``readers`` and ``writers`` close."""
    inlet, outlet = os.pipe()
    readers.callback(os.close, inlet)
    writers.callback(os.close, outlet)
    return inlet, outlet


class _Complaint:
    """A reader of standard error that keeps its tail, so that the command never blocks on it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._tail = b""
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._on_readable)

    def text(self) -> str:
        return " ".join(self._tail.decode(errors="replace").split())

    def close(self) -> None:
        """Read the rest and close."""
        self._on_readable()
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _on_readable(self) -> None:
        if self._descriptor is None:
            return
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._tail = (self._tail + data)[-_MAX_ERROR_BYTES:]


def _how(status: int) -> str:
    return f"failed with exit status {status}" if status > 0 else f"was ended by signal {-status}"


def _shown_complaint(complaint: str, said: str) -> str:
    """Return standard error for a message, masking lines of standard output: one may be the key."""
    for line in filter(None, (line.strip() for line in said.split("\n"))):
        complaint = complaint.replace(line, "[key]") if len(line) >= 4 else complaint
    return f": {complaint[-_MAX_SHOWN:]}" if complaint else ""
