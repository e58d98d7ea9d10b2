"""The requests of `zot host` that need a session: one, or a stream of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from zot.config.config import Config
from zot.runtime.idempotency import IdempotentRequest
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.serve.host.requests import RequestRun, idempotent
from zot.serve.host.watchdog import Signals, Slot, Watchdog
from zot.wire.host import FAILED, MAX_INPUT_BYTES, Request, encode_response
from zot.wire.lines import LineSplitter

if TYPE_CHECKING:
    from zot.commands.host import Host
    from zot.session.session import Session

_AT_ONCE = 8
#: Time limit for closing connections and the guardian.
_CLOSE_S = 1.0


def run_request(host: Host, request: Request, config: Config, slot: Slot, watchdog: Watchdog) -> NoReturn:
    """Answer one request, or let the watchdog do it, and exit."""
    resources = SharedResources(own_process=True)

    async def opening(asked: IdempotentRequest) -> Session:
        return await open_session(OpenRequest.for_host(config, asked), resources)

    asked = idempotent(request, host.began, slot.deadline, host.own.get("idempotency_ttl"))
    answering = RequestRun(request, asked, opening, behind=host.has_requests_ahead)
    slot.usage, slot.waits, watchdog.kill = answering.usage, lambda: answering.waits, answering.kill

    async def answer() -> NoReturn:
        reply = await answering.answer()
        if not slot.take():
            await asyncio.Event().wait()  # The watchdog has answered, and ends the process.
        code = host.answer(slot, reply.response, reply.code)
        if code != FAILED:
            await answering.delivered()
        await answering.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(resources.close(), _CLOSE_S)
        host.leave(code)

    asyncio.run(answer())


def answer_many(host: Host, signals: Signals) -> NoReturn:
    """Answer requests until the input ends, and exit."""
    # Imported lazily: only `--single-request false` needs them.
    from zot.serve.host.stream import LineThread, StreamServer
    from zot.serve.streams import read_chunks

    resources = SharedResources(own_process=True, serves_many=True)

    async def opening(asked: IdempotentRequest) -> Session:
        return await open_session(OpenRequest.for_host(host.config_of(asked.agent), asked), resources)

    async def serve() -> NoReturn:
        output = LineThread(host.outgoing)
        watchdog = Watchdog(
            signals, (host.incoming, host.outgoing), lambda slot, response, _: output.answer(
                slot, encode_response(response)
            ), stays=True,
        )  # fmt: skip
        many = StreamServer(
            opening, watchdog, output, at_once=host.own.get("max_concurrency", _AT_ONCE),
            ttl_s=host.own.get("idempotency_ttl"), tells_events=bool(host.own.get("events")),
        )  # fmt: skip
        watchdog.kill, watchdog.flush = many.kill, output.flush
        watchdog.start()
        limit = host.own.get("max_input_bytes", MAX_INPUT_BYTES)
        await many.serve(read_chunks(host.incoming), LineSplitter(max_line_bytes=limit))
        with suppress(TimeoutError):
            await asyncio.wait_for(resources.close(), _CLOSE_S)
        host.leave(0 if output.problem is None else host.unwritten(output.problem))

    asyncio.run(serve())
