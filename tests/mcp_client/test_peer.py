"""zot with a server of the reference implementation, in both generations of the protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zot.config.flags import McpServer
from zot.wire.mcp import STATELESS, WITH_HANDSHAKE

from .stage import McpStage

PEER = str(Path(__file__).parent / "peer.py")


@pytest.mark.parametrize("revision", [STATELESS, WITH_HANDSHAKE])
async def test_the_reference_implementation_is_understood(tmp_path: Path, revision: str) -> None:
    peer = McpServer(command=sys.executable, args=("-P", PEER))
    async with McpStage(tmp_path, mcp={"s": peer}) as stage:
        [server] = stage.mcp_servers().servers
        server.revision = revision if revision == WITH_HANDSHAKE else ""
        await server.refresh()
        assert server.revision == revision
        assert stage.offered() == ["mcp__s__add", "mcp__s__fail"]
        events = await stage.prompt('call mcp__s__add {"a": 1, "b": 2} ;; --- ;; say done')
        [result] = [event for event in events if event["type"] == "tool_result"]
        assert (result["content"], result["is_error"]) == ([{"type": "text", "text": "3"}], False)
        assert (await stage.call(tool="mcp__s__fail"))[1]
