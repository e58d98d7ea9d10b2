"""Waits that end: deadlines, cancellation, closing, and readers too slow for the server."""

from __future__ import annotations

import asyncio

import pytest
from local_server import OK, Peer, answering, fetch, networked, post, serving

from zot.errors import ConnectionFailed, Stalled, StreamBroken
from zot.providers.base import Deadlines
from zot.providers.http import PAUSE_BYTES, READ_BYTES, HttpTransport

ONE_READ = 256 * 1024
#: What the system itself may hold between the two ends, at most.
KERNEL_BYTES = 16 * 1024 * 1024


async def test_a_slow_reader_slows_the_server_down() -> None:
    size = 50 * 1024 * 1024
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)
    async with serving(answering(answer, OK)) as server, networked() as transport:
        response = await post(transport, server.url())
        for _ in range(2000):  # time for the network to deliver everything, if there were a reader
            await asyncio.sleep(0)
        unsent = server.peers[0].writer.transport.get_write_buffer_size()
        assert unsent > size - PAUSE_BYTES - KERNEL_BYTES
        sizes = []
        while data := await response.read():
            sizes.append(len(data))
        assert sum(sizes) == size
        assert max(sizes) <= READ_BYTES + ONE_READ
        assert await fetch(transport, server.url()) == b"ok"
        assert len(server.peers) == 1


async def test_no_answer_within_the_deadline_is_a_stall() -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 O")
        await peer.gone()

    async with serving(play) as server, networked() as transport:
        with pytest.raises(Stalled, match=rf"127.0.0.1:{server.port} within 0.02 s"):
            await post(transport, server.url(), deadlines=Deadlines(headers_s=0.02))
        await (await server.peer()).gone()


async def test_a_request_that_is_not_read_within_the_deadline_is_a_stall() -> None:
    async def play(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket transport reads, too
        await asyncio.Event().wait()

    async with serving(play) as server, networked() as transport:
        with pytest.raises(Stalled):
            await post(transport, server.url(), bytes(30_000_000), deadlines=Deadlines(headers_s=0.05))


async def test_the_time_to_write_the_request_is_not_added_to_the_deadline() -> None:
    async def play(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.16)  # beyond the deadline, within twice the deadline
        await peer.send(OK)

    async with serving(play) as server, networked() as transport:
        with pytest.raises(Stalled):
            await post(transport, server.url(), bytes(8_000_000), deadlines=Deadlines(headers_s=0.1))


async def test_a_server_that_stops_talking_and_reading_is_noticed_at_once() -> None:
    async def play(peer: Peer) -> None:
        peer.writer.write_eof()
        await asyncio.Event().wait()

    async with serving(play) as server, networked() as transport:
        with pytest.raises(ConnectionFailed, match="closed before an answer"):
            await post(transport, server.url(), bytes(30_000_000))


async def test_cancelling_the_wait_for_an_answer_closes_the_connection() -> None:
    asked = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.request()
        asked.set()
        await peer.gone()

    async with serving(play) as server, networked() as transport:
        sending = asyncio.create_task(post(transport, server.url()))
        await asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await (await server.peer()).gone()


async def test_a_cancelled_read_can_be_repeated_and_closing_closes_the_connection() -> None:
    more = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")
        await more.wait()
        await peer.send(b"half")
        await peer.gone()

    async with serving(play) as server, networked() as transport:
        response = await post(transport, server.url())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await response.read()
        more.set()
        assert await response.read() == b"half"
        reading = asyncio.create_task(response.read())
        await asyncio.sleep(0)
        response.close()
        with pytest.raises(StreamBroken):
            await reading
        await (await server.peer()).gone()


async def test_closing_the_transport_ends_what_is_idle_and_what_is_not() -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(OK)
        await peer.gone()

    async with serving(play) as server:
        transport = HttpTransport({})
        unread = await post(transport, server.url())
        assert await fetch(transport, server.url()) == b"ok"
        await transport.close()
        for number in (0, 1):
            await (await server.peer(number)).gone()
        unread.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            await post(transport, server.url())
        await transport.close()


async def test_closing_the_transport_ends_a_waiting_request() -> None:
    asked = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.answer(OK)
        await peer.request()
        asked.set()
        await peer.gone()

    async with serving(play) as server, networked() as transport:
        assert await fetch(transport, server.url()) == b"ok"
        sending = asyncio.create_task(post(transport, server.url()))
        await asked.wait()
        await transport.close()
        with pytest.raises(ConnectionFailed):
            await sending
        assert len(server.peers) == 1


async def test_a_name_lookup_counts_against_the_connect_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_reply(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_reply)
    async with networked() as transport:
        with pytest.raises(ConnectionFailed, match=r"slow\.invalid:80 within 0\.02 s"):
            await post(transport, "http://slow.invalid/", deadlines=Deadlines(connect_s=0.02))


async def test_a_server_that_hangs_up_before_the_request_is_noticed_at_once() -> None:
    async def play(peer: Peer) -> None:
        peer.reset()

    async with serving(play) as server, networked() as transport:
        with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{server.port}"):
            await post(transport, server.url())
