"""Processes under measurement: started with pipes, read in big blocks, timed on one clock."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, perf_counter_ns
from types import TracebackType

from installation import Installation

_BLOCK_BYTES = 1024 * 1024
HELLO = b'{"type":"hello","id":"h"}\n'
PROMPT = b'{"type":"prompt","id":"p","message":"go"}\n'


class Process:
    """A program with a pipe at either end. Leaving the block kills it."""

    def __init__(self, argv: Sequence[str], installation: Installation) -> None:
        self.started = perf_counter()
        self._child = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=installation.env,
            cwd=installation.directory,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        self._seen = b""

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._child.kill()
        self._child.communicate()

    @property
    def pid(self) -> int:
        return self._child.pid

    def write(self, data: bytes) -> None:
        os.write(self._in, data)

    def read(self) -> bytes:
        """Return available output, at least one byte; fail at the end."""
        data = os.read(self._out, _BLOCK_BYTES)
        if not data:
            raise EOFError(f"{self._child.args!r} ended without the expected output")
        return data

    def until(self, mark: bytes) -> float:
        """Read up to ``mark`` and return the time it arrived; later output is kept for the next call."""
        while mark not in self._seen:
            # Only the tail can be the beginning of the mark.
            self._seen = self._seen[-len(mark) :] + self.read()
        now = perf_counter()
        self._seen = self._seen.partition(mark)[2]
        return now

    def line(self) -> bytes:
        """Return the next line; later output is kept for the next call."""
        while b"\n" not in self._seen:
            self._seen += self.read()
        line, _, self._seen = self._seen.partition(b"\n")
        return line

    def ended(self) -> float:
        """Wait for the end and return its time."""
        while os.read(self._out, _BLOCK_BYTES):
            pass
        self._child.wait()
        return perf_counter()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process with all its threads."""
    tasks = Path(f"/proc/{pid}/task")
    return (
        sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
        if os.path.isdir(tasks)
        else 0.0
    )


def rpc(installation: Installation, *flags: str) -> list[str]:
    """Return the command line of `zot rpc`, started as users start it."""
    return [installation.zot, "rpc", *flags]


def streaming_rpc(installation: Installation, url: str, api: str = "anthropic") -> list[str]:
    """Return the command line of a `zot rpc` whose model is at ``url`` and speaks ``api``."""
    provider = {"responses": "openai", "chat": "openai"}.get(api, api)
    return rpc(installation, "--provider", provider, "--api", api, "--base-url", url)


def telling_host(installation: Installation, url: str) -> list[str]:
    """Return the command line of a `zot host` that emits events, and whose model is at ``url``."""
    flags = ["--single-request", "false", "--events", "--provider", "anthropic", "--base-url", url]
    return [installation.zot, "host", *flags]


def request() -> bytes:
    """Return a request to `zot host` in a session of its own."""
    return b'{"request_id":"r","session_id":"%d","prompt":"go"}\n' % perf_counter_ns()
