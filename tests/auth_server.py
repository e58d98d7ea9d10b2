"""A fake model service that checks API keys and quotes a refused key in its error, as careless services do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import claude

HELLO = b"".join(claude.reply(claude.text("Hello")))


class AuthServer(ThreadingHTTPServer):
    """Serves Anthropic Messages and model lists, also as a proxy. ``replies`` are sent first."""

    daemon_threads = True

    def __init__(self, *accepted: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.accepted = {*accepted}
        self.keys: list[str] = []
        self.asked: list[str] = []
        self.replies: list[tuple[int, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: AuthServer

    def do_GET(self) -> None:
        self._serve(b'{"data":[]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self._serve(HELLO)

    def _serve(self, usual: bytes) -> None:
        key = _key(dict(self.headers.items()))
        self.server.keys.append(key)
        self.server.asked.append(f"{self.command} {self.path}")
        if key not in self.server.accepted:
            self._answer(401, self._indiscretion(key))
        elif self.command == "POST" and self.server.replies:
            self._answer(*self.server.replies.pop(0))
        else:
            self._answer(200, usual)

    def _indiscretion(self, key: str) -> bytes:
        """Quote the key and the other headers in every encoding."""
        proxy = self.headers.get("proxy-authorization", "")
        said = f"invalid key {key}, that is {quote(key, safe='')}; {proxy}"
        return json.dumps(
            {
                "type": "error",
                "error": {"type": "authentication_error", "code": key, "message": said},
                "request_id": key,
            }
        ).encode()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if b"data: " in body else "text/html")
        if 300 <= status < 400:
            self.send_header("location", f"https://elsewhere.invalid/{quote(body)}")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its name in the standard library
        """Log nothing."""


def _key(headers: Mapping[str, str]) -> str:
    names = {name.lower(): value for name, value in headers.items()}
    bearer = names.get("authorization", "").removeprefix("Bearer ")
    return names.get("x-api-key") or names.get("x-goog-api-key") or bearer


@contextmanager
def guarding(*accepted: str) -> Iterator[AuthServer]:
    """Serve on a port of its own."""
    with AuthServer(*accepted) as gate:
        thread = threading.Thread(target=gate.serve_forever, kwargs={"poll_interval": 0.02}, name="gatekeeper")
        thread.start()
        try:
            yield gate
        finally:
            gate.shutdown()
            thread.join(10)
