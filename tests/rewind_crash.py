"""A process that is killed while it changes files. Run by tests/session/test_rewind.py: JOURNAL CWD WHEN."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import claude
from fakes import FakeTransport, service, talk
from tools.meddled import Meddled
from zot.agent.loop import Agent, AgentSettings
from zot.journal.journal import Journal
from zot.providers.models import catalogue
from zot.session.session import Session
from zot.session.transcripts import RewindTarget, TranscriptPast
from zot.session.worker import NoToolResources
from zot.tools.base import Tool
from zot.tools.checkpoints import Restorer
from zot.tools.file_access import UnrestrictedPaths
from zot.tools.write import Write


class Doomed(Restorer):
    """Restores a number of files, then kills the process."""

    def __init__(self, left: int) -> None:
        super().__init__(UnrestrictedPaths())
        self._left = left

    def restore(
        self, root: str, path: str, data: bytes | None, *, found: Sequence[str | None], then: str | None, mode: int
    ) -> tuple[str | None, int] | None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        done = super().restore(root, path, data, found=found, then=then, mode=mode)
        if self._left == 0 and path == "c.txt":  # the last: nothing is left but to record it
            os.kill(os.getpid(), signal.SIGKILL)
        return done


class FileTools(NoToolResources):
    """Tools whose files ``restorer`` restores."""

    def __init__(self, restorer: Restorer) -> None:
        self._restorer = restorer

    def files(self) -> Restorer:
        return self._restorer


async def session_with(
    files: Restorer, path: str, cwd: str, *tools: Tool, transport: FakeTransport | None = None
) -> Session:
    """Open the session ``s`` with our own restorer."""
    journal = await Journal.open(path)
    record, past = await journal.resume("s")
    agent = Agent(
        service(transport or FakeTransport()),
        catalogue("anthropic"),
        AgentSettings(system="", cwd=cwd, env={}),
        tools=tools,
    )
    past_of_session = TranscriptPast(past.changes, past.rows, release=journal.close)
    return Session(agent, record, tools=FileTools(files), past=past_of_session)


async def rewind(path: str, cwd: str, after: int) -> None:
    session = await session_with(Doomed(after), path, cwd)
    await session.rewind(RewindTarget(messages=0))


async def write(path: str, cwd: str, *, written: bool) -> None:
    """Let the model write a file, and be killed right before or right after the write."""

    def meddle() -> None:
        if written:
            Path(cwd, "a.txt").write_text("two")
        os.kill(os.getpid(), signal.SIGKILL)

    call = claude.tool("c1", "write", '{"path":"a.txt","content":"two"}')
    transport = FakeTransport([claude.reply(call, ends="tool_use")])
    session = await session_with(Restorer(UnrestrictedPaths()), path, cwd, Write(Meddled(meddle)), transport=transport)
    await talk(session, "write")


if __name__ == "__main__":
    journal, directory, when = sys.argv[1:]
    if when.isdigit():
        asyncio.run(rewind(journal, directory, int(when)))
    else:
        asyncio.run(write(journal, directory, written=when == "written"))
