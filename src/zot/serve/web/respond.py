"""POST /v1/respond: one host request per HTTP request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from zot.errors import DaemonStopping
from zot.runtime.open import HOSTED
from zot.serve.daemon.audit import Identity
from zot.serve.web.gate import Limits
from zot.serve.web.websocket import Receive, Send, refuse
from zot.wire.host import Refused, Request, Response, decode_request, encode_response

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon

#: HTTP status for each exit code of `zot host`.
_STATUS: Mapping[int, int] = {0: 200, 2: 400, 3: 503, 4: 500}
#: Header for clients that should ask the next daemon.
_SOON = ((b"retry-after", b"1"),)


class Respond:
    """Answer requests of the host protocol (an ASGI application)."""

    def __init__(self, daemon: Daemon, limits: Limits) -> None:
        self._daemon = daemon
        self._limits = limits

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request by its deadline, which counts from the arrival of the head."""
        came = time.monotonic()
        if not is_json(scope):
            await refuse(scope, send, 415, "Content-Type must be application/json")
            return
        try:
            async with asyncio.timeout(self._limits.body_s):
                # A length beyond the limit is refused before any of the body is awaited.
                body = (
                    None if declared_length(scope) > self._limits.body else await read_body(receive, self._limits.body)
                )
        except TimeoutError:
            await refuse(scope, send, 408, "the request did not come in time")
            return
        if body is None:
            await refuse(scope, send, 413, f"the request has more than {self._limits.body} bytes")
            return
        try:
            request = _run_in(body)
        except Refused as problem:
            await _answer(send, problem.ids.failure("INVALID_REQUEST", str(problem)), 400)
            return
        if not scope["zot.grant"].sees(f"{HOSTED}{request.ids.session_id}"):
            await refuse(scope, send, 403, "the token is not bound to this session")
            return
        await self._run(scope, request, came, receive, send)

    async def _run(self, scope: Any, request: Request, came: float, receive: Receive, send: Send) -> None:
        """Run the request. If the client disconnects meanwhile, the stored answer awaits its retry."""
        left = asyncio.ensure_future(gone(receive))
        try:
            answered = await self._daemon.sessions.respond(request, age_s=time.monotonic() - came)
            is_there = not left.done()
            counts = scope["zot.tokens"].counts(scope["zot.grant"])
        except DaemonStopping as problem:
            self._note(scope, request, "INTERNAL")
            await _answer(send, request.ids.failure("INTERNAL", str(problem)), 503, *_SOON)
            return
        finally:
            left.cancel()
        got_out = False
        try:
            if is_there and not counts:  # Revoked meanwhile: the stored answer awaits a request with a valid token.
                await refuse(scope, send, 401, "the token was revoked or has expired")
            elif is_there:
                with suppress(OSError):
                    await _answer(send, answered.reply.response, _STATUS[answered.reply.code])
                    got_out = True
        finally:
            answered.delivered(got_out)
        self._note(scope, request, answered.reply.response.error_code or "ok")

    def _note(self, scope: Any, request: Request, outcome: str) -> None:
        who = Identity("http", token=scope["zot.bearer"])
        self._daemon.parts.audit.call(who, "/v1/respond", session=request.ids.session_id, outcome=outcome)


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """Return the body of a request; None if it has more than ``limit`` bytes, without reading the rest."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body"):
            return bytes(body)


async def gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def declared_length(scope: Any) -> int:
    """Return the declared length of the body; 0 if there is none."""
    values = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
    return max((int(value) for value in values if value.isdigit()), default=0)


def is_json(scope: Any) -> bool:
    """True if the body is declared as JSON: a foreign web page cannot send this type without CORS permission."""
    values = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    return len(values) == 1 and values[0].partition(b";")[0].strip().lower() == b"application/json"


def _run_in(body: bytes) -> Request:
    """Return the run request in a body. Raise Refused for anything else."""
    request = decode_request(body)
    if request.type not in (None, "run"):
        raise Refused("type must be run", request.ids)
    return request


async def _answer(send: Send, response: Response, status: int, *more: tuple[bytes, bytes]) -> None:
    body = encode_response(response)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
