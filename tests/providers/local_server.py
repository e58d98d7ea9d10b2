"""A server on the loopback interface whose every byte the test decides, and the shorthand to talk to it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from zot.providers.base import Deadlines, HttpRequest, HttpResponse
from zot.providers.http import HttpTransport

#: Only a test that hangs takes longer, however busy the machine is.
BOUND_S = 60.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.over = asyncio.Event()
        self._reading = asyncio.Lock()

    async def request(self) -> None:
        """Read one whole request into ``heads`` and ``bodies``."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        length = headers_of(head).get("content-length", "0")
        self.bodies.append(await self.reader.readexactly(int(length)))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, data: bytes) -> None:
        """Read one request and answer it."""
        await self.request()
        await self.send(data)

    async def gone(self) -> None:
        """Return when the client has closed its end. The part that is played and the test may both wait."""
        async with self._reading:
            with suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass

    def reset(self) -> None:
        """Close so that the client sees a reset, not an orderly end."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Play = Callable[[Peer], Awaitable[None]]


class LocalServer:
    """A running server as the test sees it: its port and its connections, in order."""

    def __init__(self, play: Play) -> None:
        self.port = 0
        self.peers: list[Peer] = []
        self._play = play
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived = asyncio.Condition()

    def url(self, path: str = "/", *, scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def peer(self, number: int = 0) -> Peer:
        """Wait for the connection with this number."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.peers) > number)
        return self.peers[number]

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._converse(Peer(reader, writer))))

    async def _converse(self, peer: Peer) -> None:
        async with self._arrived:
            self.peers.append(peer)
            self._arrived.notify_all()
        try:
            await self._play(peer)
        finally:
            peer.writer.close()
            peer.over.set()

    async def stop(self) -> None:
        """End all conversations; a failure inside one fails the test."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers:
            if not peer.writer.is_closing():  # The TLS transport of early Pythons 3.11 cannot be aborted once closed.
                peer.writer.transport.abort()
        failures = [result for result in results if isinstance(result, Exception)]
        unexpected = [failure for failure in failures if not isinstance(failure, ConnectionError | EOFError)]
        assert unexpected == []


def answering(*answers: bytes) -> Play:
    """Answer the requests of each connection with these, in order, then wait until it ends."""

    async def play(peer: Peer) -> None:
        for answer in answers:
            await peer.answer(answer)
        await peer.gone()

    return play


def hanging_up_after(data: bytes) -> Play:
    """Answer one request with these bytes and close."""

    async def play(peer: Peer) -> None:
        await peer.answer(data)

    return play


@asynccontextmanager
async def serving(play: Play, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[LocalServer]:
    """Play the same part on every connection. Everything inside is bounded in time."""
    local = LocalServer(play)
    async with asyncio.timeout(BOUND_S):
        listener = await asyncio.start_server(local.accept, "127.0.0.1", 0, ssl=tls)
        local.port = listener.sockets[0].getsockname()[1]
        try:
            yield local
        finally:
            listener.close()
            await local.stop()


@asynccontextmanager
async def networked(env: Mapping[str, str] | None = None, *, idle_s: float = 60.0) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(env or {}, idle_s=idle_s)
    try:
        yield transport
    finally:
        await transport.close()


async def post(
    transport: HttpTransport,
    url: str,
    body: bytes = b"{}",
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    deadlines: Deadlines | None = None,
) -> HttpResponse:
    return await transport.send(HttpRequest(url, headers or {}, body, method), deadlines or Deadlines())


async def body_of(response: HttpResponse) -> bytes:
    """Read to the proper end."""
    parts = []
    while data := await response.read():
        parts.append(data)
    return b"".join(parts)


async def fetch(transport: HttpTransport, url: str, body: bytes = b"{}") -> bytes:
    return await body_of(await post(transport, url, body))


def headers_of(head: str) -> dict[str, str]:
    lines = head.split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
