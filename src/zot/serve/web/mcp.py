"""/mcp: the Model Context Protocol over streamable HTTP.

A stateless request (2026-07-28) is one POST, and ends with it. Before, `initialize` opened a connection with an id of
its own, kept in memory; the sessions of the agent outlive both.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from zot.journal.recorded_sessions import SessionJournal
from zot.runtime.pool import NewSessionSettings, SessionPool
from zot.serve.daemon.access import check_name, check_remote_use
from zot.serve.daemon.audit import Identity
from zot.serve.mcp.agent import McpSessions
from zot.serve.mcp.server import McpAnswered, McpClientConnection, McpService
from zot.serve.mcp.stdio import check_directory
from zot.serve.web.gate import Limits, Tokens
from zot.serve.web.respond import declared_length, gone, is_json, read_body
from zot.serve.web.websocket import Receive, Send, refuse
from zot.session.session import Session
from zot.wire.daemon import Grant
from zot.wire.jsonrpc import Bad, Reply, RpcRequest, decode, encode_error
from zot.wire.mcp_server import HANDSHAKES, http_status, is_stateless_request

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon

#: The most connections that `initialize` has opened; the longest unused idle one makes room for the next.
_MAX_CONNECTIONS: Final = 256
#: How long an answer may take before the response begins as a stream, and how often that shows that it is alive.
_PING_S: Final = 15.0
#: With more than this unread, messages that may be left out are.
_FULL_BYTES: Final = 256 << 10
_MAX_UNREAD_BYTES: Final = 16 << 20
_JSON: Final = (b"content-type", b"application/json")
_STREAM: Final = (b"content-type", b"text/event-stream")
_NO_STORE: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class _ResponseStream:
    """Messages for the response to one request, in order (`Outlet`)."""

    def __init__(self) -> None:
        self.more = asyncio.Event()
        self._frames: list[bytes] = []
        self._size = 0
        self._is_over = False

    def write(self, data: bytes) -> None:
        """Enqueue a message. A client that does not read gets no more."""
        if self._is_over or self._size + len(data) > _MAX_UNREAD_BYTES:
            return
        self._frames.append(data)
        self._size += len(data)
        self.more.set()

    @property
    def full(self) -> bool:
        """True while messages that may be left out should be."""
        return self._size > _FULL_BYTES

    def take(self) -> bytes:
        """Return the messages so far as events."""
        frames, self._frames, self._size = self._frames, [], 0
        self.more.clear()
        return b"".join(map(_event, frames))

    def end(self) -> None:
        """Discard later messages: the client has gone."""
        self._is_over = True
        self._frames = []


def _event(frame: bytes) -> bytes:
    return b"event: message\ndata: %b\n\n" % frame.rstrip(b"\n")


class _Opened:
    """A connection of `initialize`, and who opened it."""

    def __init__(self, connection: McpClientConnection) -> None:
        self.connection = connection
        self.used = time.monotonic()


class McpEndpoint:
    """Serves clients (an ASGI application). The scope has the `Grant` of a request, and its `Tokens` if any."""

    def __init__(self, service: McpService, limits: Limits) -> None:
        self._service = service
        self._limits = limits
        self._opened: dict[str, _Opened] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        match scope["method"]:
            case "POST":
                await self._post(scope, receive, send)
            case "DELETE":
                await self._delete(scope, send)
            case _:
                await _plain(send, 405, (b"allow", b"POST, DELETE"))

    async def _post(self, scope: Any, receive: Receive, send: Send) -> None:
        if not is_json(scope):
            await refuse(scope, send, 415, "Content-Type must be application/json")
            return
        try:
            async with asyncio.timeout(self._limits.body_s):
                too_long = declared_length(scope) > self._limits.body
                body = None if too_long else await read_body(receive, self._limits.body)
        except TimeoutError:
            await refuse(scope, send, 408, "the request did not come in time")
            return
        if body is None:
            await refuse(scope, send, 413, f"the request has more than {self._limits.body} bytes")
            return
        match decode(body):
            case RpcRequest(id=None) as request:
                await self._notified(scope, send, request)
            case RpcRequest() as request:
                await self._requested(scope, receive, send, request)
            case Reply() as reply:
                if (found := self._found(scope)) is None:
                    await refuse(scope, send, 404, "there is no such connection")
                    return
                found.take_reply(reply)
                await _plain(send, 202)
            case Bad() as bad:
                await _json(send, 400, encode_error(bad.id, bad))
            case None:
                await refuse(scope, send, 400, "a malformed reply")

    async def _notified(self, scope: Any, send: Send, request: RpcRequest) -> None:
        """Take a notification. A stateless client has none that count: it cancels a request by closing it."""
        if (found := self._found(scope)) is not None:
            found.take_notification(request)
        elif _header(scope, b"mcp-session-id") is not None:
            await refuse(scope, send, 404, "there is no such connection")
            return
        await _plain(send, 202)

    async def _requested(self, scope: Any, receive: Receive, send: Send, request: RpcRequest) -> None:
        revision = _header(scope, b"mcp-protocol-version")
        if revision not in (None, *HANDSHAKES) or (revision is None and is_stateless_request(request)):
            await self._answer_alone(scope, receive, send, request)
        elif request.method == "initialize":
            await self._initialize(scope, receive, send, request)
        elif (found := self._found(scope)) is not None:
            stream = _ResponseStream()
            await self._respond(scope, receive, send, stream, found.answer(request, stream), is_alone=False)
        elif _header(scope, b"mcp-session-id") is None:
            await refuse(scope, send, 400, "initialize opens a connection: its Mcp-Session-Id is missing")
        else:
            await refuse(scope, send, 404, "there is no such connection")

    async def _answer_alone(self, scope: Any, receive: Receive, send: Send, request: RpcRequest) -> None:
        """Answer a stateless request; it is cancelled if the client leaves."""
        connection, stream = McpClientConnection(self._service, grant=scope["zot.grant"]), _ResponseStream()
        task = connection.answer(request, stream, _headers(scope))
        try:
            await self._respond(scope, receive, send, stream, task, is_alone=True)
        finally:
            connection.close()
            await asyncio.wait({task})

    async def _initialize(self, scope: Any, receive: Receive, send: Send, request: RpcRequest) -> None:
        if not self._has_room():
            await refuse(scope, send, 503, f"{_MAX_CONNECTIONS} connections are open already, and none is idle")
            return
        connection, stream = McpClientConnection(self._service, grant=scope["zot.grant"]), _ResponseStream()
        answered = await connection.answer(request, stream)
        if answered.code:
            await _json(send, 400, answered.frame)
            return
        name = os.urandom(16).hex()
        self._opened[name] = _Opened(connection)
        await _json(send, 200, answered.frame, (b"mcp-session-id", name.encode()))

    def _has_room(self) -> bool:
        """Make room for a connection. False if none of them is idle."""
        if len(self._opened) < _MAX_CONNECTIONS:
            return True
        idle = [(one.used, name) for name, one in self._opened.items() if not one.connection.is_busy]
        if idle:
            self._opened.pop(min(idle)[1]).connection.close()
        return bool(idle)

    def _found(self, scope: Any) -> McpClientConnection | None:
        """Return the connection that a request names, if its token has opened it."""
        found = self._opened.get(_header(scope, b"mcp-session-id") or "")
        if found is None or found.connection.grant != scope["zot.grant"]:
            return None
        found.used = time.monotonic()
        return found.connection

    async def _delete(self, scope: Any, send: Send) -> None:
        """Close a connection. The sessions of the agent stay."""
        if (found := self._found(scope)) is None:
            await refuse(scope, send, 404, "there is no such connection")
            return
        del self._opened[_header(scope, b"mcp-session-id") or ""]
        found.close()
        await _plain(send, 204)

    async def _respond(
        self,
        scope: Any,
        receive: Receive,
        send: Send,
        stream: _ResponseStream,
        task: asyncio.Task[McpAnswered],
        *,
        is_alone: bool,
    ) -> None:
        """Send the answer, as a stream if it takes long or messages come before it.

        The request continues if the client leaves. One that is ``is_alone`` reports errors as statuses, too.
        """
        tokens: Tokens | None = scope.get("zot.tokens")
        left = asyncio.ensure_future(gone(receive))

        def revoked() -> None:
            task.cancel()

        watched = nullcontext() if tokens is None else tokens.watching(scope["zot.grant"], revoked)
        is_begun = False
        try:
            with watched, suppress(OSError):
                while not (task.done() or left.done()):
                    waits = {task, left, more := asyncio.ensure_future(stream.more.wait())}
                    await asyncio.wait(waits, timeout=_PING_S, return_when=asyncio.FIRST_COMPLETED)
                    more.cancel()
                    if left.done() or (task.done() and not is_begun and not stream.more.is_set()):
                        break
                    if not is_begun:
                        is_begun = True
                        await _begin(send, 200, _STREAM)
                    await send(
                        {"type": "http.response.body", "body": stream.take() or b": ping\n\n", "more_body": True}
                    )
                if not left.done():
                    await _finish(send, task, is_begun=is_begun, is_alone=is_alone)
        finally:
            left.cancel()
            stream.end()


async def _finish(send: Send, task: asyncio.Task[McpAnswered], *, is_begun: bool, is_alone: bool) -> None:
    answered = McpAnswered(b"") if task.cancelled() else task.result()
    if is_begun:
        body = _event(answered.frame) if answered.frame else b""
        await send({"type": "http.response.body", "body": body, "more_body": False})
    elif not answered.frame:  # It was cancelled, and so has no answer.
        await _plain(send, 202)
    else:
        await _json(send, http_status(answered.code) if is_alone else 200, answered.frame)


async def _begin(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *_NO_STORE]})


async def _json(send: Send, status: int, frame: bytes, *headers: tuple[bytes, bytes]) -> None:
    body = frame.rstrip(b"\n")
    await _begin(send, status, _JSON, (b"content-length", str(len(body)).encode()), *headers)
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _plain(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await _begin(send, status, (b"content-length", b"0"), *headers)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _headers(scope: Any) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
    return found


def _header(scope: Any, name: bytes) -> str | None:
    """Return the value of a header; None without exactly one."""
    values = [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]
    return values[0] if len(values) == 1 else None


class DaemonMcpSessions(McpSessions):
    """The sessions of a daemon, for clients at its addresses."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def opened(self) -> tuple[SessionPool, SessionJournal]:
        return self._daemon.sessions.pool, self._daemon.parts.journal

    async def check_new(self, grant: Grant, session_id: str, wanted: NewSessionSettings) -> NewSessionSettings:
        await check_name(self._daemon.sessions.catalog, session_id)
        await asyncio.to_thread(check_directory, wanted.cwd)
        return NewSessionSettings(wanted.agent, wanted.cwd, guarded=True)

    def check(self, grant: Grant, session_id: str, session: Session) -> None:
        check_remote_use(self._daemon, session, session_id)

    def is_followed(self, session_id: str) -> bool:
        return self._daemon.sessions.feed(session_id).is_followed

    def note(self, grant: Grant, method: str, session_id: str, outcome: str) -> None:
        who = Identity("http", token=grant.name)
        self._daemon.parts.audit.call(who, f"/mcp {method}", session=session_id, outcome=outcome)
