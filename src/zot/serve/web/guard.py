"""In front of everything: what may not come in is refused, and whatever is refused, here or behind, is written down."""

from __future__ import annotations

from typing import Any, Protocol

from zot.serve.daemon.audit import Who
from zot.serve.daemon.refusals import Refusals
from zot.serve.web.gate import Gate
from zot.serve.web.refusing import refuse
from zot.serve.web.websocket import Message, Receive, Send


class App(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request, or one WebSocket."""


class Outer:
    """Lets through what comes from the right place, by the right name (an ASGI application)."""

    def __init__(self, app: App, gate: Gate, refusals: Refusals) -> None:
        self._app = app
        self._gate = gate
        self._refusals = refusals

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._gate.refusal(scope)
        reason = "" if refusal is None else refusal.reason
        is_open = False

        async def watched(message: Message) -> None:
            nonlocal is_open
            kind = message["type"]
            if kind.endswith("http.response.start") and message["status"] >= 400:
                self._note(scope, f"{message['status']} {reason}".rstrip())
            elif kind == "websocket.close" and not is_open:
                self._note(scope, f"403 {reason}".rstrip())
            is_open = is_open or kind == "websocket.accept"
            await send(message)

        if refusal is not None:
            await refuse(scope, watched, refusal.status, refusal.message)
        else:
            await self._app(scope, receive, watched)

    def _note(self, scope: Any, outcome: str) -> None:
        transport = "ws" if scope["type"] == "websocket" else "http"
        self._refusals.note(Who(transport, token=scope.get("zot.bearer")), scope.get("zot.route", ""), outcome)


class Inner:
    """Lets through who bears a token (an ASGI application). ``route`` is what it guards, for the audit log."""

    def __init__(self, app: App, gate: Gate, route: str) -> None:
        self._app = app
        self._gate = gate
        self._route = route

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        scope["zot.route"] = self._route
        scope["zot.bearer"] = bearer = self._gate.bearer(scope)
        if bearer is None:
            await refuse(scope, send, 401, "a token is needed, as Authorization: Bearer or as a subprotocol")
        else:
            await self._app(scope, receive, send)
