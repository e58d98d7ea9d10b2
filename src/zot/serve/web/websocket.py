"""WebSocket connections: daemon clients, and extensions that connect to a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs

import msgspec

from zot.encoding import UNREADABLE
from zot.errors import AgentError, NoSuchSession, UserError
from zot.extensions.sources import RemoteCarrier
from zot.runtime.extensions import manager_of
from zot.serve.daemon.audit import Identity
from zot.serve.daemon.backlog import MAX_UNREAD_BYTES
from zot.serve.daemon.client_connection import ClientConnection
from zot.serve.web.gate import Limits, Tokens, subprotocol_of
from zot.store import GuardSet

if TYPE_CHECKING:
    from zot.extensions.supervisor import SupervisedExtension
    from zot.serve.daemon.daemon import Daemon
    from zot.serve.web.listen import WebSocketProtocol
    from zot.session.session import Session

log = logging.getLogger("zot")

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

#: Replay continues when less than this is unread.
_ROOM_BYTES = 256 << 10
#: With more than this unread, reading requests pauses.
_CHOKED_BYTES = 16 << 20
#: Frames per turn of the loop: a fast reader must not starve other tasks.
_AT_ONCE = 128
_GOING_AWAY = 1001
_POLICY = 1008
#: Room for the reason in a close frame.
_MAX_REASON_BYTES = 123

#: First byte of an unfragmented text frame; payload sizes from 126 on need an extended length.
_TEXT = b"\x81"
_EXTENDED = 126

_HEADERS = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
)

#: Scope extension under which our own server passes its `WebSocketProtocol`.
BELOW = "zot.below"
#: Close codes for a binary message and for one that is too long.
_BINARY, _TOO_BIG = 1003, 1009
#: Pauses between attempts to record a guard.
_PAUSES_S = (0.05, 0.25, 1.0, 4.0)


class WebWire:
    """One client (`backlog.Wire`). With ``below`` it is faster and can be cut off during a write."""

    def __init__(self, send: Send, below: WebSocketProtocol | None = None) -> None:
        self._send = send
        self._below = below
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent = 0
        #: Set while the pump has work to do.
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_ending = False
        self._ended = asyncio.Event()
        self._closing: dict[str, Any] = {"code": _GOING_AWAY}

    def send(self, data: bytes) -> None:
        """Enqueue lines."""
        if self._is_ending or not data:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._sent += len(data)
        self._more.set()
        if self._size > _ROOM_BYTES:
            self._room.clear()

    @property
    def unread(self) -> int:
        """Bytes sent that the client has not taken."""
        return self._size + (0 if self._below is None else self._below.unread)

    @property
    def taken(self) -> int:
        """Bytes the client has taken in total, without frame heads."""
        return self._sent - self.unread

    @property
    def is_choked(self) -> bool:
        """True while reading requests should pause."""
        return self._size > _CHOKED_BYTES

    async def room(self) -> None:
        """Wait until little is unread, or the client has gone."""
        await self._room.wait()

    def finish(self, refusal: str = "") -> None:
        """Flush, then close; ``refusal`` becomes the close frame's reason, cut to its limit."""
        self._is_ending = True
        if refusal:
            self._closing = {"code": _POLICY, "reason": refusal.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")}
        self._more.set()

    def cut(self, reason: str) -> None:
        """Close without waiting for the client."""
        if not self._is_ending:
            log.warning("a client was disconnected: %s", reason)
        self.end()
        if self._below is not None:
            self._below.abort()

    def end(self) -> None:
        """Discard everything: the client has gone."""
        self._is_ending = True
        self._pieces, self._size = [], 0
        self._room.set()
        self._ended.set()

    async def attend(self, receiving: Coroutine[Any, Any, None]) -> None:
        """Send queued lines while ``receiving`` receives, until either ends or the client is cut off."""
        tasks = [asyncio.ensure_future(one) for one in (receiving, self._pump(), self._ended.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            with suppress(OSError, asyncio.CancelledError):  # The client left while we were sending.
                task.result()

    async def _pump(self) -> None:
        """Send queued lines until `finish`. Raise OSError when the client has gone."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._pieces:
                pieces, self._pieces = self._pieces, []
                for piece in pieces if self._size > _ROOM_BYTES else (b"".join(pieces),):
                    await self._send_lines(piece)
            if self._is_ending:
                await self._send({"type": "websocket.close", **self._closing})
                return

    async def _send_lines(self, lines: bytes) -> None:
        if self._below is not None:
            await self._below.send_lines(lines)
        else:
            await self._send_one_by_one(lines)
        self._size -= len(lines)
        if self._size <= _ROOM_BYTES:
            self._room.set()

    async def _send_one_by_one(self, lines: bytes) -> None:
        for at, line in enumerate(lines.split(b"\n")):
            if line:
                await self._send({"type": "websocket.send", "text": line.decode()})
            if at % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)


def text_frames(lines: bytes) -> bytes:
    """Return each non-blank line as an unmasked text frame."""
    pieces: list[bytes] = []
    for line in lines.split(b"\n"):
        if line:
            pieces.append(_head(len(line)))
            pieces.append(line)
    return b"".join(pieces)


def _head(size: int) -> bytes:
    if size < _EXTENDED:
        return _TEXT + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")


async def refuse(scope: Any, send: Send, status: int, message: str) -> None:
    """Send an HTTP error with a plain text message, or close a WebSocket that cannot take one."""
    kind = ""
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        kind = "websocket."
    body = f"{message}\n".encode()
    headers = [*_HEADERS, (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": f"{kind}http.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}http.response.body", "body": body, "more_body": False})


class ClientEndpoint:
    """WebSocket endpoint for clients (an ASGI application)."""

    def __init__(self, daemon: Daemon, limits: Limits) -> None:
        self._daemon = daemon
        self._limits = limits

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one client until it leaves or is cut off."""
        await receive()  # websocket.connect
        wire = WebWire(send, (scope.get("extensions") or {}).get(BELOW))
        who = Identity("ws", token=scope["zot.bearer"])
        connection = self._daemon.connect(
            ClientConnection(self._daemon, wire, who, label=_label(scope), grant=scope["zot.grant"])
        )
        if connection is None:
            await refuse(scope, send, 503, "there are too many clients, or the daemon is stopping")
            return
        tokens: Tokens = scope["zot.tokens"]
        try:
            with tokens.watching(connection.grant, lambda: self._revoke(connection)):
                await send({"type": "websocket.accept", "subprotocol": subprotocol_of(scope)})
                await wire.attend(self._receive(tokens, connection, wire, receive, send))
        finally:
            wire.end()
            connection.close()

    def _revoke(self, connection: ClientConnection) -> None:
        """Disconnect a client whose token was revoked or is over."""
        self._daemon.parts.audit.note("revoked", connection.who)
        connection.close()
        connection.wire.cut(f"the token {connection.grant.name} was revoked or has expired")

    async def _receive(
        self, tokens: Tokens, connection: ClientConnection, wire: WebWire, receive: Receive, send: Send
    ) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            if not tokens.counts(connection.grant):
                self._revoke(connection)
                return
            if (code := self._close_code(message)) is not None:
                self._refused(connection, code)
                await send({"type": "websocket.close", "code": code})
                return
            if message["text"].strip():
                connection.take(message["text"].encode())
            if wire.is_choked:
                await wire.room()
        if message.get("code") == _TOO_BIG:
            self._refused(connection, _TOO_BIG)

    def _close_code(self, message: Message) -> int | None:
        """Return the close code for an unacceptable message; None if it is fine."""
        text = message.get("text")
        if text is None:
            return _BINARY
        return _TOO_BIG if len(text) > self._limits.message else None

    def _refused(self, connection: ClientConnection, code: int) -> None:
        self._daemon.metrics.refused += 1
        self._daemon.parts.audit.note("refused", connection.who, method="frame", outcome=str(code))


def _label(scope: Any) -> str:
    """Return a name of the client for people."""
    client = scope.get("client")
    return f"ws:{scope['zot.bearer']}@{client[0] if client else 'unknown'}"


class ExtensionEndpoint:
    """WebSocket endpoint for extensions (an ASGI application). The query names the session and the extension."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Connect one extension to one session until the extension leaves or the session ends."""
        await receive()  # websocket.connect
        named = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        session_id, name = (named.get(key, [""])[-1] for key in ("session", "name"))
        if not session_id or not name:
            await refuse(scope, send, 400, "the address must name the session and the extension: ?session=ID&name=NAME")
            return
        try:
            if not scope["zot.grant"].sees(session_id):
                raise NoSuchSession(f"the token is not bound to a session {session_id!r}")
            async with self._daemon.sessions.pool.use(session_id) as session:
                await self._serve(scope, session, (session_id, name), receive, send)
        except NoSuchSession as problem:
            await refuse(scope, send, 404, str(problem))
        except UserError as problem:
            await refuse(scope, send, 409, str(problem))
        except AgentError as problem:
            await refuse(scope, send, 503, str(problem))

    async def _serve(self, scope: Any, session: Session, named: tuple[str, str], receive: Receive, send: Send) -> None:
        """Exchange frames with the extension. Raise UserError before accepting it."""
        session_id, name = named
        below: WebSocketProtocol | None = (scope.get("extensions") or {}).get(BELOW)
        wire = WebWire(send, below)
        end = _ExtensionEnd(wire)
        link = RemoteCarrier(end)
        keeping: set[asyncio.Task[None]] = set()

        def guards(guarded: GuardSet) -> None:
            keeping.add(asyncio.get_running_loop().create_task(_record_guard(session, guarded), name="zot guard"))

        extension = manager_of(session.agent.extensions).join(name, link, guards, token=scope["zot.bearer"])
        end.extension = extension
        who = Identity("ws", token=scope["zot.bearer"])
        self._daemon.parts.audit.note("connected", who, method="/ext", session=session_id)
        tokens: Tokens = scope["zot.tokens"]
        try:
            with tokens.watching(scope["zot.grant"], lambda: self._revoke(who, session_id, wire)):
                await send({"type": "websocket.accept", "subprotocol": subprotocol_of(scope)})
                await wire.attend(_receive(link, below, receive, send))
        finally:
            link.hung_up()
            wire.end()
            await extension.over()
            if keeping:
                await asyncio.wait(keeping)

    def _revoke(self, who: Identity, session_id: str, wire: WebWire) -> None:
        """Disconnect an extension whose token was revoked or is over."""
        self._daemon.parts.audit.note("revoked", who, method="/ext", session=session_id)
        wire.cut(f"the token {who.token} was revoked or has expired")


class _ExtensionEnd:
    """The WebSocket of one extension, as its `RemoteCarrier` uses it."""

    def __init__(self, wire: WebWire) -> None:
        self.extension: SupervisedExtension | None = None
        self._wire = wire

    def send(self, data: bytes) -> None:
        self._wire.send(data)
        if self._wire.unread > MAX_UNREAD_BYTES:
            self._wire.cut("it does not read")

    def hang_up(self) -> None:
        self._wire.finish("" if self.extension is None else self.extension.problem)


async def _record_guard(session: Session, guarded: GuardSet) -> None:
    """Record a guard of the session; retry while another process writes."""
    for pause_s in (*_PAUSES_S, None):
        try:
            return await session.keep_guard(guarded)
        except AgentError as problem:
            if pause_s is None:
                log.warning("cannot record that %s guards its session: %s", guarded.name, problem)
            else:
                await asyncio.sleep(pause_s)


async def _receive(link: RemoteCarrier, below: WebSocketProtocol | None, receive: Receive, send: Send) -> None:
    """Receive until the extension has gone. The connection's loss may be known before all messages are read."""
    if below is None:
        return await _receive_all(link, receive, send)
    watching = asyncio.get_running_loop().create_task(_watch_loss(link, below), name="zot extension lost")
    try:
        await _receive_all(link, receive, send)
    finally:
        watching.cancel()


async def _watch_loss(link: RemoteCarrier, below: WebSocketProtocol) -> None:
    await below.gone.wait()
    link.lost()


async def _receive_all(link: RemoteCarrier, receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        if text is None:
            await send({"type": "websocket.close", "code": _BINARY, "reason": "frames are text"})
            return
        data = text.encode()
        await link.bring((data if _is_several(data) else data.replace(b"\n", b" ")) + b"\n")


def _is_several(data: bytes) -> bool:
    """True if a message contains several frames, one per line, rather than one frame over several lines."""
    if b"\n" not in data:
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except UNREADABLE:
        return True
    return False
