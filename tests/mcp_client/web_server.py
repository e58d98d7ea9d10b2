"""A small MCP server over HTTP for the tests, in the test's event loop; its mode selects its behaviour."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object", "properties": {
        "text": {"type": "string", "x-mcp-header": "Text"}}}},
]  # fmt: skip


class WebServer:
    """Answers requests, and remembers them. ``mode`` is "new" or "old", with "json", "sse" or another word."""

    def __init__(self, *mode: str) -> None:
        self.mode = mode
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.token = ""
        self.sessions = 0
        self.url = ""
        self.waiting = asyncio.Event()
        self.gone = asyncio.Event()

    @property
    def methods(self) -> list[str]:
        """The methods of the messages so far; of others the HTTP method."""
        return [body.get("method", "answer") if body else method for method, _, _, body in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers: dict[str, str] = {}
                while (line := await reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                data = await reader.readexactly(int(headers.get("content-length", "0")))
                form = headers.get("content-type", "").endswith("urlencoded")
                body = json.loads(data) if data and not form else data.decode()
                self.requests.append((method, path, headers, {} if isinstance(body, str) else body))
                await self.answer(writer, method, path, headers, body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.gone.set()
            writer.close()

    async def answer(self, writer: Any, method: str, path: str, headers: dict[str, str], body: Any) -> None:
        if path != "/mcp":
            await self.authorize(writer, path, body)
        elif "silent" in self.mode:
            return
        elif "endless" in self.mode:
            await send_endlessly(writer, b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\n' * 500)
        elif "endless-event" in self.mode:
            await send_endlessly(writer, b"data: " + b"x" * 65536 + b"\n")
        elif "insatiable" in self.mode:
            await send(writer, 401, {}, {"www-authenticate": "Bearer"})
        elif "huge-headers" in self.mode:
            await send(writer, 200, {}, {"x-huge": "y" * 2_000_000})
        elif self.token and headers.get("authorization") != f"Bearer {self.token}":
            await send(writer, 401, {}, {"www-authenticate": 'Bearer scope="all"'})
        elif "redirects" in self.mode:
            await send(writer, 307, {}, {"location": "https://elsewhere"})
        elif method != "POST":
            await send(writer, 405, {})
        elif "old" in self.mode and body.get("method") != "initialize" and not self.is_known(headers):
            await send(writer, 404 if self.sessions else 400, {})
        else:
            await self.message(writer, body)

    def is_known(self, headers: dict[str, str]) -> bool:
        return headers.get("mcp-session-id") == f"session-{self.sessions}"

    async def message(self, writer: Any, body: dict[str, Any]) -> None:
        more: dict[str, str] = {}
        match body.get("method"):
            case "initialize" if "lies" in self.mode:
                result: dict[str, Any] = {"protocolVersion": "1999-01-01", "capabilities": {}}
            case "server/discover" if "new" in self.mode:
                result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            case "initialize" if "old" in self.mode:
                self.sessions += 1
                more = {"mcp-session-id": f"session-{self.sessions}"}
                result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            case "tools/list":
                result = {"tools": TOOLS}
            case "tools/call" if "hangs" in self.mode:
                self.waiting.set()
                return
            case "tools/call" if "dies" in self.mode:
                writer.close()
                return
            case "tools/call":
                result = {"content": [{"type": "text", "text": f"you said {body['params']['arguments'].get('text')}"}]}
            case method if method is None or method.startswith("notifications/"):
                await send(writer, 202, {})
                return
            case _:
                error = {"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "what?"}}
                await send(writer, 404 if "new" in self.mode else 200, error)
                return
        number = 999 if "wrong-ids" in self.mode else body["id"]
        answer = {"jsonrpc": "2.0", "id": number, "result": {"resultType": "complete", **result}}
        if "sse" in self.mode:
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
            data = f"event: message\ndata: {json.dumps(note)}\n\ndata: {json.dumps(answer)}\n\n".encode()
            await send(writer, 200, data, {**more, "content-type": "text/event-stream"})
        else:
            await send(writer, 200, answer, more)

    async def authorize(self, writer: Any, path: str, body: Any) -> None:
        """Be the authorization server, too."""
        origin = self.url.removesuffix("/mcp")
        match path.partition("?")[0]:
            case "/.well-known/oauth-protected-resource/mcp":
                await send(writer, 200, {"resource": self.url, "authorization_servers": [origin]})
            case "/.well-known/oauth-authorization-server":
                endpoints = {f"{name}_endpoint": f"{origin}/{name}" for name in ("token", "registration")}
                methods = {"code_challenge_methods_supported": ["S256"]}
                place = {"issuer": origin, "authorization_endpoint": f"{origin}/authorize"}
                await send(writer, 200, {**place, **endpoints, **methods})
            case "/registration":
                await send(writer, 201, {"client_id": "me"})
            case "/token":
                self.token = "first" if "authorization_code" in body else "second"
                await send(writer, 200, {"access_token": self.token, "token_type": "Bearer", "refresh_token": "again"})
            case _:
                await send(writer, 404, {})


async def send(writer: Any, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    writer.write(f"HTTP/1.1 {status} x\r\n{lines}\r\n".encode() + data)
    await writer.drain()


async def send_endlessly(writer: Any, event: bytes) -> None:
    """Send events until the client leaves."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    for _ in range(1_000_000):
        writer.write(event)
        await writer.drain()


@asynccontextmanager
async def web_server(*mode: str) -> AsyncIterator[WebServer]:
    server = WebServer(*mode)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
    try:
        yield server
    finally:
        listening.close()


@contextmanager
def threaded_web_server(*mode: str) -> Iterator[WebServer]:
    """The same in a thread, for tests that block while they wait for another process."""
    started, made = threading.Event(), list[tuple[WebServer, asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        over = asyncio.Event()
        async with web_server(*mode) as server:
            made.append((server, asyncio.get_running_loop(), over))
            started.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    server, loop, over = made[0]
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
