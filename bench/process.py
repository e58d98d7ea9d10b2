"""Processes under measurement: started with pipes, read in big blocks, timed on one clock."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from time import perf_counter, perf_counter_ns
from types import TracebackType

from subject import Subject

_BLOCK_BYTES = 1024 * 1024
HELLO = b'{"type":"hello","id":"h"}\n'
PROMPT = b'{"type":"prompt","id":"p","message":"go"}\n'


class Process:
    """A program with a pipe at either end. Leaving the block kills it."""

    def __init__(self, argv: Sequence[str], subject: Subject) -> None:
        self.started = perf_counter()
        self._child = subprocess.Popen(
            argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=subject.env, cwd=subject.directory
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
        """Return what is there, at least one byte; fail if it has ended."""
        data = os.read(self._out, _BLOCK_BYTES)
        if not data:
            raise EOFError(f"{self._child.args!r} ended without the expected output")
        return data

    def until(self, mark: bytes) -> float:
        """Read until ``mark`` has come and return when that was; what comes after it is kept for the next call."""
        while mark not in self._seen:
            # Only the end can be the beginning of the mark.
            self._seen = self._seen[-len(mark) :] + self.read()
        now = perf_counter()
        self._seen = self._seen.partition(mark)[2]
        return now

    def ended(self) -> float:
        """Wait for the end and return when it came."""
        while os.read(self._out, _BLOCK_BYTES):
            pass
        self._child.wait()
        return perf_counter()


def rpc(subject: Subject, *flags: str) -> list[str]:
    """Return the command line of `zot rpc`, started as users start it."""
    return [subject.zot, "rpc", *flags]


def streaming_rpc(subject: Subject, url: str, api: str = "anthropic") -> list[str]:
    """Return the command line of a `zot rpc` whose model is at ``url`` and speaks ``api``."""
    provider = {"responses": "openai", "chat": "openai"}.get(api, api)
    return rpc(subject, "--provider", provider, "--api", api, "--base-url", url)


def telling_host(subject: Subject, url: str) -> list[str]:
    """Return the command line of a `zot host` that tells its events, and whose model is at ``url``."""
    flags = ["--single-request", "false", "--events", "--provider", "anthropic", "--base-url", url]
    return [subject.zot, "host", *flags]


def request() -> bytes:
    """Return a request to `zot host` in a session of its own."""
    return b'{"request_id":"r","session_id":"%d","prompt":"go"}\n' % perf_counter_ns()
