"""A session with MCP servers: real processes, the scripted model, and a record of all messages."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec

from extensions.stage import Stage, results
from harness import MARK as RUN_MARK
from tools.shells import MARK, left
from zot.config.flags import McpServer
from zot.mcp.launch import McpDeadlines

SERVER = str(Path(__file__).parent / "server.py")


class McpStage(Stage):
    """A session with one server named ``s`` in this mode, or those that ``settings`` name."""

    def __init__(self, home: Path, mode: str = "good", timeout_s: float = 60.0, **settings: Any) -> None:
        home.mkdir(exist_ok=True)
        self.mark = uuid.uuid4().hex
        self.heard_file = home / f"heard-{self.mark}"
        servers = {"s": self.server(mode, timeout_s=timeout_s)}
        super().__init__(home, **{"mcp": servers, **settings})

    def server(self, mode: str, **settings: Any) -> McpServer:
        """Return a server in this mode, whose processes can be found."""
        env = {MARK: self.mark, RUN_MARK: os.environ.get(RUN_MARK, ""), "HEARD": str(self.heard_file)}
        return McpServer(command=sys.executable, args=(SERVER, mode), env=env, **settings)

    def offered(self) -> list[str]:
        """The names of the tools that the model may call now, besides zot's own."""
        return [name for name in self.session.agent._offered() if name.startswith("mcp__")]

    async def learn(self) -> None:
        """Let the session find its servers' tools: they are looked for after the first prompt."""
        await self.prompt("say hi")
        await self.until_known("mcp__s__echo")

    async def until_known(self, tool: str) -> None:
        while tool not in self.offered():
            await asyncio.sleep(0.005)

    async def call(self, text: str = "", tool: str = "mcp__s__echo") -> tuple[str, bool]:
        """The result of a call by the model: its text, and whether it failed."""
        events = await self.prompt(f"call {tool} {json.dumps({'text': text})} ;; --- ;; say done")
        [result] = results([event for event in events if event["type"] == "tool_result"])
        return result

    async def find(self, query: str) -> list[tuple[str, bool]]:
        """The results of a search for tools by the model."""
        events = await self.prompt(f"call find_tools {json.dumps({'query': query})} ;; --- ;; say done")
        return results([event for event in events if event["type"] == "tool_result"])

    def mcp_servers(self) -> Any:
        return self.session.tools.mcp  # type: ignore[attr-defined]  # It is a Toolbox here.

    def hurry(self, **deadlines: float) -> None:
        """Give the servers less time to start."""
        launch = msgspec.structs.replace(self.mcp_servers()._launch, deadlines=McpDeadlines(**deadlines))
        for server in self.mcp_servers().servers:
            server._launch = launch

    def heard(self) -> list[dict[str, Any]]:
        """The messages that the servers have received."""
        lines = self.heard_file.read_text().split("\n") if self.heard_file.exists() else []
        return [json.loads(line) for line in lines if line]

    def methods(self) -> list[str]:
        return [message.get("method", "") for message in self.heard()]

    def log_of(self, name: str = "s") -> str:
        path = self.home / "logs" / f"mcp-{name}.log"
        return path.read_text() if path.exists() else ""

    async def until_left(self, count: int) -> None:
        """Wait until this many processes of the servers run."""
        while len(left(self.mark)) != count:
            await asyncio.sleep(0.01)
