"""Connections that are used again, and those that must not be."""

from __future__ import annotations

import asyncio

import pytest
from local_server import OK, Peer, answering, body_of, fetch, hanging_up_after, networked, post, serving

from zot.errors import ConnectionFailed
from zot.providers.http import MAX_IDLE_PER_ORIGIN

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nsum: 1\r\n\r\n"


async def test_a_connection_is_used_again() -> None:
    async with serving(answering(OK, CHUNKED, OK)) as server, networked() as transport:
        assert [await fetch(transport, server.url()) for _ in range(3)] == [b"ok", b"hello world", b"ok"]
        assert len(server.peers) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad",
    ],
    ids=["connection: close", "HTTP/1.0", "leftover bytes"],
)
async def test_a_connection_is_not_used_again_after(answer: bytes) -> None:
    async with serving(answering(answer)) as server, networked() as transport:
        assert await fetch(transport, server.url()) == b"ok"
        await (await server.peer()).gone()
        assert await fetch(transport, server.url()) == b"ok"
        assert len(server.peers) == 2


async def test_a_connection_is_not_used_again_when_the_body_was_not_read() -> None:
    async with serving(answering(OK)) as server, networked() as transport:
        (await post(transport, server.url())).close()
        await (await server.peer()).gone()
        assert await fetch(transport, server.url()) == b"ok"
        assert len(server.peers) == 2


async def test_connections_in_use_are_not_shared_and_few_are_kept() -> None:
    async def play(peer: Peer) -> None:
        while True:
            await peer.answer(OK)

    many = MAX_IDLE_PER_ORIGIN + 2
    async with serving(play) as server, networked() as transport:
        responses = [await post(transport, server.url()) for _ in range(many)]
        assert len(server.peers) == many
        for response in responses:
            assert await body_of(response) == b"ok"
        again = [await post(transport, server.url()) for _ in range(many)]
        assert len(server.peers) == many + 2
        for oldest in server.peers[:2]:
            await oldest.over.wait()
        assert [peer.over.is_set() for peer in server.peers[2:many]] == [False] * MAX_IDLE_PER_ORIGIN
        for response in again:
            response.close()


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with serving(answering(OK)) as server, networked(idle_s=0.01) as transport:
        assert await fetch(transport, server.url()) == b"ok"
        await (await server.peer()).gone()


async def test_a_connection_in_use_is_not_idle_however_long_it_takes() -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(OK)
        await peer.answer(OK[:-1])
        await asyncio.sleep(0.05)  # longer than a connection may be idle
        await peer.send(OK[-1:])
        await peer.gone()

    async with serving(play) as server, networked(idle_s=0.02) as transport:
        assert [await fetch(transport, server.url()) for _ in range(2)] == [b"ok", b"ok"]


async def test_unexpected_bytes_end_an_idle_connection() -> None:
    fetched = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.answer(OK)
        await fetched.wait()
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await peer.gone()

    async with serving(play) as server, networked() as transport:
        assert await fetch(transport, server.url()) == b"ok"
        fetched.set()
        await (await server.peer()).gone()
        assert await fetch(transport, server.url()) == b"ok"
        assert len(server.peers) == 2


async def test_a_request_that_meets_a_stale_connection_is_sent_again_unseen() -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(OK)
        await peer.request()

    async with serving(play) as server, networked() as transport:
        assert await fetch(transport, server.url()) == b"ok"
        assert await fetch(transport, server.url(), b"again") == b"ok"
        assert [peer.bodies for peer in server.peers] == [[b"{}", b"again"], [b"again"]]


async def test_a_request_is_not_sent_again_once_an_answer_has_begun() -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(OK)
        await peer.answer(b"H")

    async with serving(play) as server, networked() as transport:
        assert await fetch(transport, server.url()) == b"ok"
        with pytest.raises(ConnectionFailed, match="before an answer"):
            await fetch(transport, server.url())
        assert len(server.peers) == 1


async def test_a_request_on_a_fresh_connection_is_not_sent_again() -> None:
    async with serving(hanging_up_after(b"")) as server, networked() as transport:
        with pytest.raises(ConnectionFailed, match="before an answer"):
            await fetch(transport, server.url())
        assert len(server.peers) == 1


async def test_a_connection_whose_request_was_not_read_is_not_used_again() -> None:
    async def play(peer: Peer) -> None:
        await peer.send(OK)
        await asyncio.Event().wait()

    async with serving(play) as server, networked() as transport:
        for _ in range(2):
            assert await fetch(transport, server.url(), bytes(30_000_000)) == b"ok"
        assert len(server.peers) == 2
