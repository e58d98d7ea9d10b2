"""A daemon as an ASGI application: for our own server, or in somebody else's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route, WebSocketRoute

from zot.config.tokens import path_in
from zot.serve.daemon.refusals import Refusals
from zot.serve.web.conversation import Conversation
from zot.serve.web.extending import Extending
from zot.serve.web.gate import Gate
from zot.serve.web.guard import App, Inner, Outer
from zot.serve.web.limits import Limits
from zot.serve.web.pages import MetricsPage, healthz
from zot.serve.web.refusing import refuse
from zot.serve.web.respond import Respond
from zot.serve.web.tokens import Tokens
from zot.serve.web.websocket import Receive, Send

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon


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
