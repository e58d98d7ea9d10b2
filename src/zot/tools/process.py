"""Processes of tools: started, streamed, and ended with all their descendants."""

from __future__ import annotations

import abc
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fcntl import ioctl
from termios import FIONREAD
from typing import Any, NamedTuple, Protocol

from zot.tools.guardian_process import tree
from zot.tools.guardian_process.kernel import raise_priority

#: Time to read remaining output from a command's descendants after the command itself has exited.
DRAIN_S = 0.1
#: Time for a killed process to disappear. Only one that hangs inside the kernel needs it.
REAP_S = 1.0
#: Default time to exit after SIGTERM.
CLOSE_GRACE_S = 0.5
#: Error of a command whose exit status is unknown.
KILLED = "the process that kept it was killed"
_CHUNK_BYTES = 64 * 1024
#: Interval of checks whether a group has ended, growing from the first to the second.
_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.05
_DISCARD_BYTES = 64 * 1024
_RESTING_S = 0.001


class Streams(NamedTuple):
    """Standard input and standard error of a program. The caller closes them."""

    input: int
    errors: int


class Program(NamedTuple):
    """Program to start, with its arguments, its directory and its whole environment.

    Without ``streams`` it has no input, and its standard error is part of its output. It ends at the latest with the
    first of its ``owners``. A sandbox gets its ``seccomp`` filter on the descriptor SECCOMP_FD.
    """

    argv: Sequence[str | bytes]
    cwd: str
    env: Mapping[str, str]
    owners: Sequence[str] = ()
    streams: Streams | None = None
    seccomp: bytes = b""


class Processes(Protocol):
    """Starts commands and tracks running ones. Belongs to one event loop."""

    async def spawn(self, command: Program) -> Child:
        """Start a program, which leads a new session and process group. Raise OSError or ValueError.

        It has no descriptors but its streams. When cancelled, leaves no process.
        """

    async def end_all(self, owner: str, *, grace_s: float) -> None:
        """End all processes of ``owner``. When cancelled, kills them at once."""

    async def close(self) -> None:
        """End all processes. Idempotent; afterwards `spawn` fails."""

    def kill_all(self) -> None:
        """Kill all processes at once, without waiting. Thread-safe, even if the event loop hangs.

        Afterwards `spawn` fails; `close` may follow.
        """

    def kill(self, owner: str) -> None:
        """Kill all processes of ``owner`` as `kill_all` does; others can still be spawned."""

    def runs(self, owner: str | None = None) -> bool:
        """True while any process of ``owner`` runs, or any at all without an owner."""


class Child(abc.ABC):
    """Running command. Its output is one pipe; its exit is detected independently of the pipe's end.

    A background job may hold the pipe open for hours after the command itself has exited, so neither event waits for
    the other. The caller of `spawn` either ends and closes a child, or releases it.
    """

    #: Process of the command, which leads a session and a group of the same id.
    pid: int

    def __init__(self, output: int, owners: Sequence[str]) -> None:
        self.owners = frozenset(owners)
        #: Exit status; None if the process that would report it was killed.
        self._exit: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._output: int | None = output
        self._drained_at: float | None = None
        os.set_blocking(output, False)

    async def read(self, *, until_exit: bool = True) -> bytes:
        """Return the next output of the command or its descendants; b"" once it has exited and its output is read.

        With ``until_exit`` False, also returns b"" when the output is closed. Safe to cancel: no output is lost.
        """
        while self._output is not None and self._may_read():
            # Without this, a command that writes faster than we read would starve other tasks.
            await asyncio.sleep(0)
            try:
                data = os.read(self._output, _CHUNK_BYTES)
            except BlockingIOError:
                await self._wait_for_output(self._output)
                continue
            if data:
                return data
            self.close()
        if until_exit:
            await asyncio.wait({self._exit})
        return b""

    def arrived(self) -> int:
        """Return the number of unread bytes of output; 0 if unknown."""
        if self._output is None:
            return 0
        try:
            return int.from_bytes(ioctl(self._output, FIONREAD, bytes(4)), sys.byteorder)
        except OSError:
            return 0

    async def exited(self, *, within_s: float | None) -> bool:
        """Wait up to ``within_s`` for the command to exit. True if it has."""
        await asyncio.wait({self._exit}, timeout=within_s)
        return self._exit.done()

    def status(self) -> int:
        """Return the exit status, negative for a signal; only after the command has exited.

        Raise ChildProcessError if it is unknown.
        """
        status = self._exit.result()
        if status is None:
            raise ChildProcessError(KILLED)
        return status

    def how_it_ended(self) -> str:
        """Return how the command ended, such as "exited with 1"."""
        try:
            status = self.status()
        except (ChildProcessError, asyncio.InvalidStateError):
            return "was killed"
        return f"was killed by signal {-status}" if status < 0 else f"exited with {status}"

    @property
    def is_lost(self) -> bool:
        """True if the command's keeper was killed: its processes are ended, and its exit status is unknown."""
        return self._exit.done() and self._exit.result() is None

    @abc.abstractmethod
    async def end(self, *, grace_s: float) -> None:
        """Send SIGTERM to the command and all its descendants, and SIGKILL to those left after ``grace_s``.

        Afterwards none of them runs, except unkillable ones, for which `read` does not wait. When cancelled, kills at
        once.
        """

    @abc.abstractmethod
    async def background(self) -> list[tuple[int, str]]:
        """Return the processes of the command that still run, by pid and command line."""

    def _exited(self, status: int | None) -> None:
        """Record the exit; None if the status is unknown. The first call counts."""
        if not self._exit.done():
            self._exit.set_result(status)

    @abc.abstractmethod
    def release(self) -> None:
        """Stop managing the command. Its background processes continue, and their output is discarded.

        Closing the pipe instead would kill a background server at its next line of output.
        """

    def close(self) -> None:
        """Close the output. Idempotent."""
        if self._output is not None:
            os.close(self._output)
            self._output = None

    def _may_read(self) -> bool:
        if not self._exit.done():
            return True
        now = asyncio.get_running_loop().time()
        if self._drained_at is None:
            self._drained_at = now + DRAIN_S
        return now < self._drained_at

    async def _wait_for_output(self, output: int) -> None:
        """Wait until there is output, the command exits, or the drain time is over."""
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(output, resolve, readable)
        try:
            if self._drained_at is None:
                events: set[asyncio.Future[Any]] = {readable, self._exit}
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.wait({readable}, timeout=self._drained_at - loop.time())
        finally:
            loop.remove_reader(output)


async def end_each(children: Sequence[Child], *, grace_s: float) -> None:
    """End and close several children in parallel."""
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child.end(grace_s=grace_s), name=f"zot end {child.pid}")
    for child in children:
        child.close()


def resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future, unless it is done already."""
    if not future.done():
        future.set_result(None)


class Groups:
    """Starter of commands as leaders of process groups, where no guardian can run."""

    def __init__(self) -> None:
        self._children: set[GroupChild] = set()
        self._closed = False

    async def spawn(self, command: Program) -> Child:
        """See `Processes`."""
        if self._closed:
            raise ChildProcessError("no process can be started: this has been closed")
        self._children = {child for child in self._children if child.runs()}
        ours, theirs = os.pipe()
        try:
            process = _popen(command, theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        child = GroupChild(process, ours, command.owners)
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


def _popen(command: Program, output: int) -> subprocess.Popen[bytes]:
    words, streams, inherited = [*command.argv], command.streams, list[int]()
    if command.seccomp:
        # Without a keeper the descriptor keeps its own number.
        inherited.append(fd := os.memfd_create("seccomp"))
        os.write(fd, command.seccomp)
        os.lseek(fd, 0, os.SEEK_SET)
        words[words.index("--seccomp") + 1] = str(fd)
    try:
        return subprocess.Popen(
            words,
            cwd=command.cwd,
            env=command.env,
            stdin=subprocess.DEVNULL if streams is None else streams.input,
            stdout=output,
            stderr=output if streams is None else streams.errors,
            pass_fds=inherited,
            start_new_session=True,
        )
    finally:
        for fd in inherited:
            os.close(fd)


class GroupChild(Child):
    """Command managed as a process group."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, owners: Sequence[str]) -> None:
        super().__init__(output, owners)
        self.pid = process.pid
        _watch_exit(process, self._exited)

    def runs(self) -> bool:
        """Return whether any process of the group runs."""
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
        """See `Child`. Without /proc it lists only the group."""
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
    """Send a signal to a process group; False if no process can be signalled.

    Kernels reuse ids only after all others, so the id of a group that ended a moment ago hits no other group.
    """
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _runs(group: int) -> bool:
    """Return whether any process of a group runs.

    A zombie that its new parent has not reaped still accepts signals; only its state tells it from a running process.
    """
    return _signal_group(group, 0) and (not os.path.exists("/proc/self/stat") or bool(_members(group)))


def _members(group: int) -> list[int]:
    """Return the running processes of a group, as far as /proc shows them."""
    return [pid for pid, status in _processes() if status.group == group]


def _processes() -> Iterator[tuple[int, tree.ProcessStatus]]:
    """Yield every process that has not ended; none without /proc."""
    for name in os.listdir("/proc") if os.path.exists("/proc/self/stat") else ():
        status = tree.status(int(name)) if name.isdigit() else None
        if status is not None and status.state not in b"ZX":
            yield int(name), status


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # it has just ended
        return ""


def _watch_exit(process: subprocess.Popen[bytes], tell: Callable[[int], None]) -> None:
    """Call ``tell`` with the exit status once the process is reaped."""
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # Not Linux, or forbidden by a sandbox. A thread each: the default executor would run out of threads.
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


def kill_orphans(mark: int, session: int, *, within_s: float) -> None:
    """Kill every process that has a keeper's ``mark`` or belongs to a command's ``session``; 0 stands for none.

    Blocks for ``within_s`` at most, usually for a few milliseconds. Processes that it cannot kill stay.
    """
    deadline = time.monotonic() + within_s
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    raise_priority()
    try:
        while tree.end(lambda: _found(mark, session)) and time.monotonic() < deadline:
            time.sleep(_RESTING_S)
    finally:
        os.sched_setscheduler(0, *before)


def _found(mark: int, session: int) -> Iterator[tuple[int, tree.ProcessStatus]]:
    for pid, status in _processes():
        if (session and status.session == session) or (mark and _has_mark(pid, mark)):
            yield pid, status


def _has_mark(pid: int, mark: int) -> bool:
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            return b"%d" % mark in file.read().split()
    except OSError:  # it has just ended, or is hidden
        return False


class OutboxOwner(Protocol):
    """The connection that an `Outbox` reports to, once. The outbox is closed by then."""

    def cannot_send(self, reason: str) -> None:
        """Note that the program has not read too many bytes that were sent to it."""

    def input_closed(self) -> None:
        """Note that the program has closed its input, or has exited."""


class Outbox:
    """Ordered, non-blocking writer to a program's standard input ``fd``, which it owns."""

    def __init__(self, fd: int, owner: OutboxOwner, *, max_bytes: int) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._owner = owner
        self._max_bytes = max_bytes
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        """Send ``data`` after all earlier data. Does nothing once closed."""
        if self._fd is None or not data:
            return
        was_empty = not self._waiting
        self._waiting += data
        if (size := len(self._waiting)) > self._max_bytes:
            self.close()
            self._owner.cannot_send(f"has not read {size} bytes that were sent to it")
        elif was_empty:
            self._flush()
            if self._waiting and self._fd is not None:
                asyncio.get_running_loop().add_writer(self._fd, self._flush)

    def close(self) -> None:
        """Close the pipe and drop unsent bytes. Idempotent."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None
            self._waiting.clear()

    def _flush(self) -> None:
        if self._fd is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting[:_CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            self._owner.input_closed()
            return
        asyncio.get_running_loop().remove_writer(self._fd)
