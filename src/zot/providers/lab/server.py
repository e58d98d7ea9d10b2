"""One HTTP/1.1 connection to lab: requests in, planned answers out, one after the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

from zot.providers.lab.plan import Broken, Pause, Piece, Plan, Silence
from zot.providers.lab.receiver import Incoming, Receiver, Refused
from zot.providers.lab.service import Service
from zot.providers.lab.transport import Sleep

_MAX_WAITING = 16
_BATCH_BYTES = 64 * 1024
_LINGER_S = 1.0
_BODYLESS = (204, 304)


class Connection(asyncio.Protocol):
    """Answers one client. ``start`` is given the coroutine that does it, as soon as there is a client."""

    def __init__(self, service: Service, sleep: Sleep, start: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._service = service
        self._sleep = sleep
        self._start = start
        self._receiver = Receiver()
        self._requests: asyncio.Queue[Incoming | Refused | None] = asyncio.Queue()
        self._input_ended = asyncio.Event()
        self._writable = asyncio.Event()
        self._leash: asyncio.Timeout | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writable.set()
        self._start(self._run())

    def data_received(self, data: bytes) -> None:
        if self._input_ended.is_set():
            return
        try:
            for incoming in self._receiver.feed(data):
                self._requests.put_nowait(incoming)
        except Refused as exc:
            # What follows cannot be understood any more.
            self._requests.put_nowait(exc)
        if self._receiver.wants_continue and self._requests.empty() and not self._answering:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._receiver.wants_continue = False
        if self._requests.qsize() >= _MAX_WAITING:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._input_ended.set()
        self._requests.put_nowait(None)
        return True  # what was asked is still answered

    def connection_lost(self, exc: Exception | None) -> None:
        self._input_ended.set()
        self._writable.set()
        self._requests.put_nowait(None)
        if self._leash is not None:
            self._leash.reschedule(0)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def _run(self) -> None:
        """Answer until the client or the script ends it."""
        try:
            async with asyncio.timeout(None) as self._leash:
                while await self._answer_next():
                    pass
        except TimeoutError:
            pass  # the client has gone
        except BaseException:
            self._transport.abort()
            raise
        finally:
            self._leash = None
            self._transport.close()

    async def _answer_next(self) -> bool:
        """Answer one request. False if it was the last on this connection."""
        self._answering = False
        match await self._requests.get():
            case None:
                return False
            case Refused(status=status) as refused:
                await self._refuse(status, str(refused))
                return False
            case incoming:
                self._answering = True
                self._transport.resume_reading()
                plan = self._service.answer(incoming.method, incoming.target, incoming.headers, bytes(incoming.body))
                return await _Answer(self, plan, incoming).send() and incoming.keep_alive

    async def _refuse(self, status: int, message: str) -> None:
        """Say what is wrong, then hear the client out for a moment: closing on unread bytes would eat the answer."""
        await _Answer(self, self._service.refuse(status, message), Incoming()).send()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        try:
            async with asyncio.timeout(_LINGER_S):
                await self._input_ended.wait()
        except TimeoutError:
            pass

    async def write(self, data: bytes) -> None:
        """Send bytes, as fast as the client takes them."""
        if data:
            self._transport.write(data)
        await self._writable.wait()
        await asyncio.sleep(0)

    async def pause(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def hush(self) -> None:
        """Wait until the client gives up."""
        await self._input_ended.wait()

    def reset(self) -> None:
        """End the connection the hard way: the client sees a reset."""
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class _Answer:
    """One plan on its way out."""

    def __init__(self, connection: Connection, plan: Plan, incoming: Incoming) -> None:
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
        """Send all of it. False if the connection cannot be used again."""
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
        """Put bytes of the body behind what is ready, and the head before the first of them."""
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
