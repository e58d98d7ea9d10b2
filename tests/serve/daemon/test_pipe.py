"""The pipe of Windows, as far as it can be tried elsewhere: what the event loop is asked for, and who is served."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, running
from zot.errors import ConfigError, DaemonRunning
from zot.serve.daemon.audit import Identity
from zot.serve.daemon.sockets import LocalWire
from zot.serve.pipe import listen_at_pipe

NAME = r"\\.\pipe\zeroclaw-0123"


class Servers:
    """What a proactor loop would return."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class PipeLoop(asyncio.SelectorEventLoop):
    """An event loop with pipes: each is a pair of sockets, of which the test has the other end."""

    def __init__(self, problem: OSError | None = None) -> None:
        super().__init__()
        self.problem = problem
        self.asked: list[str] = []
        self.server = Servers()
        self.factory: Callable[[], Any] = lambda: None

    async def start_serving_pipe(self, factory: Callable[[], Any], address: str) -> list[Servers]:
        if self.problem is not None:
            raise self.problem
        self.asked.append(address)
        self.factory = factory
        return [self.server]


class PipeTransport(asyncio.Transport):
    """One end of a pipe: there is no socket in it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_cut

    def abort(self) -> None:
        self.is_cut = True


def conversation(tmp_path: Path, loop: PipeLoop) -> tuple[dict[str, Any], str]:
    """Return how a client at the pipe is answered, and what it is called where all are listed."""

    async def talk() -> tuple[dict[str, Any], str]:
        async with running(tmp_path) as service:
            await listen_at_pipe(service.daemon, NAME)
            ours, theirs = socket.socketpair()
            await loop.create_connection(loop.factory, sock=theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
            writer.write(b'{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":1},"id":1}\n')
            answer = json.loads(await reader.readuntil(b"\n"))
            label = service.daemon.connections[0].label
            service.daemon.stop()
            writer.close()
            return answer, label

    try:
        return loop.run_until_complete(talk())
    finally:
        loop.close()


def test_whoever_comes_to_the_pipe_is_served_like_anybody_at_the_socket(tmp_path: Path) -> None:
    loop = PipeLoop()
    answer, label = conversation(tmp_path, loop)
    assert (answer["result"]["protocolVersion"], label) == (1, "pipe:local")
    assert loop.asked == [NAME]
    assert loop.server.is_closed


def test_a_crowd_at_the_pipe_is_told_so_and_leaves_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.serve.daemon.daemon.MAX_CLIENTS", 0)
    error = {"code": -32004, "message": "there are too many clients; try again later"}
    loop = PipeLoop()

    async def come() -> bytes:
        async with running(tmp_path) as service:
            await listen_at_pipe(service.daemon, NAME)
            ours, theirs = socket.socketpair()
            await loop.create_connection(loop.factory, sock=theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
            async with asyncio.timeout(PATIENCE_S):
                told = await reader.read()
            writer.close()
            return told

    try:
        told = loop.run_until_complete(come())
    finally:
        loop.close()
    assert json.loads(told) == {"jsonrpc": "2.0", "id": None, "error": error}
    noted = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    assert [(one["transport"], one["outcome"]) for one in noted if one["event"] == "refused"] == [("pipe", "clients")]


async def test_who_says_nothing_more_at_the_pipe_has_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        protocol = LocalWire(lambda wire: service.daemon.admit(wire, Identity("pipe"), "pipe:local"))
        protocol.connection_made(PipeTransport())
        assert len(service.daemon.connections) == 1
        assert not protocol.eof_received()  # Then the transport closes itself.
        protocol.connection_lost(None)
        assert service.daemon.connections == ()


def test_a_pipe_that_somebody_else_has_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(DaemonRunning, match="another process has the pipe"):
        conversation(tmp_path, PipeLoop(PermissionError(13, "Access is denied")))


async def test_elsewhere_there_are_no_pipes(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        with pytest.raises(ConfigError, match="Windows only"):
            await listen_at_pipe(service.daemon, NAME)
