"""A daemon hands its endpoint over to the next: no client is refused, and there is never more than one owner."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from child_process import Child
from harness import eventually
from zot.client.endpoint import owner
from zot.errors import DaemonRunning
from zot.serve.daemon.claim import BACKLOG, Claim, claim_endpoint, hand_over, take_over

#: From Python 3.13 on a Unix server of asyncio removes the socket's file when it closes, unless told not to.
KEEPING_ITS_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        yield str(Path(directory) / "d.sock")


def asked(connection: socket.socket) -> list[dict[str, Any]]:
    """Return the two lines with which a successor asks."""
    data = b""
    while data.count(b"\n") < 2:
        data += connection.recv(1 << 16)
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def give(
    path: str, answer: Callable[[Claim, socket.socket], str], stopping: bytes = b"{}"
) -> Callable[[Callable[[], None]], str]:
    """Return the program of a child that owns the endpoint and answers the first request for it."""

    def work(wait: Callable[[], None]) -> str:
        claim = claim_endpoint(path)
        wait()
        connection, _ = claim.listener.accept()
        lines = asked(connection)
        assert [line["method"] for line in lines] == ["initialize", "daemon/stop"]
        assert lines[1]["params"] == {"handover": True}
        connection.sendall(b'{"jsonrpc":"2.0","result":{"protocolVersion":1},"id":1}\n')
        connection.sendall(b'{"jsonrpc":"2.0","result":%b,"id":2}\n' % stopping)
        connection.setblocking(False)  # as event loops have it
        return answer(claim, connection)

    return work


def test_the_successor_gets_the_socket_the_lock_and_all_waiting_connections(path: str) -> None:
    def answer(claim: Claim, connection: socket.socket) -> str:
        claim.others.append(elsewhere)
        told = hand_over(claim, connection.fileno())
        claim.release()  # It has nothing to release any more.
        return f"{told} {claim.lock} {len(claim.others)}"

    elsewhere = socket.create_server(("127.0.0.1", 0))
    place = elsewhere.getsockname()
    with elsewhere, Child(give(path, answer)) as old:
        elsewhere.close()
        assert eventually(lambda: owner(path) == old.pid)
        old.resume()
        claimed = take_over(path)
        assert claimed is not None
        assert old.report() == "True -1 0"
        assert owner(path) == os.getpid()
        with socket.socket(socket.AF_UNIX) as client:  # not accepted yet, and not refused
            client.connect(path)
            old.kill()
            served, _ = claimed.listener.accept()
            served.sendall(b"hi")
            assert client.recv(2) == b"hi"
            served.close()
        with socket.create_connection(place) as client:
            served, _ = claimed.others[0].accept()
            served.close()
        with pytest.raises(DaemonRunning) as problem:
            claim_endpoint(path)
        assert problem.value.pid == os.getpid()
        claimed.release()
        assert not os.path.exists(path)
        assert owner(path) is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)


def test_no_connection_attempt_is_refused_while_daemons_replace_each_other(path: str) -> None:
    first = claim_endpoint(path)
    stop, refused, served = threading.Event(), [], []

    def knock() -> None:
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(path)
                except OSError as problem:
                    refused.append(problem)
                served.append(1)

    def old(claim: Claim) -> None:
        while True:
            connection, _ = claim.listener.accept()
            with connection:
                if connection.recv(1, socket.MSG_PEEK):
                    asked(connection)
                    if hand_over(claim, connection.fileno()):
                        return

    knocking = threading.Thread(target=knock)
    knocking.start()
    claim = first
    for _ in range(20):
        serving = threading.Thread(target=old, args=(claim,))
        serving.start()
        taken = take_over(path)
        serving.join()
        assert taken is not None
        claim = taken
    stop.set()
    claim.listener.settimeout(0.01)
    while knocking.is_alive():  # It may be waiting for room in the backlog.
        with suppress(TimeoutError):
            claim.listener.accept()[0].close()
    knocking.join()
    claim.release()
    assert refused == []
    assert len(served) > 20


async def test_a_daemon_with_an_event_loop_hands_over_when_it_has_wound_down(path: str) -> None:
    claim = claim_endpoint(path)
    handed = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in (1, 2):
            await reader.readuntil()
            writer.write(b'{"jsonrpc":"2.0","result":{},"id":%d}\n' % number)
        server.close()
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one that reads, too
        given = await asyncio.to_thread(hand_over, claim, writer.get_extra_info("socket").fileno())
        writer.close()
        handed.set_result(given)

    server = await asyncio.start_unix_server(serve, sock=claim.listener, backlog=BACKLOG, **KEEPING_ITS_FILE)
    taken = await asyncio.to_thread(take_over, path)
    assert await handed
    assert taken is not None

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hi\n")
        writer.close()

    reader, writer = await asyncio.open_unix_connection(path)  # before the next one accepts
    following = await asyncio.start_unix_server(greet, sock=taken.listener, backlog=BACKLOG, **KEEPING_ITS_FILE)
    assert await reader.readuntil() == b"hi\n"
    writer.close()
    following.close()
    taken.release()
    assert not os.path.exists(path)


def test_a_refusal_to_hand_over_is_reported(path: str) -> None:
    claim = claim_endpoint(path)

    def refuse() -> None:
        connection, _ = claim.listener.accept()
        with connection:
            asked(connection)
            connection.sendall(b'{"jsonrpc":"2.0","error":{"code":-32601,"message":"no such method"},"id":2}\n')
            connection.recv(1)

    serving = threading.Thread(target=refuse)
    serving.start()
    with pytest.raises(DaemonRunning, match=r"does not hand over: no such method"):
        take_over(path)
    serving.join()
    claim.release()


def test_a_silent_daemon_is_given_up_at_the_deadline(path: str) -> None:
    claim = claim_endpoint(path)
    with pytest.raises(DaemonRunning, match=r"did not hand over within 0\.05 s") as problem:
        take_over(path, within_s=0.05)
    assert problem.value.pid == os.getpid()
    claim.release()


def test_a_daemon_that_drains_its_runs_gets_that_much_more_time(path: str) -> None:
    def stay(_: Claim, connection: socket.socket) -> str:
        select.select([connection], [], [])
        return f"{connection.recv(1)!r}"

    with Child(give(path, stay, b'{"stopping":true,"graceS":0.25}')) as old:
        assert eventually(lambda: owner(path) == old.pid)
        old.resume()
        with pytest.raises(DaemonRunning, match=r"did not hand over within 1\.25 s"):
            take_over(path, within_s=1)
        assert old.report() == "b''"


def test_the_drain_may_take_a_year(path: str) -> None:
    def answer(claim: Claim, connection: socket.socket) -> str:
        return f"{hand_over(claim, connection.fileno())}"

    with Child(give(path, answer, b'{"stopping":true,"graceS":31622400.0}')) as old:
        assert eventually(lambda: owner(path) == old.pid)
        old.resume()
        claimed = take_over(path)
        assert claimed is not None
        assert old.report() == "True"
        claimed.release()


def test_without_a_daemon_a_takeover_is_refused(path: str) -> None:
    assert take_over(path) is None
    with Child(give(path, lambda *_: "")) as dead:
        assert eventually(lambda: owner(path) == dead.pid)
        dead.kill()
    assert take_over(path) is None
    claim_endpoint(path).release()


def test_a_daemon_that_dies_during_the_hand_over_leaves_the_endpoint_free(path: str) -> None:
    def die(claim: Claim, connection: socket.socket) -> str:
        offer = b'{"jsonrpc":"2.0","method":"daemon/handover","params":{"step":"offer"}}\n'
        socket.send_fds(connection, [offer], claim.descriptors)
        os._exit(1)

    with Child(give(path, die)) as old:
        assert eventually(lambda: owner(path) == old.pid)
        old.resume()
        assert take_over(path) is None
        old.kill()
    claim_endpoint(path).release()


@pytest.mark.parametrize("says", [b"", b'{"method":"daemon/handover","params":{"step":"no"}}\nnonsense\n'])
def test_a_successor_that_does_not_accept_gets_nothing(path: str, says: bytes) -> None:
    claim = claim_endpoint(path)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(says)
        assert not hand_over(claim, ours.fileno(), within_s=0.05)
        theirs.close()
        assert not hand_over(claim, ours.fileno())
    assert owner(path) == os.getpid()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        claim.listener.accept()[0].close()
    claim.release()
    assert owner(path) is None


def test_a_busy_daemon_is_given_up_at_the_deadline(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(path)
            with pytest.raises(DaemonRunning, match=r"did not hand over within 0\.05 s"):
                take_over(path, within_s=0.05)
