"""A WebSocket as a connection of the daemon: each text frame is one message of its dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zot.serve.daemon.audit import Who
from zot.serve.daemon.connection import Connection
from zot.serve.web.gate import subprotocol_of
from zot.serve.web.limits import Limits
from zot.serve.web.refusing import refuse
from zot.serve.web.websocket import Message, Receive, Send, WebWire

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon

#: Where our own server lets us have what is below (`web_wire.Below`).
BELOW = "zot.below"
_NO_BINARY, _TOO_BIG = 1003, 1009


class Conversation:
    """What is done for a WebSocket (an ASGI application)."""

    def __init__(self, daemon: Daemon, limits: Limits) -> None:
        self._daemon = daemon
        self._limits = limits

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one client until it has gone, or is cut off."""
        await receive()  # It wants to connect.
        wire = WebWire(send, (scope.get("extensions") or {}).get(BELOW))
        who = Who("ws", token=scope["zot.bearer"])
        connection = self._daemon.connect(Connection(self._daemon, wire, who, label=_label(scope), is_local=False))
        if connection is None:
            await refuse(scope, send, 503, "there are too many clients, or the daemon is stopping")
            return
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol_of(scope)})
            await wire.attend(self._hear(connection, wire, receive, send))
        finally:
            wire.end()
            connection.close()

    async def _hear(self, connection: Connection, wire: WebWire, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            if (code := self._unfit(message)) is not None:
                self._refused(connection, code)
                await send({"type": "websocket.close", "code": code})
                return
            if message["text"].strip():
                connection.take(message["text"].encode())
            if wire.is_choked:
                await wire.room()
        if message.get("code") == _TOO_BIG:
            self._refused(connection, _TOO_BIG)

    def _unfit(self, message: Message) -> int | None:
        """Return the code of what is wrong with a message."""
        text = message.get("text")
        if text is None:
            return _NO_BINARY
        return _TOO_BIG if len(text) > self._limits.message else None

    def _refused(self, connection: Connection, code: int) -> None:
        self._daemon.metrics.refused += 1
        self._daemon.parts.audit.note("refused", connection.who, method="frame", outcome=str(code))


def _label(scope: Any) -> str:
    """Return who it is, for people."""
    client = scope.get("client")
    return f"ws:{scope['zot.bearer']}@{client[0] if client else 'unknown'}"
