"""The lab's HTTP server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import httptools
import msgspec

from zot.errors import ConfigError
from zot.providers.lab.performance import Broken, Pause, Piece, Plan, Silence
from zot.providers.lab.stage import LabService
from zot.providers.lab.transport import Sleep

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024

_MAX_WAITING = 16
_BATCH_BYTES = 64 * 1024
_LINGER_S = 1.0
_BODYLESS = (204, 304)

log = logging.getLogger(__name__)


class Incoming(msgspec.Struct):
    """A request as far as received."""

    target: str = ""
    headers: dict[str, str] = {}
    body: bytearray = msgspec.field(default_factory=bytearray)
    method: str = ""
    keep_alive: bool = False
    chunked: bool = True


class RequestRefused(Exception):
    """The input is not an acceptable request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Receiver:
    """Parser of requests. Does no I/O."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = Incoming()
        self._head_bytes = 0
        self._in_head = True
        self._done: list[Incoming] = []
        self.wants_continue = False

    def feed(self, data: bytes) -> list[Incoming]:
        """Return the requests that ``data`` completes. Raise RequestRefused if it is not HTTP, or too large."""
        self._done = []
        self._head_bytes += len(data) if self._in_head else 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            raise RequestRefused(400, "lab does not change protocols") from exc
        except httptools.HttpParserCallbackError as exc:
            raise (
                exc.__context__ if isinstance(exc.__context__, RequestRefused) else RequestRefused(400, str(exc))
            ) from exc
        except httptools.HttpParserError as exc:
            raise RequestRefused(400, f"not HTTP: {exc}") from exc
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            raise RequestRefused(431, "the head of the request is too large")
        return self._done

    def on_message_begin(self) -> None:
        self._incoming = Incoming()
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._incoming.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._incoming.method = self._parser.get_method().decode("latin-1")
        self._incoming.keep_alive = self._parser.should_keep_alive()
        self._incoming.chunked = self._parser.get_http_version() == "1.1"
        length = self._incoming.headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise RequestRefused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        self.wants_continue = self._incoming.headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        self._incoming.body += body
        if len(self._incoming.body) > MAX_BODY_BYTES:
            raise RequestRefused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")

    def on_message_complete(self) -> None:
        self._in_head, self.wants_continue = True, False
        self._done.append(self._incoming)


class LabConnection(asyncio.Protocol):
    """Connection of one client, served by a task of ``group``."""

    def __init__(self, service: LabService, sleep: Sleep, group: asyncio.TaskGroup) -> None:
        self._service = service
        self._sleep = sleep
        self._group = group
        self._receiver = Receiver()
        self._requests: asyncio.Queue[Incoming | RequestRefused | None] = asyncio.Queue()
        self._input_ended = asyncio.Event()
        self._writable = asyncio.Event()
        self._timeout: asyncio.Timeout | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writable.set()
        self._group.create_task(_survive(self._run()), name="lab connection")

    def data_received(self, data: bytes) -> None:
        if self._input_ended.is_set():
            return
        try:
            for incoming in self._receiver.feed(data):
                self._requests.put_nowait(incoming)
        except RequestRefused as exc:
            # Later bytes cannot be parsed.
            self._requests.put_nowait(exc)
        if self._receiver.wants_continue and self._requests.empty() and not self._answering:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._receiver.wants_continue = False
        if self._requests.qsize() >= _MAX_WAITING:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._input_ended.set()
        self._requests.put_nowait(None)
        return True  # pending requests are still answered

    def connection_lost(self, exc: Exception | None) -> None:
        self._input_ended.set()
        self._writable.set()
        self._requests.put_nowait(None)
        if self._timeout is not None:
            self._timeout.reschedule(0)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def _run(self) -> None:
        """Answer until the client or the script ends the connection."""
        try:
            async with asyncio.timeout(None) as self._timeout:
                while await self._answer_next():
                    pass
        except TimeoutError:
            pass  # the client has gone
        except BaseException:
            self._transport.abort()
            raise
        finally:
            self._timeout = None
            self._transport.close()

    async def _answer_next(self) -> bool:
        """Answer one request. False if it was the last on this connection."""
        self._answering = False
        match await self._requests.get():
            case None:
                return False
            case RequestRefused(status=status) as refused:
                await self._refuse(status, str(refused))
                return False
            case incoming:
                self._answering = True
                self._transport.resume_reading()
                plan = self._service.answer(incoming.method, incoming.target, incoming.headers, bytes(incoming.body))
                return await _Answer(self, plan, incoming).send() and incoming.keep_alive

    async def _refuse(self, status: int, message: str) -> None:
        """Send an error, then drain the client's input briefly: closing with unread bytes would discard the error."""
        await _Answer(self, self._service.refuse(status, message), Incoming()).send()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        try:
            async with asyncio.timeout(_LINGER_S):
                await self._input_ended.wait()
        except TimeoutError:
            pass

    async def write(self, data: bytes) -> None:
        """Send bytes with back-pressure."""
        if data:
            self._transport.write(data)
        await self._writable.wait()
        await asyncio.sleep(0)

    async def pause(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def hush(self) -> None:
        """Wait until the client disconnects."""
        await self._input_ended.wait()

    def reset(self) -> None:
        """Reset the connection."""
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class _Answer:
    """Sender of one plan."""

    def __init__(self, connection: LabConnection, plan: Plan, incoming: Incoming) -> None:
        self._connection = connection
        self._plan = plan
        self._chunked = incoming.chunked
        self._bodyless = incoming.method == "HEAD" or plan.status in _BODYLESS
        self._keep_alive = incoming.keep_alive and incoming.chunked
        self._head: bytes | None = _head(
            plan, chunked=incoming.chunked and not self._bodyless, close=not self._keep_alive
        )
        self._batch = bytearray()

    async def send(self) -> bool:
        """Send all of it. False if the connection cannot be reused."""
        for step in self._plan.steps:
            match step:
                case bytes():
                    self._add(step)
                    if len(self._batch) >= _BATCH_BYTES:
                        await self._flush()
                case Piece(data=data):
                    await self._flush()
                    self._add(data)
                    await self._flush()
                case Pause(seconds=seconds):
                    await self._flush()
                    await self._connection.pause(seconds)
                case Silence(ping=ping, every_s=every_s):
                    await self._flush()
                    await self._fall_silent(ping, every_s)
                    return False
                case Broken(how=how):
                    await self._flush()
                    if how == "refused":
                        self._connection.reset()
                    return False
        self._add(b"")
        if self._chunked and not self._bodyless:
            self._batch += b"0\r\n\r\n"
        await self._flush()
        return self._keep_alive

    def _add(self, data: bytes) -> None:
        """Append body bytes to the batch, and the head before the first of them."""
        if self._head is not None:
            self._batch += self._head
            self._head = None
        if data and not self._bodyless:
            self._batch += b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    async def _flush(self) -> None:
        if self._batch:
            await self._connection.write(bytes(self._batch))
            self._batch.clear()

    async def _fall_silent(self, ping: bytes | None, every_s: float) -> None:
        while ping is not None:
            await self._connection.pause(every_s)
            self._add(ping)
            await self._flush()
        await self._connection.hush()


def _head(plan: Plan, *, chunked: bool, close: bool) -> bytes:
    lines = [f"HTTP/1.1 {plan.status} lab", *(f"{name}: {value}" for name, value in plan.headers.items())]
    if chunked:
        lines.append("transfer-encoding: chunked")
    lines.append("connection: close" if close else "connection: keep-alive")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


async def serve(
    service: LabService,
    *,
    host: str,
    port: int,
    ready: Callable[[str], None],
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Serve HTTP until cancelled. Call ``ready`` with the base URL.

    Raise ConfigError if the port is not available.
    """
    group = asyncio.TaskGroup()
    server = await _listen(partial(LabConnection, service, sleep, group), host, port)
    try:
        async with group:
            await server.start_serving()
            ready(_url(server))
            await asyncio.get_running_loop().create_future()
    finally:
        server.close()


async def _listen(factory: Callable[[], LabConnection], host: str, port: int) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(factory, host, port, start_serving=False)
    except OSError as exc:
        # asyncio's message repeats the address. A name resolution error has no errno of the system.
        reason = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from exc


async def _survive(talk: Coroutine[Any, Any, None]) -> None:
    """Run one connection. A bug ends this connection, not the server."""
    try:
        await talk
    except Exception:
        log.exception("a lab connection failed")


def _url(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
