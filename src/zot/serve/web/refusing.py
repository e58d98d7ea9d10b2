"""Answers that refuse: short, and the same whether a page or a WebSocket was wanted."""

from __future__ import annotations

from typing import Any

from zot.serve.web.websocket import Send

_HEADERS = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
)


async def refuse(scope: Any, send: Send, status: int, message: str) -> None:
    """Answer that something is not done, and why."""
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
