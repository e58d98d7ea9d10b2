"""Daemon as an ASGI application, with health and metrics pages."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from zot.config.configured_agents import AgentConfigs, daemon_journal
from zot.config.paths import DaemonPaths
from zot.config.tokens import path_in
from zot.errors import StoreFailed
from zot.fleet.status import status_of_fleet
from zot.journal.opening import open_journal
from zot.runtime.shared import SharedResources
from zot.serve.daemon.audit import Audit, Identity, Refusals
from zot.serve.daemon.daemon import Daemon, DaemonParts
from zot.serve.daemon.lifecycle import BackgroundTasks
from zot.serve.daemon.logs import LogFile
from zot.serve.daemon.metrics import fleet_exposition
from zot.serve.mcp.agent import AgentService
from zot.serve.web.dashboard import Dashboard
from zot.serve.web.gate import Gate, Limits, Tokens
from zot.serve.web.mcp import DaemonMcpSessions, McpEndpoint
from zot.serve.web.respond import Respond
from zot.serve.web.websocket import ClientEndpoint, ExtensionEndpoint, Message, Receive, Send, refuse

log = logging.getLogger("zot")

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def healthz(request: Request) -> Response:
    """Answer that the daemon is up, without a token and without any detail."""
    del request
    return PlainTextResponse("ok\n", headers=_HEADERS)


class MetricsPage:
    """Counters and gauges in Prometheus' format (an ASGI application)."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer with all counters and gauges."""
        text = self._daemon.metrics.exposition(self._daemon.gauges())
        if self._daemon.parts.worker_pool:
            try:
                text += fleet_exposition(await self._daemon.parts.journal.reading(status_of_fleet))
            except StoreFailed as problem:  # The rest is still true.
                log.warning("metrics of the fleet: %s", problem)
        await Response(text, media_type=_PROMETHEUS, headers=_HEADERS)(scope, receive, send)


class OriginGuard:
    """Refuse requests with a wrong host or origin, and count all refusals (an ASGI application)."""

    def __init__(self, app: ASGIApp, gate: Gate, refusals: Refusals) -> None:
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
        self._refusals.note(Identity(transport, token=scope.get("zot.bearer")), scope.get("zot.route", ""), outcome)


class TokenGuard:
    """Refuse requests without a valid token that has a role (an ASGI application).

    ``route`` names the path in the audit log. With ``whole``, tokens that are bound to sessions are refused, too. The
    application below finds the token's `Grant` in the scope, and must serve only the sessions that it sees.
    """

    def __init__(self, app: ASGIApp, gate: Gate, route: str, role: str, *, whole: bool = False) -> None:
        self.role = role
        self._app = app
        self._gate = gate
        self._route = route
        self._whole = whole

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        scope["zot.route"] = self._route
        grant = self._gate.grant(scope)
        scope["zot.grant"], scope["zot.bearer"] = grant, None if grant is None else grant.name
        scope["zot.tokens"] = self._gate.tokens
        if grant is None:
            await refuse(scope, send, 401, "a token is needed, as Authorization: Bearer or as a subprotocol")
        elif not grant.may(self.role):
            await refuse(scope, send, 403, f"this needs a token with the role {self.role}")
        elif self._whole and grant.sessions is not None:
            await refuse(scope, send, 403, "this needs a token for all sessions, and yours is bound to some")
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
) -> ASGIApp:
    """Return an application that serves ``daemon`` at ``path`` below its mount point.

    ``tokens`` defaults to the file `token` in the daemon's data directory. ``hosts`` and ``origins`` are allowed in
    addition to the configured ones. Raise ConfigError if there are no tokens.
    """
    settings, limits = daemon.parts.settings, limits or Limits(message=daemon.max_line_bytes)
    daemon.parts.joinable = True
    known = tokens or Tokens(path_in(daemon.place.data_dir))
    gate = Gate(known, hosts=(*hosts, *settings.hosts), origins=(*origins, *settings.origins))
    conversation = ClientEndpoint(daemon, limits)
    metrics, respond, extension = MetricsPage(daemon), Respond(daemon, limits), ExtensionEndpoint(daemon)
    mcp = McpEndpoint(AgentService(DaemonMcpSessions(daemon)), limits)
    routes: list[BaseRoute] = [
        Route("/healthz", healthz),
        Route("/metrics", TokenGuard(metrics, gate, "/metrics", "view", whole=True), methods=["GET"]),
        Route("/v1/respond", TokenGuard(respond, gate, "/v1/respond", "prompt"), methods=["POST"]),
        # Any role may ask what there is: each tool states its own.
        Route("/mcp", TokenGuard(mcp, gate, "/mcp", "any"), methods=["POST", "GET", "DELETE"]),
        # Any role may connect: each method states its own.
        WebSocketRoute("/", TokenGuard(conversation, gate, "/", "any")),
        WebSocketRoute("/ws", TokenGuard(conversation, gate, "/ws", "any")),
        WebSocketRoute("/ext", TokenGuard(extension, gate, "/ext", "extend")),
        *Dashboard(gate, daemon.parts.audit).routes(conversation),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    app.router.default = _not_found
    return OriginGuard(_Mounted(path, app), gate, Refusals(daemon.parts.audit, daemon.metrics))


class _Mounted:
    """Mount an application below a path; its `/` is also reached without the trailing slash."""

    def __init__(self, path: str, app: ASGIApp) -> None:
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
            await _not_found(scope, receive, send)
            return
        scope.update(root_path=root, path=path)
        await self._app(scope, receive, send)


async def _not_found(scope: Any, receive: Receive, send: Send) -> None:
    await refuse(scope, send, 404, "there is nothing at this path")


@asynccontextmanager
async def open_daemon(config_dir: str | os.PathLike[str], **settings: Any) -> AsyncIterator[Daemon]:
    """Open a daemon whose `config.toml` is in ``config_dir`` and whose data are in `data` there.

    ``settings``, such as ``provider="lab"``, override the file's settings of agents, as the flags of `zot daemon` do.
    On exit, runs get the configured grace period and are then ended. Raise ConfigError, StoreFailed.
    """
    place = _place_in(config_dir)
    agents = AgentConfigs.load(place.config_dir)
    journal = await open_journal(daemon_journal(place, agents, settings))
    resources = SharedResources(serves_many=True)
    # `zot ext logs` looks in zot's home, but an embedded daemon keeps everything in one directory.
    flags = {**settings, "data": place.data_dir}
    audit = Audit(LogFile(os.path.join(place.logs, "audit.log")), soon=asyncio.get_running_loop().call_soon)
    parts = DaemonParts(place, agents, journal=journal, resources=resources, audit=audit, flags=flags)
    daemon = Daemon(parts)
    try:
        async with BackgroundTasks() as chores:
            chores.start(daemon.recover(), "recovery")
            chores.start(daemon.sessions.watch.run(), "watching")
            yield daemon
    finally:
        await daemon.close()
        await resources.close()
        await journal.close()
        audit.close()


def _place_in(config_dir: str | os.PathLike[str]) -> DaemonPaths:
    """Return the paths of a daemon without a local socket."""
    directory = os.path.abspath(config_dir)
    data_dir = os.path.join(directory, "data")
    return DaemonPaths("", data_dir, directory, os.path.join(data_dir, "journal.db"))
