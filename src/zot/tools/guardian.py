"""The guardian: a process that is the parent of every tool process and ends them all when zot dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from zot.tools.process import CLOSE_GRACE_S, REAP_S, Child, Groups, Processes, Streams, end_each, resolve
from zot.tools.warden.kernel import hurry
from zot.tools.warden.request import Request, encode_request

if TYPE_CHECKING:
    import subprocess

#: Why a command was not taken.
ENDED = "the guardian ended before it could take it"
#: How long a keeper may take to say that the command runs, or later what still runs of it.
_ANSWER_S = 5.0
#: How often a keeper is made to go on meanwhile.
_WAKE_S = 0.1
_MAX_REPORT_BYTES = 64 * 1024


class NotTaken(ChildProcessError):
    """A keeper ended before it had taken the command."""


class KeptChild(Child):
    """One command, below a keeper of its own.

    When nothing of it is left, ``forget`` is called, with the control socket if its keeper can take another command.
    """

    def __init__(
        self,
        control: socket.socket,
        output: int,
        owners: Sequence[str],
        forget: Callable[[KeptChild, socket.socket | None], None],
    ) -> None:
        super().__init__(output, owners)
        loop = asyncio.get_running_loop()
        self.pid = 0
        self._keeper = self._mark = 0
        self._control = control
        self._forget = forget
        self._unread = b""
        self._is_sent = False
        self._asked = False
        self._begun: asyncio.Future[OSError | None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._jobs: asyncio.Future[list[tuple[int, str]]] | None = None
        control.setblocking(False)
        loop.add_reader(control, self._hear)

    async def start(self, request: bytes, fds: Sequence[int], *, program: str, cwd: str) -> None:
        """Ask for a command with the descriptors that `warden/keeper.py` wants, and wait until it runs.

        Raise OSError, and `NotTaken` if nothing of it has happened and another keeper may be asked.
        """
        with suppress(ConnectionError):  # its keeper has ended before it could listen; we will hear of that
            sent = socket.send_fds(self._control, [request], fds)
            await asyncio.get_running_loop().sock_sendall(self._control, request[sent:])
            self._is_sent = True
        problem = await self._beginning()
        if problem is not None and problem.errno is None:
            raise problem
        if problem is not None:
            raise OSError(problem.errno, problem.strerror, cwd if problem.filename == "directory" else program)

    async def _beginning(self) -> OSError | None:
        """Wait until the keeper says that the command runs, or why not.

        A command may have stopped its keeper before it could: that is made to go on, and ended if it stays silent. How
        long to wait for one that has not taken the command yet is for the caller to say: only the guardian can help.
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
        """See `Child`. Takes ``grace_s`` and three times `REAP_S` at most, whoever has been stopped or killed."""
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
        if not jobs.done():  # Somebody has stopped its keeper and the guardian.
            await self.end(grace_s=0)
        return jobs.result()

    def release(self) -> None:
        """See `Child`. The keeper listens from now on."""
        self._ask("drain")
        self.close()

    def wake_keeper(self) -> None:
        """Let the keeper go on if it has been stopped, and before all others: it has something to end."""
        if self._keeper:
            with suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGCONT)
            hurry(self._keeper)

    def hang_up(self) -> None:
        """Let go of the keeper, which takes it as an order to end everything."""
        if not self._gone.done():
            self._settle(reusable=False)

    def kill(self) -> None:
        """Have everything of it killed at once, from any thread; nobody listens for what becomes of it."""
        with suppress(OSError):  # its keeper has ended, or does not listen: then the hanging up counts
            if self._is_sent:
                self._control.send(b"end 0\n")
            self._control.shutdown(socket.SHUT_WR)

    async def _end_without_keeper(self) -> None:
        """Kill a keeper that does not answer: somebody has stopped it. The guardian then ends what it leaves.

        If that does not answer either, we do it. In any case it is over then: nobody waits for more.
        """
        if self._keeper:
            with suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGKILL)
            await asyncio.wait({self._gone}, timeout=REAP_S)
        if not self._gone.done():
            self._end_strays()

    def _end_strays(self) -> None:
        """End what is left when neither the keeper nor the guardian can."""
        if self._keeper:
            from zot.tools.process import end_strays

            end_strays(self._mark, self.pid, within_s=REAP_S)
        self.hang_up()

    def _ask(self, line: str) -> None:
        if not self._gone.done():
            self._asked = True
            # It may have ended, or not listen; who waits for its report will notice.
            with suppress(ConnectionError, BlockingIOError):
                self._control.send(f"{line}\n".encode())

    def _hear(self) -> None:
        try:
            data = self._control.recv(_MAX_REPORT_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(line)
        if not data and not self._gone.done():
            self._end_strays()

    def _take(self, line: bytes) -> None:
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
                # What was asked of it last may still be unread, and would be taken for the next command's.
                self._settle(reusable=not self._asked)
            case _:  # lost: the keeper was killed, and the guardian has ended what it left
                self.hang_up()

    def _begin(self, problem: OSError | None) -> None:
        if not self._begun.done():
            self._begun.set_result(problem)

    def _list(self, jobs: list[tuple[int, str]]) -> None:
        if self._jobs is not None:
            self._jobs.set_result(jobs)
        self._jobs = None

    def _settle(self, *, reusable: bool) -> None:
        """Nothing more will be heard: answer whoever may be waiting, and let go of the keeper."""
        asyncio.get_running_loop().remove_reader(self._control)
        if not reusable:
            self._control.close()
        # A keeper that has taken a command may have been killed by it before it could say that it runs.
        self._begin(None if self._keeper else NotTaken(ENDED))
        self._exited(None)
        self._list([])
        resolve(self._gone)
        self._forget(self, self._control if reusable else None)


def _job(line: bytes) -> tuple[int, str]:
    pid, _, command = line.partition(b" ")
    return int(pid), command.decode(errors="replace")


#: Commands that have been asked for and have not begun. The kernel limits the descriptors that are on their way.
_MAX_STARTING = 64
#: Keepers that wait for their next command. Each is a process of a few megabytes.
_MAX_IDLE = 4
#: How often a command is given to a guardian, or the next one, that ends before it takes it.
_TRIES = 3
#: How long a command may take to begin before the guardian counts as stuck.
PATIENCE_S = 10.0
_START = "import sys; sys.path.append(sys.argv.pop()); from zot.tools.warden.main import main; main()"


class Guardian:
    """Starts commands through a guardian process, which is started with the first of them."""

    def __init__(
        self,
        *,
        python: str = sys.executable,
        patience_s: float = PATIENCE_S,
        before_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_start = before_start
        self._python = python
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._children: set[KeptChild] = set()
        self._idle: list[socket.socket] = []
        self._starting = asyncio.Semaphore(_MAX_STARTING)
        self._closed = False

    async def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str,
        env: Mapping[str, str],
        owners: Sequence[str] = (),
        streams: Streams | None = None,
    ) -> Child:
        """See `Processes`."""
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        request = encode_request(Request([os.fsencode(word) for word in argv], os.fsencode(cwd), variables))
        async with self._starting:
            if self._closed:
                raise ChildProcessError("nothing can be started any more: the guardian has been closed")
            # One that was killed a moment ago may still take something, then refuse, and only then be known to be dead:
            # the next one takes it.
            for _ in range(_TRIES - 1):
                with suppress(NotTaken):
                    return await self._begin(request, os.fsdecode(argv[0]), cwd, owners, streams)
            return await self._begin(request, os.fsdecode(argv[0]), cwd, owners, streams)

    async def end_all(self, owner: str, *, grace_s: float) -> None:
        """See `Processes`."""
        await end_each([child for child in self._children if owner in child.owners], grace_s=grace_s)

    async def close(self) -> None:
        """See `Processes`. Waits for the guardian, too."""
        self._closed = True
        try:
            await end_each(list(self._children), grace_s=CLOSE_GRACE_S)
        finally:
            await self._dismiss()

    def kill_all(self) -> None:
        """See `Processes`. Only tells the others: what the event loop keeps here is left alone."""
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

    async def _begin(
        self, request: bytes, program: str, cwd: str, owners: Sequence[str], streams: Streams | None
    ) -> KeptChild:
        """Let a keeper start a command. Whatever goes wrong leaves nothing running."""
        control = self._idle_keeper() or self._new_keeper()
        self._wake()
        inlet, outlet = os.pipe()
        child = KeptChild(control, inlet, owners, self._forget)
        self._children.add(child)
        try:
            await self._answered(child.start(request, [outlet, inlet, *(streams or ())], program=program, cwd=cwd))
        except BaseException:
            # Cancellation passes through here: what it interrupts leaves nothing running.
            try:
                await child.end(grace_s=0)
            finally:
                child.close()
            raise
        finally:
            os.close(outlet)
        return child

    async def _answered(self, start: Coroutine[Any, Any, None]) -> None:
        """Wait for a command to begin. A guardian that does not answer is replaced for the next one."""
        deadline = asyncio.timeout(self._patience_s)
        try:
            async with deadline:
                await start
        except TimeoutError as exc:
            if deadline.expired() and self._process is not None:
                self._bury()
            raise ChildProcessError(f"the guardian did not answer within {self._patience_s:g} s") from exc

    def _forget(self, child: KeptChild, control: socket.socket | None) -> None:
        self._children.discard(child)
        if control is not None and len(self._idle) < _MAX_IDLE and not self._closed:
            self._idle.append(control)
        elif control is not None:
            control.close()

    def _idle_keeper(self) -> socket.socket | None:
        """Return the control socket of a keeper that has nothing to do; None if there is none.

        Forking an interpreter costs more than everything else about a short command.
        """
        if self._process is not None and self._process.poll() is not None:
            self._bury()
        while self._idle:
            control = self._idle.pop()
            if _is_silent(control):
                return control
            control.close()
        return None

    def _wake(self) -> None:
        """Let the guardian go on if a command has stopped it; it then wakes its keepers, too."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _new_keeper(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket or self._start(), [b"+"], [theirs.fileno()])
            except ConnectionError as exc:
                ours.close()
                self._bury()
                raise NotTaken(ENDED) from exc
            except BaseException:
                ours.close()
                raise
        return ours

    def _start(self) -> socket.socket:
        """Start the guardian: nothing of our environment, none of our descriptors, a session of its own."""
        import subprocess

        self._before_start()
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

    async def _dismiss(self) -> None:
        """Let the guardian leave, and see that it did. One that still has something to end goes on with that."""
        if self._socket is None:
            return
        assert self._process is not None
        loop = asyncio.get_running_loop()
        left: asyncio.Future[None] = loop.create_future()
        self._socket.shutdown(socket.SHUT_WR)
        self._wake()
        loop.add_reader(self._socket, resolve, left)
        try:
            await asyncio.wait({left}, timeout=REAP_S)
        finally:
            loop.remove_reader(self._socket)
            if left.done():
                self._bury()
            else:
                self._leave_behind()

    def _leave_behind(self) -> None:
        """Forget a guardian that is still at work: it leaves with the last process that it has to end."""
        assert self._process is not None
        assert self._socket is not None
        self._socket.close()
        threading.Thread(target=self._process.wait, name="zot guardian", daemon=True).start()
        self._process = self._socket = None

    def _bury(self) -> None:
        """Forget a guardian that has ended, or has to."""
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
    """Tell if there is nothing to read, not even the end: a keeper that is as we left it."""
    try:
        control.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def _bytecode() -> list[str]:
    return ["-B"] if sys.dont_write_bytecode else []


def open_processes(*, protected: bool = False) -> Processes:
    """Return what keeps processes best on this system: a `Guardian`, or `Groups` where there can be none.

    ``protected`` calls `protect_process` before the first command is started.
    """
    if _can_guard():
        return Guardian(before_start=protect_process if protected else lambda: None)

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
