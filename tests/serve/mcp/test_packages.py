"""The Python package `mcp` as a client of zot: both revisions, over standard input and output and over HTTP."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness import environment
from serve.mcp.caller import STATELESS, WITH_HANDSHAKE
from serve.web.face import faced

if TYPE_CHECKING:
    from mcp import Client

#: The package's name for each way to begin, and the revision that follows.
MODES = {"legacy": WITH_HANDSHAKE, "auto": STATELESS}
ASK = ("bash=ask", "*=allow")


@asynccontextmanager
async def connected(over: str, mode: str, tmp_path: Path, asked: list[str]) -> AsyncIterator[Client]:
    """Connect a client that allows every call, and records the questions in ``asked``."""
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client
    from mcp_types import ElicitResult

    async def allow(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"decision": "allow_once"})

    async with AsyncExitStack() as stack:
        server: Any
        if over == "stdio":
            flags = [word for rule in ASK for word in ("--policy", rule)]
            arguments = ["-m", "zot", "mcp", "serve", "--provider", "lab", *flags]
            env = environment({"ZOT_HOME": str(tmp_path / "home")})
            server = StdioServerParameters(command=sys.executable, args=arguments, env=env, cwd=tmp_path)
        else:
            face = await stack.enter_async_context(faced(tmp_path / "daemon", policy=ASK))
            http = await stack.enter_async_context(create_mcp_http_client(headers=face.bearer))
            server = streamable_http_client(f"http://127.0.0.1:{face.port}/mcp", http_client=http)
        yield await stack.enter_async_context(Client(server, mode=mode, elicitation_callback=allow))


@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_runs_a_prompt_approves_a_call_and_continues(tmp_path: Path, over: str, mode: str) -> None:
    asked: list[str] = []
    heard: list[str | None] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with connected(over, mode, tmp_path, asked) as client:
        assert client.protocol_version == MODES[mode]
        assert [one.name for one in (await client.list_tools()).tools] == ["zot", "zot_reply"]
        arguments = {"prompt": "!bash touch made", "cwd": str(tmp_path)}
        done = await client.call_tool("zot", arguments, progress_callback=progressed)
        assert done.structured_content is not None
        assert (done.is_error, done.structured_content["stop"]) == (False, "end_turn")
        session = done.structured_content["session"]
        again = await client.call_tool("zot_reply", {"session": session, "prompt": "!echo two"})
        assert again.structured_content == {"session": session, "text": "two", "stop": "end_turn", "denied": []}
    assert (tmp_path / "made").exists()
    assert len(asked) == 1
    assert "touch made" in asked[0]
    assert any("touch made" in (message or "") for message in heard)
