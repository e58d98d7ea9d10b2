"""The MCP client of zot, driven by one scenario of the protocol's conformance suite.

    python scripts/mcp_conformance_client.py http://127.0.0.1:PORT/mcp

The suite runs this once per scenario, with the scenario's name in the environment, and judges what its server sees.
A browser that follows redirects stands in for the person who logs in.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from typing import Any
from urllib.parse import urljoin

from zot.errors import ToolFailed
from zot.mcp.launch import McpLaunch
from zot.mcp.servers import ManagedServer
from zot.mcp.source import McpSource
from zot.mcp.tool import call_tool
from zot.mcp.tool_cache import OfferedTool, ToolCache
from zot.providers.base import Deadlines, HttpRequest
from zot.providers.http import HttpTransport
from zot.questions import Question, QuestionReply, checked
from zot.runtime.shared import SharedResources
from zot.tools.base import CallReporter
from zot.wire.mcp_server import STATELESS, WITH_HANDSHAKE

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
REVISION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", STATELESS)
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
#: The document that describes the client in the suite's scenario for such documents.
DOCUMENT = "https://conformance-test.local/client-metadata.json"
_MAX_REDIRECTS = 10


class Accepting(CallReporter):
    """Accepts every question with its defaults."""

    async def ask(self, question: Question) -> QuestionReply:
        return QuestionReply("accept", checked(question.fields, {}))


async def browse(url: str) -> None:
    """Open an address and follow its redirects."""
    transport = HttpTransport({})
    try:
        for _ in range(_MAX_REDIRECTS):
            response = await transport.send(HttpRequest(url, {}, b"", "GET"), Deadlines())
            response.close()
            if not 300 <= response.status < 400:
                return
            url = urljoin(url, response.headers["location"])
    finally:
        await transport.close()


def arguments(tool: OfferedTool) -> dict[str, Any]:
    """Return arguments that fit a tool's schema."""
    for call in CONTEXT.get("toolCalls", []):
        if call.get("name") == tool.name:
            return dict(call.get("arguments", {}))
    usual = {"number": 2, "integer": 2, "boolean": True, "string": "x", "array": [], "object": {}}
    properties = tool.spec.schema.get("properties", {})
    return {name: usual.get(schema.get("type"), "x") for name, schema in properties.items() if isinstance(schema, dict)}


async def main(url: str) -> int:
    """Discover the server's tools and call each of them."""
    registered = {}
    if SCENARIO.startswith("auth/"):
        client_id = CONTEXT.get("client_id") or (DOCUMENT if SCENARIO == "auth/basic-cimd" else "")
        registered = {"client_id": client_id, "client_secret": CONTEXT.get("client_secret", "")}
    source = McpSource("s", url=url, timeout_s=20.0, **registered)
    with tempfile.TemporaryDirectory() as home:
        async with SharedResources() as resources:
            transport = HttpTransport({})
            launch = McpLaunch(
                resources.processes("s"),
                home,
                None,
                transport=lambda: transport,
                browse=browse,
            )
            server = ManagedServer(source, launch, ToolCache(None))
            server.revision = "" if REVISION == STATELESS else WITH_HANDSHAKE
            failed = 0
            try:
                await server.refresh()
                for tool in server.tools:
                    try:
                        await call_tool(server, tool, arguments(tool), Accepting())
                    except ToolFailed as problem:
                        failed += 1
                        sys.stderr.write(f"{tool.name}: {problem}\n")
            except ToolFailed as problem:
                sys.stderr.write(f"{problem}\n")
                return 1
            finally:
                await server.close()
                await transport.close()
    return int(bool(failed) and SCENARIO.startswith("auth/"))


sys.exit(asyncio.run(main(sys.argv[-1])))
