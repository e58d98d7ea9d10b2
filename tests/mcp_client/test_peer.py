"""zot with a server of the reference implementation, in both generations of the protocol."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zot.config.flags import McpServer
from zot.wire.mcp_server import STATELESS, WITH_HANDSHAKE

from .stage import McpStage

PEER = str(Path(__file__).parent / "peer.py")


@contextmanager
def served() -> Iterator[str]:
    """Run the reference implementation over HTTP, and yield its address."""
    with subprocess.Popen([sys.executable, "-P", PEER, "http"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


async def is_understood(home: Path, peer: McpServer, revision: str) -> None:
    home.mkdir()
    async with McpStage(home, mcp={"s": peer}) as stage:
        [server] = stage.mcp_servers().servers
        server.revision = revision if revision == WITH_HANDSHAKE else ""
        await server.refresh()
        assert server.revision == revision
        assert stage.offered() == ["mcp__s__add", "mcp__s__fail"]
        events = await stage.prompt('call mcp__s__add {"a": 1, "b": 2} ;; --- ;; say done')
        [result] = [event for event in events if event["type"] == "tool_result"]
        assert (result["content"], result["is_error"]) == ([{"type": "text", "text": "3"}], False)
        assert (await stage.call(tool="mcp__s__fail"))[1]


async def test_the_reference_implementation_is_understood_over_http(tmp_path: Path) -> None:
    # One process for both revisions: it needs more than a second to start.
    with served() as address:
        for revision in (STATELESS, WITH_HANDSHAKE):
            await is_understood(tmp_path / revision, McpServer(url=address), revision)


async def test_the_reference_implementation_is_understood_over_standard_streams(tmp_path: Path) -> None:
    # Real servers of the other revision run in `make mcp-conformance`.
    await is_understood(tmp_path / "home", McpServer(command=sys.executable, args=("-P", PEER)), STATELESS)
