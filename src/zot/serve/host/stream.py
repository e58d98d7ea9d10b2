"""Many host requests over one pair of streams, with a thread that writes whole lines in order."""

from __future__ import annotations

import _thread
import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from zot.runtime.idempotency import IdempotentRequest
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.serve.host.requests import OpenForHost, RequestQueue, RequestRun, RequestTurn, idempotent
from zot.serve.host.watchdog import Signals, Slot, Watchdog
from zot.serve.stdio import leave, write_all
from zot.serve.streams import read_chunks
from zot.session.history import Batch, WritingSubscriber
from zot.wire.host import EventLine, Ids, Refused, Request, Response, decode_request, encode_event, encode_response
from zot.wire.lines import LineSplitter, TooLong

if TYPE_CHECKING:
    from zot.serve.host.single import HostProcess
    from zot.session.session import Session

#: With this many unanswered requests, reading pauses.
_MAX_UNANSWERED = 256
#: With more than this buffered, pause the run.
_FULL_BYTES = 1024 * 1024
_FLUSH_S = 1.0
#: Time limit for closing connections and the guardian.
_CLOSE_S = 1.0


class EventWriter(WritingSubscriber):
    """Write one request's events as lines."""

    def __init__(self, slot: Slot, output: LineThread) -> None:
        super().__init__(output)
        self._slot = slot
        self._output = output
        self._seq = 0

    def deliver(self, batch: Batch) -> None:
        whose, first = self._slot.ids.request_id, self._seq + 1
        self._seq += len(batch.events)
        lines = [encode_event(EventLine(whose, seq, event)) for seq, event in enumerate(batch.events, first)]
        self._output.event(self._slot, b"".join(lines))


def answer_many(host: HostProcess, signals: Signals) -> NoReturn:
    """Answer requests until the input ends, and exit."""
    resources = SharedResources(own_process=True, serves_many=True)

    async def opening(asked: IdempotentRequest) -> Session:
        return await open_session(OpenRequest.for_host(host.config_of(asked.agent), asked), resources)

    async def serve() -> NoReturn:
        settings, output = host.settings, LineThread(host.outgoing)
        watchdog = Watchdog(signals, (host.incoming, host.outgoing))
        server = StreamServer(
            opening,
            watchdog,
            output,
            at_once=settings.at_once,
            ttl_s=settings.ttl_s,
            sends_events=settings.sends_events,
        )
        watchdog.start(server)
        await server.serve(read_chunks(host.incoming), LineSplitter(max_line_bytes=settings.max_input_bytes))
        with suppress(TimeoutError):
            await asyncio.wait_for(resources.close(), _CLOSE_S)
        host.leave(0 if output.problem is None else host.unwritten(output.problem))

    asyncio.run(serve())


class StreamServer:
    """Serve one client until its input ends, running ``at_once`` requests concurrently (`WatchedServer`)."""

    stays = True

    def __init__(
        self,
        opening: OpenForHost,
        watchdog: Watchdog,
        output: LineThread,
        *,
        at_once: int,
        sends_events: bool,
        ttl_s: float | None = None,
    ) -> None:
        self._opening = opening
        self._watchdog = watchdog
        self._output = output
        self._queue = RequestQueue(at_once)
        self._ttl_s = ttl_s
        self._sends_events = sends_events
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, tuple[Request, RequestRun]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, chunks: AsyncIterator[bytes], lines: LineSplitter) -> None:
        """Answer every request, and return when the last answer is out."""
        began = 0.0
        async for data in chunks:
            now = time.monotonic()
            if not lines.unread():
                began = now
            for line in lines.feed(data):
                self._take(line, began)
                began = now
                await self._room()
        for line in lines.finish():
            self._take(line, began)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._output.drained()

    def kill(self) -> None:
        """Kill the tools' processes, from any thread: this process is about to end."""
        for _, answering in list(self._running.values()):
            answering.kill()

    def answer_late(self, slot: Slot, response: Response, code: int) -> None:
        """Answer for the watchdog; one of many answers has no exit code."""
        del code
        self._output.answer(slot, encode_response(response))

    def flush(self) -> None:
        """Write buffered lines, within a limit."""
        self._output.flush()

    def exit(self, codes: Sequence[int | None]) -> NoReturn:
        """Exit; the answers of a stream have no exit code."""
        del codes
        leave(0)

    async def _room(self) -> None:
        while len(self._tasks) >= _MAX_UNANSWERED:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _take(self, line: bytes | TooLong, began: float) -> None:
        try:
            if isinstance(line, TooLong):
                raise Refused(f"the request is longer than {line.limit} bytes", Ids())
            request = decode_request(line)
            self._begin(request, began)
        except Refused as problem:
            self._answer(Slot(problem.ids, 0), problem.ids.failure("INVALID_REQUEST", str(problem)))

    def _begin(self, request: Request, began: float) -> None:
        """Execute a request. Raise Refused."""
        match request.type or "run":
            case "ping":
                self._acknowledge(request, "pong")
            case "cancel":
                self._cancel(request)
            case "session_close":
                for one, answering in list(self._running.values()):
                    if one.session_id == request.session_id:
                        answering.cancel()
                self._acknowledge(request, "closed")
            case _:
                self._run(request, began)

    def _run(self, request: Request, began: float) -> None:
        assert request.request_id is not None
        if request.request_id in self._running:
            raise Refused("a request with this request_id is running", request.ids)
        slot = Slot(request.ids, began + request.timeout_s)
        listener = EventWriter(slot, self._output) if self._sends_events else None
        place = self._queue.join(request)
        asked = idempotent(request, began, slot.deadline, self._ttl_s)
        answering = RequestRun(request, asked, self._opening, listener, place)
        slot.run = answering
        self._running[request.request_id] = request, answering
        self._watchdog.guard(slot)
        task = self._loop.create_task(self._follow(request, slot, answering, place), name="zot request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, request: Request, slot: Slot, answering: RequestRun, place: RequestTurn) -> None:
        """Await a request's answer, write it, record the delivery and close the session."""
        try:
            reply = await answering.answer()
            place.leave()
            if self._answer(slot, reply.response):
                await asyncio.to_thread(slot.wait_written, None)
                if self._output.problem is None:
                    await answering.delivered()
            self._watchdog.release(slot)
            await answering.close()
        finally:
            place.leave()
            self._running.pop(request.request_id or "", None)

    def _cancel(self, request: Request) -> None:
        _, answering = self._running.get(request.target or "", (None, None))
        if answering is None:
            raise Refused(f"no request {request.target!r} is running", request.ids)
        answering.cancel()
        self._acknowledge(request, "cancelled")

    def _acknowledge(self, request: Request, text: str) -> None:
        self._answer(Slot(request.ids, 0), request.ids.success(text))

    def _answer(self, slot: Slot, response: Response) -> bool:
        """Write an answer unless the watchdog has done so. True if it was written here."""
        if not slot.take():
            return False
        self._output.answer(slot, encode_response(response))
        return True


class _Line(msgspec.Struct, frozen=True):
    slot: Slot
    data: bytes
    is_answer: bool


class LineThread:
    """Write lines from any thread. No event of a request follows its answer."""

    def __init__(self, descriptor: int) -> None:
        self.problem: OSError | None = None
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: list[_Line] = []
        self._size = 0
        self._changed = threading.Condition()
        self._waiters: list[asyncio.Future[None]] = []
        _thread.start_new_thread(self._write, ())  # threading.Thread.start would wait for it.

    def answer(self, slot: Slot, data: bytes) -> None:
        """Write the answer to a request. The caller holds its slot."""
        with self._changed:
            self._put(_Line(slot, data, is_answer=True))

    def event(self, slot: Slot, data: bytes) -> None:
        """Write an event of a request, unless it has been answered."""
        with self._changed:
            # The holder of the slot writes the answer, and no event may follow it.
            if not slot.is_taken:
                self._put(_Line(slot, data, is_answer=False))

    @property
    def full(self) -> bool:
        """True while too much output is unread."""
        return self._size > _FULL_BYTES and self.problem is None

    async def room(self) -> None:
        """Wait until the output is no longer full."""
        while self.full:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    async def drained(self) -> None:
        """Wait until everything has been written, or the output broke."""
        await asyncio.to_thread(self.flush, None)

    def flush(self, within_s: float | None = _FLUSH_S) -> None:
        """Wait until everything has been written, the output broke, or ``within_s`` is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size or self.problem is not None, within_s)

    def _put(self, line: _Line) -> None:
        self._lines.append(line)
        self._size += len(line.data)
        self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                lines = list(self._lines)
                self._lines.clear()
            self._write_out(lines)
            for line in lines:
                if line.is_answer:
                    line.slot.written()
            with self._changed:
                self._size -= sum(len(line.data) for line in lines)
                self._changed.notify_all()
            if self._waiters and not self.full:
                self._loop.call_soon_threadsafe(self._wake)

    def _write_out(self, lines: Sequence[_Line]) -> None:
        if self.problem is None:
            try:
                write_all(self._descriptor, b"".join(line.data for line in lines))
            except OSError as problem:
                self.problem = problem
            except MemoryError:
                self.problem = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
