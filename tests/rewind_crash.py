"""A process that is killed while it puts files back. Run by tests/test_rewind.py: JOURNAL CWD AFTER."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from fakes import FakeTransport, service
from zot.agent.loop import Agent
from zot.job import Wish
from zot.journal.journal import Journal
from zot.providers.models import catalogue
from zot.session import Past, Session
from zot.tools.paths import Anywhere
from zot.tools.restore import Restorer


class Doomed(Restorer):
    """Puts so many files back, and is no more."""

    def __init__(self, left: int) -> None:
        super().__init__(Anywhere())
        self._left = left

    def restore(
        self, root: str, path: str, data: bytes | None, *, now: str | None, then: str | None, mode: int
    ) -> bool:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        done = super().restore(root, path, data, now=now, then=then, mode=mode)
        if self._left == 0 and path == "c.txt":  # the last: nothing is left but to record it
            os.kill(os.getpid(), signal.SIGKILL)
        return done


async def session_with(files: Restorer, path: str, cwd: str) -> Session:
    """Open the session ``s`` with somebody of ours to put files back."""
    journal = await Journal.open(path)
    record, past = await journal.resume("s")
    agent = Agent(service(FakeTransport()), catalogue("anthropic"), model_id=None, system="", tools=[], cwd=cwd, env={})
    rows = [row for _, row in past.changes]
    return Session(agent, record, past=Past(rows, release=journal.close), files=lambda: files)


async def main(path: str, cwd: str, after: int) -> None:
    session = await session_with(Doomed(after), path, cwd)
    await session.rewind(Wish(messages=0))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
