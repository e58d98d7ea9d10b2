"""Connection to an MCP server over streamable HTTP: a POST for each message, answers as JSON or as an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from zot.errors import BadRequest, ProviderError
from zot.extensions.log import Log
from zot.mcp.authorization import (
    Authorization,
    AuthorizationFailed,
    LoginNeeded,
    ServerTokens,
    challenge_of,
    read_body,
)
from zot.mcp.launch import McpExited, McpFailed, McpLaunch, McpLoginNeeded
from zot.mcp.server_connection import (
    LONG_BYTES,
    MAX_CALL_S,
    MAX_LINE_BYTES,
    McpConnection,
    ProcessConnection,
    root_of,
)
from zot.mcp.source import McpSource
from zot.providers.base import Deadlines, HttpRequest, HttpResponse, Transport
from zot.providers.sse import ResumableSse
from zot.text import printable_line
from zot.wire.jsonrpc import Reply
from zot.wire.mcp import ClientState, LogNote, McpClient, Outgoing, decode_line
from zot.wire.mcp_server import STATELESS, WITH_HANDSHAKE

#: The most tries of one message: after a login, a refresh, or a demand for more scopes.
_MAX_TRIES: Final = 4
#: The most times that a stream is taken up again, and the pause before if the server names none.
_MAX_RESUMES: Final = 16
_RESUME_S: Final = 1.0
_MAX_RESUME_S: Final = 60.0
#: Time for the farewell.
_CLOSE_S: Final = 1.0
_ACCEPT: Final = {"accept": "application/json, text/event-stream"}


class HttpServerConnection(McpConnection):
    """A server at an address. `open` greets it; `close` ends its session and every open request."""

    def __init__(
        self, source: McpSource, client: McpClient, log: Log, transport: Transport, authorization: Authorization
    ) -> None:
        super().__init__(source, client, log)
        self._transport = transport
        self._authorization = authorization
        #: The session of an older server; "" without one.
        self._session = ""
        #: Running exchanges, by the id of their request on the wire; others have a negative number.
        self._exchanges: dict[int, asyncio.Task[None]] = {}
        self._unnumbered = 0
        self._needs_login = False

    @classmethod
    async def open(cls, source: McpSource, launch: McpLaunch, revision: str = "") -> HttpServerConnection:
        """Greet a server. Raise McpFailed; then nothing is left open."""
        if launch.sandbox is not None and source.sandbox and not launch.net:
            raise McpFailed("not used: --lock permits no network; add --lock-net, or sandbox = false to its table")
        log = Log(launch.logs, source.name, kind="mcp")
        log.note(f"connecting to {source.label}")
        assert launch.transport is not None
        transport = launch.transport()
        authorization = Authorization(source, transport, ServerTokens(launch.home), browse=launch.browse)
        client = McpClient(root_of(launch.cwd), revision=revision)
        connection = cls(source, client, log, transport, authorization)
        deadlines = launch.deadlines if launch.browse is None else launch.patient
        try:
            await connection.greet(deadlines)
            connection._follow()
        except BaseException:
            await connection.close()
            raise
        return connection

    def send(self, message: Outgoing) -> None:
        self._unnumbered -= 1
        key = self._unnumbered if message.id is None else message.id
        self._run(key, self._exchange(message))

    def cancel(self, wire_id: int, message: Outgoing) -> None:
        if self.client.revision != STATELESS:
            self.send(message)
        if (exchange := self._exchanges.get(wire_id)) is not None:
            exchange.cancel()  # To a newer server, the end of the connection says it.

    def stop(self) -> None:
        for exchange in self._exchanges.values():
            exchange.cancel()

    async def close(self) -> None:
        self.end("was closed")
        self.stop()
        if running := [*self._exchanges.values()]:
            await asyncio.wait(running)
        if self._session:
            session, self._session = self._session, ""
            headers = {"mcp-session-id": session, "mcp-protocol-version": self.client.revision}
            try:
                async with asyncio.timeout(_CLOSE_S):
                    response = await self._request("DELETE", headers, b"")
                    response.close()
            except (ProviderError, AuthorizationFailed, TimeoutError):
                pass

    async def sweep(self) -> None:
        """Do nothing: it has no files here."""

    def failed(self, reason: str) -> McpFailed:
        """Return and log why the server could not be used."""
        return McpLoginNeeded(reason) if self._needs_login else super().failed(reason)

    # Exchanges.

    def _run(self, key: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=f"zot mcp {self.source.name}")
        self._exchanges[key] = task
        task.add_done_callback(lambda _: self._exchanges.pop(key, None))

    async def _exchange(self, message: Outgoing) -> None:
        """Send one message and handle its answer. A failure fails its request."""
        try:
            problem = await self._send(message)
        except (AuthorizationFailed, BadRequest, ProviderError) as failed:
            problem = printable_line(str(failed), 500)
            if isinstance(failed, AuthorizationFailed) and self.client.state is not ClientState.READY:
                self._needs_login = isinstance(failed, LoginNeeded)
                self._break(problem)  # No other message would do better.
                return
        if message.id is not None and self.client.is_open(message.id):
            self.apply(self.client.fail(message.id, problem or "closed the connection without an answer"))
        elif problem:
            self.apply([LogNote(problem)])

    async def _send(self, message: Outgoing) -> str:
        """Send one message, after a login if that is needed. Return why it failed, "" if it did not."""
        headers = {"content-type": "application/json", **_ACCEPT, **message.headers}
        if self._session:
            headers["mcp-session-id"] = self._session
        response = await self._request("POST", headers, message.data)
        try:
            session = response.headers.get("mcp-session-id", "")
            if self.client.state is ClientState.INITIALIZING and session.isprintable():
                self._session = session
            if response.status >= 300:
                return await self._refused(response)
            if response.status == 202 or message.id is None:
                return "" if message.id is None else "accepted the request without an answer"
            if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                await self._stream(response, message.id)
                return ""
            await self._take(await read_body(response, MAX_LINE_BYTES))
            return ""
        finally:
            response.close()

    async def _request(self, method: str, headers: dict[str, str], body: bytes) -> HttpResponse:
        """Return the head of a response, after as many logins as the server is entitled to."""
        for attempt in range(_MAX_TRIES):
            sent = await self._authorization.header()
            own = {**self.source.headers, **headers, **({"authorization": sent} if sent else {})}
            request = HttpRequest(self.source.url, own, body, method)
            response = await self._transport.send(request, Deadlines(headers_s=MAX_CALL_S))
            if response.status not in (401, 403) or attempt == _MAX_TRIES - 1:
                break
            challenge = challenge_of(response.headers.get("www-authenticate", ""))
            response.close()
            if not await self._authorization.challenged(sent, response.status, challenge):
                break
        return response

    async def _refused(self, response: HttpResponse) -> str:
        """Take the answer of a refused request; return why it failed."""
        if response.status == 404 and self._session:
            self._session = ""
            self._break("has forgotten the session")
            return self.ended
        if 300 <= response.status < 400:
            return f"redirects elsewhere (HTTP {response.status}); set that address as the url"
        try:
            body = await read_body(response, MAX_LINE_BYTES)
        except ProviderError:
            body = b""
        if response.headers.get("content-type", "").lower().startswith("application/json"):
            message = decode_line(body)
            if isinstance(message, Reply) and message.error is not None and bytes(message.id) != b"null":
                self.apply(self.client.receive(message))
        return f"answered with HTTP {response.status}"

    async def _stream(self, response: HttpResponse, wire_id: int) -> None:
        """Take the events of a response until its request is answered; an interrupted stream is taken up again."""
        events = ResumableSse()
        for _ in range(_MAX_RESUMES):
            try:
                if await self._events(response, events, wire_id):
                    return
            except ProviderError:
                if not events.last_id:
                    raise
            finally:
                response.close()
            if not events.last_id or self.client.revision == STATELESS or self.ended:
                return
            pause_s = _RESUME_S if events.retry_ms is None else events.retry_ms / 1000
            await asyncio.sleep(min(pause_s, _MAX_RESUME_S))
            headers = {
                "accept": "text/event-stream",
                "last-event-id": events.last_id,
                "mcp-protocol-version": self.client.revision,
                **({"mcp-session-id": self._session} if self._session else {}),
            }
            response = await self._request("GET", headers, b"")
            if response.status != 200:
                response.close()
                self.apply([LogNote(f"could not take up its stream again: HTTP {response.status}")])
                return

    async def _events(self, response: HttpResponse, events: ResumableSse, wire_id: int) -> bool:
        """Take events to the end of the stream. True once the request is answered, and nothing more is expected."""
        while data := await response.read():
            for payload in events.feed(data):
                if payload:
                    await self._take(payload)
            if wire_id and not self.client.is_open(wire_id):
                return True
        return False

    async def _take(self, data: bytes) -> None:
        is_long = len(data) > LONG_BYTES
        message = await asyncio.to_thread(decode_line, data) if is_long else decode_line(data)
        self.apply(self.client.receive(message))

    # What an older server says outside of any answer: changes of lists, and questions.

    def _follow(self) -> None:
        if self.client.revision != STATELESS:
            self._unnumbered -= 1
            self._run(self._unnumbered, self._notifications())

    async def _notifications(self) -> None:
        headers = {"accept": "text/event-stream", "mcp-protocol-version": self.client.revision}
        if self._session:
            headers["mcp-session-id"] = self._session
        try:
            response = await self._request("GET", headers, b"")
            try:
                if response.status == 200:
                    await self._stream(response, 0)
            finally:
                response.close()
        except (AuthorizationFailed, ProviderError) as problem:
            self.apply([LogNote(f"its stream of notifications ended: {printable_line(str(problem), 300)}")])


async def open_connection(source: McpSource, launch: McpLaunch, revision: str) -> McpConnection:
    """Start a server, or greet one over HTTP, and wait until it is ready. Raise McpFailed; then nothing is left."""
    if source.url:
        return await HttpServerConnection.open(source, launch, revision)
    try:
        return await ProcessConnection.open(source, launch, revision)
    except McpExited:
        if revision:
            raise
    # An old server may exit at a request that it does not know.
    return await ProcessConnection.open(source, launch, WITH_HANDSHAKE)
