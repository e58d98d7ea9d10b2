"""A server written with the reference implementation, which answers both generations of the protocol."""

from __future__ import annotations

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


app.run()
