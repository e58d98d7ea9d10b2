"""The dashboard: its assets, the pairing of browsers, and the cookie that admits a paired one.

Pages and assets are the same for all and need no cookie. Sessions are reached over the WebSocket alone, which takes the
cookie only from a page of the daemon's own origin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from zot.config.pairing import DEVICE_PREFIX, redeem
from zot.config.tokens import revoke
from zot.encoding import UNREADABLE, thread_safe_type
from zot.errors import AgentError, UserError
from zot.serve.daemon.audit import Audit, Identity
from zot.serve.web.gate import Gate, Scope, headers_of
from zot.serve.web.websocket import Receive, Send, refuse
from zot.wire.daemon import Grant

#: The path of the page below the daemon's address; the cookie is sent to paths below it only.
PATH = "/web"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Sent by the page with each POST.
PAGE_HEADER = b"x-zot-page"
_PAGE = "index.html"
#: Replaced in the page by the digest of all assets, which is a part of their addresses.
_DIGEST = b"{{digest}}"
_MAX_PAIRING_BYTES = 4096
_PAIRING_S = 10.0


class Assets:
    """Files of the dashboard, read once. ``digest`` changes with any of them, so browsers may keep them for good."""

    def __init__(self) -> None:
        found = {one.name: one.read_bytes() for one in files("zot.serve.web").joinpath("assets").iterdir()}
        self._files = {name: found[name] for name in sorted(found)}
        self.digest = sha256(b"\0".join(name.encode() + b"\0" + self._files[name] for name in self._files)).hexdigest()[
            :16
        ]
        self._page = self._files.pop(_PAGE).replace(_DIGEST, self.digest.encode())

    async def page(self, request: Request) -> Response:
        """Answer with the page; browsers ask each time whether it has changed."""
        headers = {**HEADERS, "cache-control": "no-cache", "etag": f'"{self.digest}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(self._page, media_type=_KINDS["html"], headers=headers)

    async def asset(self, request: Request) -> Response:
        """Answer with an asset of this version."""
        name, digest = request.path_params["name"], request.path_params["digest"]
        if digest != self.digest or name not in self._files:
            return Response("there is no such asset\n", 404, {**HEADERS, "cache-control": "no-store"}, "text/plain")
        headers = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return Response(self._files[name], media_type=_KINDS[name.rpartition(".")[2]], headers=headers)


class CookieGuard:
    """Refuse requests without the cookie of a paired device, or from another origin (an ASGI application).

    A browser attaches cookies by itself, so each request must prove that a page of the daemon's own made it: by its
    ``Origin``, which the gate has compared with ``Host``, or, for a GET, by ``Sec-Fetch-Site``.
    """

    def __init__(self, app: ASGIApp, gate: Gate, route: str) -> None:
        self._app = app
        self._gate = gate
        self._route = route

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        scope["zot.route"] = self._route
        scope["zot.grant"], scope["zot.bearer"], scope["zot.tokens"] = None, None, self._gate.tokens
        if not is_from_own_page(scope):
            await refuse(scope, send, 403, "only the daemon's own page may use its cookie")
            return
        grant = cookie_grant(scope, self._gate)
        if grant is None:
            await refuse(scope, send, 401, "this browser is not paired; print a link with: zot web pair")
            return
        scope["zot.grant"], scope["zot.bearer"] = grant, grant.name
        await self._app(scope, receive, send)


def is_from_own_page(scope: Scope) -> bool:
    """True if a page of the daemon made a request. The gate has already refused foreign and doubled origins.

    A POST also has a header that a foreign page can send only after a preflight, which is never answered.
    """
    sites = headers_of(scope, b"sec-fetch-site")
    if sites and sites != ["same-origin"]:
        return False
    if scope.get("method") == "POST" and headers_of(scope, PAGE_HEADER) != ["1"]:
        return False
    return bool(headers_of(scope, b"origin")) or (scope.get("method") == "GET" and sites == ["same-origin"])


def cookie_name(gate: Gate) -> str:
    """Return the cookie's name. Browsers send cookies to all ports of a host, so each daemon has a name of its own."""
    return f"zot_web_{sha256(gate.tokens.path.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def cookie_grant(scope: Scope, gate: Gate) -> Grant | None:
    """Return what the cookie of a request allows; None without exactly one, or if its token is of no device."""
    pairs = [one.strip().partition("=") for value in headers_of(scope, b"cookie") for one in value.split(";")]
    given = [value for name, _, value in pairs if name == cookie_name(gate)]
    grant = gate.tokens.grant(given[0]) if len(given) == 1 and given[0] else None
    return grant if grant is not None and grant.name.startswith(DEVICE_PREFIX) else None


class _Code(msgspec.Struct, frozen=True):
    code: str


class Dashboard:
    """Routes of the dashboard for one daemon."""

    def __init__(self, gate: Gate, audit: Audit, *, clock: Callable[[], float] = time.time) -> None:
        self._gate = gate
        self._audit = audit
        self._clock = clock
        self._assets = Assets()

    def routes(self, conversation: ASGIApp) -> list[BaseRoute]:
        """Return the routes; ``conversation`` serves the WebSocket."""
        gate = self._gate
        return [
            Route(PATH, _to_page, methods=["GET"]),
            Route(f"{PATH}/", self._assets.page, methods=["GET"]),
            Route(f"{PATH}/assets/{{digest}}/{{name}}", self._assets.asset, methods=["GET"]),
            Route(f"{PATH}/pair", self._pair, methods=["POST"]),
            Route(f"{PATH}/unpair", CookieGuard(_Answering(self._unpair), gate, f"{PATH}/unpair"), methods=["POST"]),
            Route(f"{PATH}/device", CookieGuard(_Answering(_device), gate, f"{PATH}/device"), methods=["GET"]),
            WebSocketRoute(f"{PATH}/ws", CookieGuard(conversation, gate, f"{PATH}/ws")),
        ]

    async def _pair(self, request: Request) -> Response:
        """Exchange a one-time code for the cookie. A foreign page can neither send JSON nor name our origin."""
        request.scope["zot.route"] = f"{PATH}/pair"
        if not is_from_own_page(request.scope) or not request.headers.get("origin"):
            return _refused(403, "only the daemon's own page may pair")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _refused(415, "Content-Type must be application/json")
        try:
            async with asyncio.timeout(_PAIRING_S):
                code = await _code_in(request)
        except (TimeoutError, ClientDisconnect):
            return _refused(408, "the request did not come in time")
        if code is None:
            return _refused(400, "expected a code")
        try:
            paired = await asyncio.to_thread(redeem, self._gate.tokens.path, code, now=self._clock())
        except UserError as problem:
            return _refused(409, str(problem))
        except AgentError:  # Not quoted: it names paths.
            return _refused(503, "the daemon cannot pair now; its log has the reason")
        if paired is None:
            return _refused(401, "this link was used already, or has expired; print another with: zot web pair")
        self._audit.note("paired", Identity("http", token=paired.name), method=f"{PATH}/pair")
        answer = JSONResponse({"device": paired.name}, headers=_no_store())
        self._set_cookie(answer, request, paired.token, int(paired.lasts_s))
        return answer

    async def _unpair(self, request: Request) -> Response:
        """Revoke the device's own token and remove its cookie."""
        name: str = request.scope["zot.bearer"]
        await asyncio.to_thread(revoke, self._gate.tokens.path, name)
        self._audit.note("unpaired", Identity("http", token=name), method=f"{PATH}/unpair")
        answer = JSONResponse({"device": name}, headers=_no_store())
        self._set_cookie(answer, request, "", 0)
        return answer

    def _set_cookie(self, answer: Response, request: Request, value: str, max_age: int) -> None:
        is_secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
        answer.set_cookie(
            cookie_name(self._gate),
            value,
            max_age=max_age,
            path=f"{request.scope.get('root_path', '')}{PATH}",
            secure=is_secure,
            httponly=True,
            samesite="strict",
        )


class _Answering:
    """A function of a request as an ASGI application."""

    def __init__(self, answer: Callable[[Request], Any]) -> None:
        self._answer = answer

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        response: Response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)


async def _device(request: Request) -> Response:
    """Return the browser's name and roles."""
    grant: Grant = request.scope["zot.grant"]
    return JSONResponse({"device": grant.name, "roles": sorted(grant.roles)}, headers=_no_store())


async def _to_page(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}/", 308, headers=_no_store())


async def _code_in(request: Request) -> str | None:
    """Return the code in a body; None if there is none, or too much."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_PAIRING_BYTES:
            return None
    try:
        return msgspec.json.decode(bytes(body), type=thread_safe_type(_Code)).code
    except UNREADABLE:
        return None


def _refused(status: int, message: str) -> Response:
    return Response(f"{message}\n", status, _no_store(), "text/plain")


def _no_store() -> dict[str, str]:
    return {**HEADERS, "cache-control": "no-store"}
