"""Child processes that a test forks: each reports one result and lives until it is killed."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Self

from harness import PATIENCE_S, read_some

NOBODY = 65534


class Child:
    """Runs ``work`` in a child process, which reports the return value and then waits.

    ``work`` gets a function that waits for `resume`. With ``uid``, the child runs as that user.
    """

    def __init__(self, work: Callable[[Callable[[], None]], str], *, uid: int | None = None) -> None:
        told, self._tell = os.pipe()
        self._said, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._tell)
            _run(work, told, say, uid)
        os.close(told)
        os.close(say)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def resume(self) -> None:
        """Let the child continue."""
        os.write(self._tell, b".")

    def report(self) -> str:
        """Return the child's report."""
        return read_some(self._said, time.monotonic() + PATIENCE_S).decode()

    def kill(self) -> None:
        """Send SIGKILL and reap the child."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
            os.close(self._tell)
            os.close(self._said)


def _run(work: Callable[[Callable[[], None]], str], told: int, say: int, uid: int | None) -> None:
    def wait() -> None:
        select.select([told], [], [], PATIENCE_S)
        os.read(told, 1)

    try:
        if uid is not None:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.write(say, work(wait).encode() or b"-")
        wait()
    except BaseException as problem:
        os.write(say, f"{type(problem).__name__}: {problem}".encode())
    finally:
        os._exit(0)
