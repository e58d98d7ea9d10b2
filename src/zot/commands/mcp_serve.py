"""`zot mcp serve`: the agent as an MCP server; answers the greeting before asyncio is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zot.config import flags
from zot.config.config import AGENT_FLAGS, ConfigOverrides, resolve
from zot.errors import UsageError
from zot.runtime.check import check_settings
from zot.serve.stdio import greet, leave
from zot.wire.jsonrpc import RpcRequest, decode
from zot.wire.lines import MAX_LINE_BYTES, LineSplitter, TooLong
from zot.wire.mcp_server import AGENT, McpGreeting

if TYPE_CHECKING:
    from zot.commands.subcommands import CommandRequest

#: Not flags of this command: the client chooses sessions.
_CLIENTS = ("--session", "--no-session")
FLAGS = (*(flag for flag in AGENT_FLAGS if flag.name not in _CLIENTS), flags.MAX_LINE_FLAG)
MANUAL = flags.Manual(
    "zot mcp serve",
    "Serve the agent to an MCP client on standard input and output: tools zot and zot_reply. Sessions are recorded.",
    FLAGS,
    (),
    (
        ("zot mcp serve", "The command to enter in the client's settings."),
        ("zot mcp serve --provider lab", "Serve the scripted model, to try a client without a key."),
        ("zot mcp serve --policy 'bash=ask'", "Ask the person at the client before each command."),
    ),
    {
        0: "The input ended, or a signal arrived; every accepted call has its answer.",
        1: "zot could not start, or the output broke.",
        2: "Wrong usage.",
    },
)


def _answer(greeting: McpGreeting, line: bytes | TooLong) -> bytes | None:
    """Return the answer to a greeting; None for a line that the server must handle."""
    if isinstance(line, TooLong):
        return None
    request = decode(line)
    return greeting.answer(request) if isinstance(request, RpcRequest) else None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    if words:
        raise UsageError(f"zot mcp serve takes no words, not {words[0]!r}")
    return _serve(settings)


def run(request: CommandRequest) -> int:
    """Run the subcommand of `zot mcp`; return its exit code."""
    return _serve(dict(request.settings))


def _serve(settings: dict[str, Any]) -> int:
    limit = settings.pop("max_line_bytes", MAX_LINE_BYTES)
    config = resolve(settings)
    check_settings(config)  # A missing key is reported by the first call, so that the client can show it.
    if os.isatty(0):
        sys.stderr.write(
            "zot: mcp serve speaks JSON-RPC with an MCP client; Ctrl-D ends it. To ask the agent: zot -p PROMPT\n"
        )
    greeting = McpGreeting(AGENT)
    streams = greet(LineSplitter(max_line_bytes=limit), partial(_answer, greeting))
    if isinstance(streams, int):
        return streams
    # Imported lazily: the greeting is answered before asyncio and the modules of a session are loaded.
    from zot.serve.mcp.stdio import serve_stdio

    leave(serve_stdio(config, greeting, streams, overrides=ConfigOverrides.of_flags(settings)))
