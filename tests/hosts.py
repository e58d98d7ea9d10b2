"""Conversations with the real `zot host`: one request, one answer, the exit code, and nothing else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from forked import Forked, ForkServer
from harness import PATIENCE_S, environment
from zot.agent.transcript import Transcript
from zot.events import AgentEvent
from zot.journal import replay
from zot.journal.journal import Journal
from zot.messages import ShownBlock, show

Json: TypeAlias = dict[str, Any]

KEYS = ["ok", "request_id", "session_id", "text", "error_code", "error_message", "usage"]
NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class Told(NamedTuple):
    """The output and the exit code of a process."""

    answer: Json
    code: int
    errors: str


class Hosts:
    """Starts `zot host` in a directory and with a home of its own."""

    def __init__(self, directory: Path, fork_server: ForkServer) -> None:
        self.directory = directory
        self.home = directory / "home"
        self._fork_server = fork_server

    def start(
        self, *flags: str, env: Mapping[str, str] | None = None, prefix: tuple[str, ...] = (), **popen: Any
    ) -> subprocess.Popen[bytes]:
        """Start a fresh process. Its standard streams are pipes, unless ``popen`` has others."""
        given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "zot", *_words(flags)],
            cwd=self.directory,
            env=environment({"ZOT_HOME": str(self.home), **(env or {})}),
            **given,
        )

    def fork(self, *flags: str) -> Forked:
        """Fork a process from the fork server. Its standard streams are pipes."""
        return self._fork_server.fork(_words(flags), self.directory, environment({"ZOT_HOME": str(self.home)}))

    def ask(self, given: Json | bytes, *flags: str, **popen: Any) -> Told:
        """Send a request to a new process and return its validated answer."""
        return told(self.start(*flags, **popen) if popen else self.fork(*flags), given)

    def say(self, prompt: str, *flags: str, key: str | None = None, timeout_ms: float = 15_000, **more: Any) -> Told:
        """Ask for a prompt in the session `s`."""
        return self.ask(request(prompt, key=key, timeout_ms=timeout_ms, **more), *flags)

    def transcript(self, session: str = "host:s") -> list[tuple[str, str]]:
        """Return the messages of a session: role, and the text or kind of each block."""
        return asyncio.run(self._read(session))

    def events(self, session: str = "host:s") -> list[AgentEvent]:
        """Return the messages recorded as shown."""
        return asyncio.run(self._events(session))

    async def _events(self, session: str) -> list[AgentEvent]:
        journal = await Journal.open(self.home / "journal.db")
        try:
            found = await journal.reading(replay.events_after, session, 0, 1 << 20)
        finally:
            await journal.close()
        return [event for _, event in found]

    async def _read(self, session: str) -> list[tuple[str, str]]:
        journal = await Journal.open(self.home / "journal.db")
        try:
            record, _ = await journal.resume(session)
            transcript = Transcript()
            for _, change in await record.changes():
                transcript.apply(change)
        finally:
            await journal.close()
        shown = [show(message) for message in transcript.messages]
        return [(message.role, _said(block)) for message in shown for block in message.content]


def _words(flags: Sequence[str]) -> list[str]:
    """Return the command line; with lab, unless the flags name a provider."""
    provider = () if {"--provider", "--config-dir"} & {*flags} else ("--provider", "lab")
    return ["host", *provider, *flags]


def _said(block: ShownBlock) -> str:
    match msgspec.to_builtins(block):
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)}:
            return kind
        case other:
            raise AssertionError(other)


def request(prompt: str, *, key: str | None = None, **more: Any) -> Json:
    """Return a request in the session `s`."""
    made = {"request_id": "r", "session_id": "s", "prompt": prompt, **more}
    return made if key is None else {**made, "idempotency_key": key}


def told(process: subprocess.Popen[bytes] | Forked, given: Json | bytes) -> Told:
    """Send ``process`` its input and return the result: one line, in the one valid form."""
    data = given if isinstance(given, bytes) else json.dumps(given).encode() + b"\n"
    try:
        out, errors = process.communicate(data, timeout=PATIENCE_S)
    finally:
        process.kill()
    assert out.endswith(b"\n"), (out, errors)
    assert out.count(b"\n") == 1, out
    assert process.returncode is not None
    return Told(checked(json.loads(out)), process.returncode, errors.decode())


def checked(answer: Json) -> Json:
    """Return a validated answer."""
    assert [key for key in answer if key != "replayed"] == KEYS
    assert answer["ok"] is (answer["error_code"] is None) is (answer["error_message"] is None)
    assert bool(answer["text"].strip()) is answer["ok"]
    usage = answer["usage"]
    assert {name: type(count) for name, count in usage.items()} == dict.fromkeys(NOTHING, int)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer.get("replayed", True) is True
    return answer


def failure(answer: Json) -> tuple[str, str]:
    """Return the code and the message of a failed answer."""
    assert answer["ok"] is False
    return answer["error_code"], answer["error_message"]
