"""Commands kept by a guardian: a small process beside us that nothing gets away from, whoever dies first.

We ask it for keepers, and then talk to those alone: see `warden/main.py` and `warden/keeper.py` for the other side.
"""

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

from zot.tools.kept import ENDED, KeptChild, NotTaken
from zot.tools.process import CLOSE_GRACE_S, REAP_S, Child, Streams, end_each, resolve
from zot.tools.warden.request import Request, encode_request

if TYPE_CHECKING:
    import subprocess

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
