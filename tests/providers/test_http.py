"""Requests and answers: the network transport in conversation with servers on the loopback interface."""

from __future__ import annotations

import asyncio
import socket

import pytest
from local_server import OK, Peer, answering, body_of, fetch, hanging_up_after, headers_of, networked, post, serving

from zot.errors import BadRequest, ConnectionFailed, StreamBroken
from zot.providers.base import Deadlines, HttpRequest, Transport
from zot.providers.http import HttpTransport
from zot.version import __version__

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nsum: 1\r\n\r\n"


async def test_a_request_is_valid_http() -> None:
    async with serving(answering(OK)) as server, networked() as transport:
        response = await post(transport, server.url("/v1/x?a=b#c"), b"body", headers={"x-api-key": "k"})
        assert (response.status, response.headers) == (200, {"content-length": "2"})
        assert await body_of(response) == b"ok"
        peer = await server.peer()
        assert peer.heads[0].split("\r\n")[0] == "POST /v1/x?a=b HTTP/1.1"
        assert peer.bodies == [b"body"]
        assert headers_of(peer.heads[0]) == {
            "host": f"127.0.0.1:{server.port}",
            "user-agent": f"zot/{__version__}",
            "x-api-key": "k",
            "accept-encoding": "identity",
            "connection": "keep-alive",
            "content-length": "4",
        }


async def test_the_caller_may_name_itself_but_not_change_the_framing() -> None:
    headers = {"user-agent": "me", "transfer-encoding": "chunked", "content-length": "9", "connection": "close"}
    async with serving(answering(OK)) as server, networked() as transport:
        await body_of(await post(transport, server.url(), b"{}", headers=headers))
        sent = headers_of((await server.peer()).heads[0])
        assert {name: sent.get(name) for name in headers} == {
            "user-agent": "me",
            "transfer-encoding": None,
            "content-length": "2",
            "connection": "keep-alive",
        }


@pytest.mark.parametrize("value", ["sk-secret\n", "sk-secret\r\nx: y", "sk-secret\0", "sk-secret–"])
async def test_a_header_that_cannot_be_sent_is_refused_without_showing_it(value: str) -> None:
    async with serving(answering(OK)) as server, networked() as transport:
        with pytest.raises(BadRequest, match="'authorization'") as refused:
            await post(transport, server.url(), headers={"authorization": value})
        assert "secret" not in str(refused.value)
        assert server.peers == []


async def test_a_get_without_body_announces_none_and_a_head_gets_none() -> None:
    async with serving(answering(OK)) as server, networked() as transport:
        await body_of(await post(transport, server.url(), b"", method="GET"))
        assert "content-length" not in headers_of(server.peers[0].heads[0])
    head_only = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
    async with serving(head_only) as server, networked() as transport:
        assert await body_of(await post(transport, server.url(), b"", method="HEAD")) == b""


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"ok"),
        (CHUNKED, b"hello world"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
    ids=["content-length", "chunked", "1xx first", "204"],
)
async def test_an_answer_may_come_whole_or_byte_by_byte_on_one_connection(answer: bytes, body: bytes) -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(answer)
        await peer.request()
        for byte in answer:
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        await peer.gone()

    async with serving(play) as server, networked() as transport:
        assert await fetch(transport, server.url()) == body
        assert await fetch(transport, server.url()) == body
        assert len(server.peers) == 1


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with serving(hanging_up_after(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as server, networked() as transport:
        assert await fetch(transport, server.url()) == b"all of it"
        assert await fetch(transport, server.url()) == b"all of it"
        assert len(server.peers) == 2


async def test_bytes_that_arrived_together_are_read_together() -> None:
    chunks = b"".join(b"5\r\nab%03d\r\n" % number for number in range(1000))
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with serving(answering(answer)) as server, networked() as transport:
        response = await post(transport, server.url())
        batches = []
        while data := await response.read():
            batches.append(data)
        assert b"".join(batches) == b"".join(b"ab%03d" % number for number in range(1000))
        assert len(batches) < 10


async def test_after_its_end_an_answer_stays_ended_and_after_an_early_close_it_is_broken() -> None:
    async with serving(answering(OK, OK)) as server, networked() as transport:
        response = await post(transport, server.url())
        assert [await response.read() for _ in range(3)] == [b"ok", b"", b""]
        response.close()
        assert await response.read() == b""
        unread = await post(transport, server.url())
        unread.close()
        with pytest.raises(StreamBroken):
            await unread.read()


async def test_every_cut_is_noticed() -> None:
    for at in range(len(CHUNKED)):
        async with serving(hanging_up_after(CHUNKED[:at])) as server, networked() as transport:
            with pytest.raises((StreamBroken, ConnectionFailed)):
                await fetch(transport, server.url())
            assert len(server.peers) == 1


async def test_a_cut_body_gives_what_arrived_and_then_fails_for_good() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
    async with serving(hanging_up_after(answer)) as server, networked() as transport:
        response = await post(transport, server.url())
        assert await response.read() == b"half"
        for _ in range(2):
            with pytest.raises(StreamBroken, match="cut short"):
                await response.read()
        response.close()


@pytest.mark.parametrize(
    ("sent", "error"),
    [(b"", ConnectionFailed), (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", StreamBroken)],
    ids=["before an answer", "in the body"],
)
async def test_a_reset_is_classified_by_when_it_comes(sent: bytes, error: type[Exception]) -> None:
    head_read = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.answer(sent)
        if sent:
            await head_read.wait()
        peer.reset()

    async def converse(transport: HttpTransport, url: str) -> None:
        response = await post(transport, url)
        head_read.set()
        await body_of(response)

    async with serving(play) as server, networked() as transport:
        with pytest.raises(error, match=f"127.0.0.1:{server.port}"):
            await converse(transport, server.url())


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\nx"],
    ids=["another protocol", "a huge header", "half a head"],
)
async def test_an_invalid_answer_is_refused_and_the_connection_closed(answer: bytes) -> None:
    async with serving(hanging_up_after(answer)) as server, networked() as transport:
        with pytest.raises((StreamBroken, ConnectionFailed), match=f"127.0.0.1:{server.port}"):
            await post(transport, server.url())
        await (await server.peer()).gone()


async def test_a_malformed_chunk_closes_the_connection_and_loses_nothing_before_it() -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"
    async with serving(answering(answer)) as server, networked() as transport:
        response = await post(transport, server.url())
        assert await response.read() == b"abc"
        await (await server.peer()).gone()
        with pytest.raises(StreamBroken, match="not valid HTTP"):
            await response.read()
        response.close()


async def test_the_wait_for_an_answer_begins_when_the_request_is_written() -> None:
    async def play(peer: Peer) -> None:
        for _ in range(15):
            await peer.reader.readexactly(2_000_000)
            await asyncio.sleep(0.04)  # the slowness of the network is what this is about
        await peer.send(OK)
        await peer.gone()

    async with serving(play) as server, networked() as transport:
        response = await post(transport, server.url(), bytes(30_000_000), deadlines=Deadlines(headers_s=0.5))
        assert await body_of(response) == b"ok"


async def test_an_answer_may_come_before_the_request_is_read() -> None:
    async def play(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbig")
        await asyncio.Event().wait()

    async with serving(play) as server, networked() as transport:
        response = await post(transport, server.url(), bytes(30_000_000))
        assert (response.status, await body_of(response)) == (413, b"big")


async def test_a_refused_connection_names_the_address_and_nothing_secret() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with networked() as transport:
            with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port} was refused") as refused:
                await post(transport, f"http://127.0.0.1:{port}/p?key=secret", headers={"x-api-key": "secret"})
            assert "secret" not in str(refused.value)


async def test_an_unknown_host_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_such_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_such_name)
    async with networked() as transport:
        with pytest.raises(ConnectionFailed, match=r"nowhere\.invalid:80 cannot be resolved"):
            await post(transport, "http://nowhere.invalid/")


async def test_a_host_with_several_addresses_is_reached_at_the_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    async def two_addresses(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", unused.getsockname()[1])),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
        ]

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with serving(answering(OK)) as server, networked() as transport:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two_addresses)
            assert await fetch(transport, "http://two.invalid/") == b"ok"


async def test_it_implements_the_transport_of_providers() -> None:
    async with serving(answering(OK)) as server:
        transport: Transport = HttpTransport({})
        response = await transport.send(HttpRequest(server.url(), {}, b"{}"), Deadlines())
        assert await response.read() == b"ok"
        response.close()
        await transport.close()
