"""The acceptor admits all clients, also when the process is out of descriptors for a while."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from daemons import PATIENCE_S
from harness import limited
from zot.serve.daemon.sockets import Acceptor, client_limit


class Greeter(asyncio.Protocol):
    """Sends a word to each client, and ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(256)
    return listener


async def greeting(client: socket.socket) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.get_running_loop().sock_recv(client, 100)


def come(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    client.connect(str(path))
    return client


async def test_more_simultaneous_connections_than_one_batch_are_all_accepted(tmp_path: Path) -> None:
    acceptor = Acceptor(listening(tmp_path / "s"), Greeter)
    clients = [come(tmp_path / "s") for _ in range(150)]
    assert {await greeting(client) for client in clients} == {b"hello"}
    for client in clients:
        client.close()
    acceptor.close()
    acceptor.close()
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(tmp_path / "s"))


async def test_without_descriptors_clients_wait_in_line_and_the_log_has_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    acceptor = Acceptor(listening(tmp_path / "s"), Greeter)
    clients = [come(tmp_path / "s") for _ in range(5)]
    lowest = os.dup(0)
    os.close(lowest)
    with caplog.at_level(logging.WARNING), limited(lowest):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):  # Long enough to try three times.
                await asyncio.get_running_loop().sock_recv(clients[0], 100)
    assert caplog.messages == ["connections cannot be accepted for now: Too many open files"]
    assert {await greeting(client) for client in clients} == {b"hello"}
    for client in clients:
        client.close()
    acceptor.close()


async def test_an_acceptor_that_waits_for_descriptors_can_be_closed(tmp_path: Path) -> None:
    acceptor = Acceptor(listening(tmp_path / "s"), Greeter)
    client = come(tmp_path / "s")
    lowest = os.dup(0)
    os.close(lowest)
    with limited(lowest):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        acceptor.close()
    with pytest.raises(ConnectionResetError):
        await greeting(client)
    client.close()


@pytest.mark.parametrize("is_exhausted", [False, True])
async def test_a_paused_acceptor_leaves_clients_in_line_and_resumes(tmp_path: Path, is_exhausted: bool) -> None:
    acceptor = Acceptor(listening(tmp_path / "s"), Greeter)
    clients = [come(tmp_path / "s")]
    lowest = os.dup(0)
    os.close(lowest)
    with limited(lowest) if is_exhausted else nullcontext():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        acceptor.pause()
        acceptor.pause()
    clients.append(come(tmp_path / "s"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.get_running_loop().sock_recv(clients[1], 100)
    acceptor.resume()
    acceptor.resume()
    assert [await greeting(client) for client in clients] == [b"hello", b"hello"]
    acceptor.close()
    acceptor.resume()  # It is closed, and stays so.
    for client in clients:
        client.close()


def test_clients_leave_descriptors_for_their_requests() -> None:
    with limited(400):
        assert (client_limit(1024), client_limit(100)) == (200, 100)
    with limited(1000):
        assert client_limit(1024) == 744
