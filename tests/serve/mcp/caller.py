"""An MCP client of the real `zot mcp serve`; each result is checked against the published types."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from harness import Zot, environment

if TYPE_CHECKING:
    from forked import ForkServer

Frame: TypeAlias = dict[str, Any]

STATELESS, WITH_HANDSHAKE = "2026-07-28", "2025-11-25"
TASKS = "io.modelcontextprotocol/tasks"
_PREFIX = "io.modelcontextprotocol/"


def meta(capabilities: Frame | None = None, **more: Any) -> Frame:
    """Return the fields that a stateless client sends with each request."""
    return {f"{_PREFIX}protocolVersion": STATELESS, f"{_PREFIX}clientCapabilities": capabilities or {}, **more}


class Caller(Zot):
    """A client of `zot mcp serve` in ``cwd``; the journal is in ``cwd/home``."""

    def __init__(self, *flags: str, cwd: Path, fork_server: ForkServer) -> None:
        provider = () if "--provider" in flags else ("--provider", "lab")
        variables = environment({"ZOT_HOME": str(cwd / "home")})
        self.cwd = cwd
        self.process = fork_server.fork(["mcp", "serve", *provider, *flags], cwd, variables)
        self.frames: list[Frame] = []
        self.capabilities: Frame | None = None
        self._unread = bytearray()
        self._lines: list[bytes] = []
        self._count = count(1)
        self._asked: dict[Any, str] = {}

    def read(self, *, within_s: float = 60.0) -> Frame:
        frame: Frame = json.loads(self.read_line(within_s=within_s))
        self.frames.append(frame)
        if "result" in frame:
            self._check(self._asked[frame["id"]], frame["result"])
        return frame

    def _check(self, method: str, result: Frame) -> None:
        from mcp_types import methods  # Imported when it is used: it takes a third of a second.

        version = WITH_HANDSHAKE if self.capabilities is None else STATELESS
        if not method.startswith("tasks/") and result.get("resultType") != "task":
            methods.validate_server_result(method, version, result)

    def greet(self, **capabilities: Any) -> Frame:
        """Begin as a client of 2025-11-25."""
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": WITH_HANDSHAKE, "capabilities": capabilities, "clientInfo": client}
        greeted = self.call("initialize", **params)
        self.tell("notifications/initialized")
        return greeted

    def speak(self, **capabilities: Any) -> Caller:
        """Continue as a stateless client."""
        self.capabilities = capabilities
        return self

    def start(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        number = next(self._count)
        self._asked[number] = method
        if self.capabilities is not None:
            params["_meta"] = meta(self.capabilities, **params.get("_meta", {}))
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def start_tool(self, tool: str, arguments: Frame, **more: Any) -> int:
        return self.start("tools/call", name=tool, arguments=arguments, **more)

    def tell(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def answer_of(self, number: int) -> Frame:
        """Return the answer to a request; the frames before it are in ``frames``."""
        while (frame := self.read()).get("id") != number or "method" in frame:
            pass
        return frame

    def call(self, method: str, **params: Any) -> Frame:
        """Return the result of a request."""
        answer = self.answer_of(self.start(method, **params))
        assert "result" in answer, answer
        result: Frame = answer["result"]
        return result

    def refused(self, method: str, **params: Any) -> Frame:
        """Return the error of a request."""
        error: Frame = self.answer_of(self.start(method, **params))["error"]
        return error

    def tool(self, tool: str, arguments: Frame, **more: Any) -> Frame:
        """Return the result of a tool."""
        return self.call("tools/call", name=tool, arguments=arguments, **more)

    def until_asked(self) -> Frame:
        """Return the next question of the server."""
        while (frame := self.read()).get("method") != "elicitation/create":
            pass
        return frame

    def reply(self, question: Frame, action: str, **content: Any) -> None:
        """Answer a question."""
        result = {"action": action, **({"content": content} if content else {})}
        self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

    def leave(self) -> list[Frame]:
        """End the input, return the remaining messages, and check that the process exited in order."""
        self.hang_up()
        frames = self.rest()
        assert self.wait() == 0, self.errors()
        return frames


def structured(result: Frame) -> Frame:
    """Return the structured content of a result, which its text repeats."""
    found: Frame = result["structuredContent"]
    texts = [one["text"] for one in result["content"]]
    assert found["text"] in texts
    assert f"session: {found['session']}" in "\n".join(texts)
    return found


def progress_of(frames: list[Frame]) -> list[Frame]:
    """Return the parameters of the progress among frames."""
    return [one["params"] for one in frames if one.get("method") == "notifications/progress"]
