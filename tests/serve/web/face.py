"""A daemon reachable over HTTP, in this process, and its clients: polite and hostile ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from websockets.asyncio.client import ClientConnection, connect

from daemons import Asked
from harness import at_home
from zot.serve.daemon.daemon import Daemon
from zot.serve.web import Limits, listen, open_daemon

#: How long anything may take before a test fails. Never how long it does take.
PATIENCE_S = 60.0


class Answer(NamedTuple):
    """A response: its status, its headers in lower case, and its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Face:
    """A daemon at an address, and its files."""

    def __init__(self, daemon: Daemon, url: str, home: Path, data: Path | None = None) -> None:
        self.daemon = daemon
        self.url = url
        self.port = int(url.rpartition(":")[2].partition("/")[0])
        self.home = home
        self.token = ((data or home / "data") / "token").read_text().strip()

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def send(self, data: bytes) -> Answer:
        """Send bytes on a connection of their own, and return the answer, which must end it."""
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(data)
            got = await reader.read()
            writer.close()
        return parsed(got)

    async def ask(
        self,
        method: str = "GET",
        path: str = "/",
        *,
        host: str | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make one request, with the right ``Host`` unless another is given."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port}'}", "Connection: close"]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def respond(self, request: Mapping[str, Any], **headers: str) -> Answer:
        """Make a request of the host protocol."""
        told = {"Content-Type": "application/json", **self.bearer, **headers}
        return await self.ask("POST", "/v1/respond", body=json.dumps(request).encode(), headers=told)

    @asynccontextmanager
    async def connected(self, path: str = "/", **options: Any) -> AsyncIterator[Client]:
        """Connect a WebSocket, with a token unless ``additional_headers`` are given."""
        options = {"additional_headers": self.bearer, "compression": None, "max_size": None, **options}
        async with connect(f"{self.url}{path}", proxy=None, **options) as socket:
            yield Client(socket)

    def audited(self) -> list[dict[str, Any]]:
        """Return the entries of the audit log and the access log, in the order of time."""
        self.daemon.parts.audit.flush()
        logs = [self.home / "data" / "logs" / name for name in ("audit.log", "access.log")]
        lines = [json.loads(line) for path in logs if path.exists() for line in path.read_text().splitlines()]
        return sorted(lines, key=lambda line: str(line["time"]))

    def refusals(self) -> list[tuple[str | None, str]]:
        """Return the refusals in the log: the request, and the reason."""
        return [(one.get("method"), one["outcome"]) for one in self.audited() if one["event"] == "refused"]


class Client:
    """A client that speaks the daemon's dialect over a WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.updates: list[dict[str, Any]] = []
        self._count = 0
        self._asked = Asked()

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.socket.recv()
        assert isinstance(frame, str)
        told: dict[str, Any] = json.loads(frame)
        return told

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a method and return its answer; updates that come before it are kept."""
        self._count += 1
        said = {"jsonrpc": "2.0", "method": method, "params": params or {}, "id": self._count}
        self._asked.note(said)
        await self.socket.send(json.dumps(said))
        while (told := await self.read()).get("id") != self._count:
            self.updates.append(told["params"])
        self._asked.check(told)
        return told

    async def begin(self, session: str | None = None) -> str:
        """Initialize, and return the id of a session."""
        await self.call("initialize", {"protocolVersion": 1})
        named = {} if session is None else {"sessionId": session}
        told = await self.call("session/new", {"agentAlias": "default", **named})
        return str(told["result"]["sessionId"])

    async def prompt(self, session: str, text: str) -> dict[str, Any]:
        """Prompt, and return the answer when the turn is over."""
        return await self.call("session/prompt", {"sessionId": session, "prompt": text})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.socket.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds that no event announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


def parsed(data: bytes) -> Answer:
    """Read an answer with a length or an end."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split(" ")[1]) if first else 0, headers, body)


@asynccontextmanager
async def faced(home: Path, *, limits: Limits | None = None, path: str = "", **settings: Any) -> AsyncIterator[Face]:
    """Open a daemon in ``home`` and listen at a port that is free."""
    home.mkdir(exist_ok=True)
    settings = {"provider": "lab", **settings}
    with at_home(home / "user"):
        async with open_daemon(home, **settings) as daemon:
            listening = await listen(daemon, f"ws://127.0.0.1:0{path}", limits=limits)
            try:
                yield Face(daemon, listening.url, home)
            finally:
                listening.stop()
                await daemon.close()
                await listening.close()
