"""A server written with the reference implementation, which answers both generations of the protocol."""

from __future__ import annotations

import socket
import sys

from mcp.server import MCPServer

app = MCPServer("peer")


@app.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no")


def serve_http() -> None:
    """Serve on a free port of the loopback interface, and return it."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(app.streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listening])


if "http" in sys.argv[1:]:
    serve_http()
else:
    app.run()
