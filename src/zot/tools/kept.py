"""A command that a keeper keeps: our end of the control socket between us and it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from zot.tools.process import REAP_S, Child, resolve
from zot.tools.warden.kernel import hurry

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
            from zot.tools.strays import end_strays

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
