"""zot with a server of the reference implementation, in both generations of the protocol."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zot.config.flags import McpServer
from zot.wire.mcp import STATELESS, WITH_HANDSHAKE

from .stage import McpStage

PEER = str(Path(__file__).parent / "peer.py")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the reference implementation over HTTP."""
    with subprocess.Popen([sys.executable, "-P", PEER, "http"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        process.kill()


@pytest.mark.parametrize("revision", [STATELESS, WITH_HANDSHAKE])
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_the_reference_implementation_is_understood(
    tmp_path: Path, address: str, transport: str, revision: str
) -> None:
    program = McpServer(command=sys.executable, args=("-P", PEER))
    peer = program if transport == "stdio" else McpServer(url=address)
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
