"""Guardian: a process that is the ancestor of every tool process and ends them all when zot dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from zot.tools.guardian_process.kernel import hide_memory, raise_priority
from zot.tools.guardian_process.spawn_request import SpawnRequest, encode_request
from zot.tools.process import CLOSE_GRACE_S, REAP_S, Child, Groups, Processes, Program, end_each, kill_orphans, resolve

#: Time for a guardian to end after its last child.
SHUT_DOWN_S = REAP_S
#: Error of a command that no keeper took.
ENDED = "the guardian ended before it could take it"
#: Time for a keeper to report that the command runs, and later to list its processes.
_ANSWER_S = 5.0
#: Interval of SIGCONT to a silent keeper in the meantime.
_WAKE_S = 0.1
_MAX_REPORT_BYTES = 64 * 1024
#: Commands requested but not started. The kernel limits the number of descriptors in transit.
_MAX_STARTING = 64
#: Keepers that wait for their next command, processes of a few megabytes each.
_MAX_IDLE = 4
#: Attempts to start a command if the guardian ends before taking it.
_TRIES = 3
#: Time to start a command before the guardian counts as stuck.
PATIENCE_S = 10.0
_START = "import sys; sys.path.append(sys.argv.pop()); from zot.tools.guardian_process.main import main; main()"


def open_processes(*, protected: bool = False) -> Processes:
    """Return the best process manager for this system: a `Guardian`, or else `Groups`.

    ``protected`` calls `protect_process` before the first command is started.
    """
    if _can_guard():
        return Guardian(protected=protected)
    return Groups()


def protect_process() -> None:
    """Keep this user's commands out of this process's memory, environment and descriptors, as far as possible.

    For zot's own programs, before their first command; an embedding program decides for itself, since it prevents core
    dumps and debugging. Against commands of the superuser only a sandbox helps.
    """
    if sys.platform == "linux":
        hide_memory()


def _can_guard() -> bool:
    """Return whether this system supports subreapers and /proc, and has an interpreter to run the guardian."""
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    return sys.platform == "linux" and is_python and os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


class Guardian:
    """Starter of commands through a guardian process, which is started with the first command."""

    def __init__(
        self,
        *,
        python: str = sys.executable,
        patience_s: float = PATIENCE_S,
        protected: bool = False,
    ) -> None:
        self._protected = protected
        self._python = python
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._children: set[GuardedChild] = set()
        self._idle: list[socket.socket] = []
        self._starting = asyncio.Semaphore(_MAX_STARTING)
        self._closed = False

    async def spawn(self, command: Program) -> Child:
        """See `Processes`."""
        variables = {os.fsencode(name): os.fsencode(value) for name, value in command.env.items()}
        words = [os.fsencode(word) for word in command.argv]
        request = encode_request(SpawnRequest(words, os.fsencode(command.cwd), variables, command.seccomp))
        async with self._starting:
            if self._closed:
                raise ChildProcessError("no process can be started: the guardian has been closed")
            # A guardian killed a moment ago may still accept a request, then refuse, and only then be known as dead:
            # the next guardian takes the command.
            for _ in range(_TRIES - 1):
                with suppress(KeeperEnded):
                    return await self._begin(command, request)
            return await self._begin(command, request)

    async def end_all(self, owner: str, *, grace_s: float) -> None:
        """See `Processes`."""
        await end_each([child for child in self._children if owner in child.owners], grace_s=grace_s)

    async def close(self) -> None:
        """See `Processes`. Also waits for the guardian."""
        self._closed = True
        try:
            await end_each(list(self._children), grace_s=CLOSE_GRACE_S)
        finally:
            await self._shut_down()

    def kill_all(self) -> None:
        """See `Processes`. Only sends orders: the event loop's objects stay untouched."""
        self._closed = True
        for child in list(self._children):
            child.kill()
        if (guardian := self._socket) is not None:
            with suppress(OSError):  # it has ended already
                guardian.shutdown(socket.SHUT_RDWR)

    def kill(self, owner: str) -> None:
        """See `Processes`."""
        for child in list(self._children):
            if owner in child.owners:
                child.kill()

    def runs(self, owner: str | None = None) -> bool:
        """See `Processes`."""
        return any(owner is None or owner in child.owners for child in self._children)

    async def _begin(self, command: Program, request: bytes) -> GuardedChild:
        """Start a command through a keeper, by its encoded ``request``. Leaves no process on failure."""
        control = self._idle_keeper() or self._new_keeper()
        self._wake()
        inlet, outlet = os.pipe()
        child = GuardedChild(self, control, inlet, command.owners)
        self._children.add(child)
        try:
            descriptors = [outlet, inlet, *(command.streams or ())]
            program = os.fsdecode(command.argv[0])
            await self._answered(child.start(request, descriptors, program=program, cwd=command.cwd))
        except BaseException:
            # Also on cancellation: leave no process.
            try:
                await child.end(grace_s=0)
            finally:
                child.close()
            raise
        finally:
            os.close(outlet)
        return child

    async def _answered(self, start: Coroutine[Any, Any, None]) -> None:
        """Wait until a command has started. Replaces a guardian that does not answer."""
        deadline = asyncio.timeout(self._patience_s)
        try:
            async with deadline:
                await start
        except TimeoutError as exc:
            if deadline.expired() and self._process is not None:
                self._discard_guardian()
            raise ChildProcessError(f"the guardian did not answer within {self._patience_s:g} s") from exc

    def forget(self, child: GuardedChild, control: socket.socket | None) -> None:
        """Drop a child whose processes have ended; keep the control socket of a keeper that can take another."""
        self._children.discard(child)
        if control is not None and len(self._idle) < _MAX_IDLE and not self._closed:
            self._idle.append(control)
        elif control is not None:
            control.close()

    def _idle_keeper(self) -> socket.socket | None:
        """Return the control socket of an idle keeper; None if there is none.

        Reuse pays: forking an interpreter costs more than the rest of a short command.
        """
        if self._process is not None and self._process.poll() is not None:
            self._discard_guardian()
        while self._idle:
            control = self._idle.pop()
            if _is_silent(control):
                return control
            control.close()
        return None

    def _wake(self) -> None:
        """Resume a guardian stopped by a command; it then resumes its keepers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _new_keeper(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket or self._start(), [b"+"], [theirs.fileno()])
            except ConnectionError as exc:
                ours.close()
                self._discard_guardian()
                raise KeeperEnded(ENDED) from exc
            except BaseException:
                ours.close()
                raise
        return ours

    def _start(self) -> socket.socket:
        """Start the guardian in its own session, without this process's environment and descriptors."""
        if self._protected:
            protect_process()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [self._python, "-I", "-S", *_bytecode(), "-c", _START, str(os.getpid()), root],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    # Some interpreters do not find their own libraries without it.
                    env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._socket = ours
        return ours

    async def _shut_down(self) -> None:
        """Let the guardian exit, and wait for it. One that still has processes to end continues on its own."""
        if self._socket is None:
            return
        assert self._process is not None
        loop = asyncio.get_running_loop()
        left: asyncio.Future[None] = loop.create_future()
        self._socket.shutdown(socket.SHUT_WR)
        self._wake()
        loop.add_reader(self._socket, resolve, left)
        try:
            await asyncio.wait({left}, timeout=SHUT_DOWN_S)
        finally:
            loop.remove_reader(self._socket)
            if left.done():
                self._discard_guardian()
            else:
                self._detach()

    def _detach(self) -> None:
        """Detach a guardian that is still ending processes: it exits after the last one."""
        assert self._process is not None
        assert self._socket is not None
        self._socket.close()
        threading.Thread(target=self._process.wait, name="zot guardian", daemon=True).start()
        self._process = self._socket = None

    def _discard_guardian(self) -> None:
        """Kill and reap the guardian, and drop its idle keepers."""
        assert self._process is not None
        assert self._socket is not None
        self._socket.close()
        self._process.kill()
        self._process.wait()
        for child in self._children:
            child.wake_keeper()
        self._process = self._socket = None
        while self._idle:
            self._idle.pop().close()


def _is_silent(control: socket.socket) -> bool:
    """Return whether there is nothing to read, not even an end of file: the keeper is idle and intact."""
    try:
        control.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def _bytecode() -> list[str]:
    return ["-B"] if sys.dont_write_bytecode else []


class KeeperEnded(ChildProcessError):
    """The keeper ended before it took the command."""


class GuardedChild(Child):
    """Command below its own keeper, which ``guardian`` forked."""

    def __init__(self, guardian: Guardian, control: socket.socket, output: int, owners: Sequence[str]) -> None:
        super().__init__(output, owners)
        loop = asyncio.get_running_loop()
        self.pid = 0
        self._keeper = self._mark = 0
        self._control = control
        self._guardian = guardian
        self._unread = b""
        self._is_sent = False
        self._asked = False
        self._begun: asyncio.Future[OSError | None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._jobs: asyncio.Future[list[tuple[int, str]]] | None = None
        control.setblocking(False)
        loop.add_reader(control, self._on_readable)

    async def start(self, request: bytes, fds: Sequence[int], *, program: str, cwd: str) -> None:
        """Request a command with the descriptors that `guardian_process/main.py` expects, and wait until it runs.

        Raise OSError; KeeperEnded if the command was not started and another keeper may be asked.
        """
        with suppress(ConnectionError):  # the keeper ended before it could read; the reader notices that
            sent = socket.send_fds(self._control, [request], fds)
            await asyncio.get_running_loop().sock_sendall(self._control, request[sent:])
            self._is_sent = True
        problem = await self._beginning()
        if problem is not None and problem.errno is None:
            raise problem
        if problem is not None:
            raise OSError(problem.errno, problem.strerror, cwd if problem.filename == "directory" else program)

    async def _beginning(self) -> OSError | None:
        """Wait until the keeper reports that the command runs, or its error.

        A command may have stopped its keeper before the report: resumes the keeper, and ends it if it stays silent. The
        caller bounds the wait for a keeper that has not taken the command yet: only the guardian can help there.
        """
        deadline = asyncio.get_running_loop().time() + _ANSWER_S
        while not (await asyncio.wait({self._begun}, timeout=_WAKE_S))[0]:
            if not self._keeper:
                continue
            if asyncio.get_running_loop().time() > deadline:
                await self._end_without_keeper()
            else:
                with suppress(ProcessLookupError):
                    os.kill(self._keeper, signal.SIGCONT)
        return self._begun.result()

    async def end(self, *, grace_s: float) -> None:
        """See `Child`. Takes at most ``grace_s`` and three times `REAP_S`, even without keeper and guardian."""
        if not self._is_sent:  # an order would be read as a part of it; half a request starts nothing
            self.hang_up()
            return
        try:
            self.wake_keeper()
            self._ask(f"end {grace_s}")
            await asyncio.wait({self._gone}, timeout=grace_s + REAP_S)
        except BaseException:
            self._ask("end 0")
            await asyncio.wait({self._gone}, timeout=REAP_S)
            raise
        finally:
            if not self._gone.done():
                await self._end_without_keeper()

    async def background(self) -> list[tuple[int, str]]:
        """See `Child`."""
        if self._gone.done() or self.is_lost:
            return []
        if self._jobs is None:
            self._jobs = asyncio.get_running_loop().create_future()
            self._ask("list")
        jobs = self._jobs
        await asyncio.wait({jobs}, timeout=_ANSWER_S)
        if not jobs.done():  # Both the keeper and the guardian were stopped by a signal.
            await self.end(grace_s=0)
        return jobs.result()

    def release(self) -> None:
        """See `Child`. The keeper discards the output from now on."""
        self._ask("drain")
        self.close()

    def wake_keeper(self) -> None:
        """Resume a stopped keeper and raise its priority: it has processes to end."""
        if self._keeper:
            with suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGCONT)
            raise_priority(self._keeper)

    def hang_up(self) -> None:
        """Close the connection to the keeper, which then ends all processes."""
        if not self._gone.done():
            self._finish(reusable=False)

    def kill(self) -> None:
        """Have all processes killed at once, from any thread, without waiting for the result."""
        with suppress(OSError):  # the keeper has ended or does not read: then the closed socket is the order
            if self._is_sent:
                self._control.send(b"end 0\n")
            self._control.shutdown(socket.SHUT_WR)

    async def _end_without_keeper(self) -> None:
        """Kill a keeper that does not answer because it was stopped. The guardian then ends its processes.

        If the guardian does not answer either, this process ends them. Either way the child has ended afterwards.
        """
        if self._keeper:
            with suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGKILL)
            await asyncio.wait({self._gone}, timeout=REAP_S)
        if not self._gone.done():
            self._end_strays()

    def _end_strays(self) -> None:
        """End the remaining processes if neither the keeper nor the guardian can."""
        if self._keeper:
            kill_orphans(self._mark, self.pid, within_s=REAP_S)
        self.hang_up()

    def _ask(self, line: str) -> None:
        if not self._gone.done():
            self._asked = True
            # It may have ended, or not read; callers notice the missing report.
            with suppress(ConnectionError, BlockingIOError):
                self._control.send(f"{line}\n".encode())

    def _on_readable(self) -> None:
        try:
            data = self._control.recv(_MAX_REPORT_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._on_report(line)
        if not data and not self._gone.done():
            self._end_strays()

    def _on_report(self, line: bytes) -> None:
        match line.split(b" ", 1):
            case [b"taken", numbers]:
                self._keeper, self._mark = map(int, numbers.split())
            case [b"started", pid]:
                self.pid = int(pid)
                self._begin(None)
            case [b"failed", reason]:
                number, where = reason.split()
                self._begin(OSError(int(number), os.strerror(int(number)), where.decode()))
            case [b"exited", status]:
                self._exited(int(status))
            case [b"jobs", jobs]:
                self._list([_job(job) for job in jobs.split(b"\0") if job])
            case [b"abandoned"]:
                self._exited(None)
            case [b"gone"]:
                # The last order may still be unread, and would be taken for one about the next command.
                self._finish(reusable=not self._asked)
            case _:  # lost: the keeper was killed, and the guardian has ended its processes
                self.hang_up()

    def _begin(self, problem: OSError | None) -> None:
        if not self._begun.done():
            self._begun.set_result(problem)

    def _list(self, jobs: list[tuple[int, str]]) -> None:
        if self._jobs is not None:
            self._jobs.set_result(jobs)
        self._jobs = None

    def _finish(self, *, reusable: bool) -> None:
        """Resolve all waits and release the keeper: no more reports follow."""
        asyncio.get_running_loop().remove_reader(self._control)
        if not reusable:
            self._control.close()
        # A keeper that took a command may have been killed by it before it could report that it runs.
        self._begin(None if self._keeper else KeeperEnded(ENDED))
        self._exited(None)
        self._list([])
        resolve(self._gone)
        self._guardian.forget(self, self._control if reusable else None)


def _job(line: bytes) -> tuple[int, str]:
    pid, _, command = line.partition(b" ")
    return int(pid), command.decode(errors="replace")
