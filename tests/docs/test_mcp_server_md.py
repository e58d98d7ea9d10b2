"""docs/how-to/mcp-server.md: the settings for clients name a command that answers, and the tables are complete."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from forked import ForkServer
from harness import environment
from zot.serve.mcp.agent import _TASK_AFTER_S, _TOOLS

from .markdown import blocks

ROOT = Path(__file__).parents[2]

TEXT = (ROOT / "docs" / "how-to" / "mcp-server.md").read_text()
_INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}\n'
)


def servers() -> list[dict[str, Any]]:
    """Return the entry for zot of each block."""
    found = [json.loads(block.text) for block in blocks(TEXT, "json")]
    found += [tomllib.loads(block.text) for block in blocks(TEXT, "toml")]
    return [next(iter(one.values()))["zot"] for one in found]


@pytest.mark.parametrize("server", [one for one in servers() if "command" in one])
def test_settings_name_a_command_that_answers(server: Any, tmp_path: Path, fork_server: ForkServer) -> None:
    assert server["command"] == "zot"
    process = fork_server.fork(server["args"], tmp_path, environment({"ZOT_HOME": str(tmp_path)}))
    output, errors = process.communicate(_INITIALIZE)
    assert process.returncode == 0, errors
    assert json.loads(output)["result"]["serverInfo"]["name"] == "zot"


def test_the_address_is_that_of_the_route() -> None:
    [server] = [one for one in servers() if "url" in one]
    assert server["url"].endswith(":7777/mcp")
    assert server["headers"]["Authorization"].startswith("Bearer ")


def test_every_tool_and_argument_is_described() -> None:
    for tool in _TOOLS:
        [row] = [line for line in TEXT.splitlines() if line.startswith(f"| `{tool['name']}` |")]
        assert all(f"`{name}`" in row for name in tool["inputSchema"]["properties"])  # type: ignore[index]
    assert f"more than {_TASK_AFTER_S:g} s" in TEXT
