"""The daemon as an ASGI application, with health and metrics pages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from zot.config.agents import Agents
from zot.config.paths import Place
from zot.config.tokens import path_in
from zot.journal.journal import Journal
from zot.runtime.shared import Premises
from zot.serve.daemon.audit import Audit, Refusals, Who
from zot.serve.daemon.daemon import Daemon
from zot.serve.daemon.lifecycle import Chores
from zot.serve.daemon.logs import LogFile
from zot.serve.daemon.parts import Establishment, journal_of
from zot.serve.web.gate import Gate, Limits, Tokens
from zot.serve.web.respond import Respond
from zot.serve.web.websocket import Conversation, Extending, Message, Receive, Send, refuse

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def healthz(request: Request) -> Response:
    """Say that somebody is there, and nothing else: it is said to everybody."""
    del request
    return PlainTextResponse("ok\n", headers=_HEADERS)


class MetricsPage:
    """What was counted, as Prometheus reads it (an ASGI application)."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer with all counters, and how much there is at this moment."""
        text = self._daemon.metrics.told(self._daemon.gauges())
        await Response(text, media_type=_PROMETHEUS, headers=_HEADERS)(scope, receive, send)


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


def app_for(
    daemon: Daemon,
    *,
    tokens: Tokens | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    limits: Limits | None = None,
    path: str = "",
) -> App:
    """Return an application that serves ``daemon``, at `/` or below a path at which it is mounted, and then ``path``.

    ``tokens`` are who may come in, otherwise those in `token` of the daemon's data directory. ``hosts`` and ``origins``
    count besides those that the configuration has. Raise ConfigError if there are no tokens.
    """
    settings, limits = daemon.parts.settings, limits or Limits(message=daemon.max_line_bytes)
    daemon.parts.joinable = True
    known = tokens or Tokens(path_in(daemon.place.data_dir))
    gate = Gate(known, hosts=(*hosts, *settings.hosts), origins=(*origins, *settings.origins))
    conversation = Conversation(daemon, limits)
    routes: list[BaseRoute] = [
        Route("/healthz", healthz),
        Route("/metrics", Inner(MetricsPage(daemon), gate, "/metrics"), methods=["GET"]),
        Route("/v1/respond", Inner(Respond(daemon, limits), gate, "/v1/respond"), methods=["POST"]),
        WebSocketRoute("/", Inner(conversation, gate, "/")),
        WebSocketRoute("/ws", Inner(conversation, gate, "/ws")),
        WebSocketRoute("/ext", Inner(Extending(daemon), gate, "/ext")),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    app.router.default = _nothing
    return Outer(_Below(path, app), gate, Refusals(daemon.parts.audit, daemon.metrics))


class _Below:
    """Puts an application below a path, which is that of its `/`, too, without a slash at its end."""

    def __init__(self, path: str, app: App) -> None:
        self._path = path
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        root, path = scope.get("root_path", "") + self._path, scope["path"]
        if path == root:
            path += "/"
        if self._path and not path.startswith(f"{root}/"):
            await _nothing(scope, receive, send)
            return
        scope.update(root_path=root, path=path)
        await self._app(scope, receive, send)


async def _nothing(scope: Any, receive: Receive, send: Send) -> None:
    await refuse(scope, send, 404, "there is nothing at this path")


@asynccontextmanager
async def open_daemon(config_dir: str | os.PathLike[str], **settings: Any) -> AsyncIterator[Daemon]:
    """Open a daemon whose `config.toml` is in ``config_dir``, and everything that it keeps in `data` there.

    ``settings`` win over what the file says of agents, as the flags of `zot daemon` do: ``provider="lab"``. At the end
    what runs is given the time that the configuration says, and then ended. Raise ConfigError, StoreFailed.
    """
    place = _place_in(config_dir)
    agents = Agents.load(place.config_dir)
    journal = await Journal.open(journal_of(place, agents))
    premises = Premises()
    # Those who look with `zot ext logs` look in zot's home; whoever embeds a daemon has asked for one place for all.
    flags = {**settings, "data": place.data_dir}
    audit = Audit(LogFile(os.path.join(place.logs, "audit.log")), soon=asyncio.get_running_loop().call_soon)
    parts = Establishment(place, agents, journal=journal, premises=premises, audit=audit, flags=flags)
    daemon = Daemon(parts)
    try:
        async with Chores() as chores:
            chores.start(daemon.mend(), "mending")
            chores.start(daemon.watch.run(), "watching")
            yield daemon
    finally:
        await daemon.close()
        await premises.close()
        await journal.close()
        audit.close()


def _place_in(config_dir: str | os.PathLike[str]) -> Place:
    """Return where everything is; nobody connects to it by a socket."""
    directory = os.path.abspath(config_dir)
    data_dir = os.path.join(directory, "data")
    return Place("", data_dir, directory, os.path.join(data_dir, "journal.db"))
