"""What can be looked at over HTTP: is the daemon alive, and how much does it do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from zot.serve.web.websocket import Receive, Send

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
