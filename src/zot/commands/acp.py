"""`zot acp`: the Agent Client Protocol v1 for editors; answers initialize before asyncio is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, ConfigOverrides, ignore_foreign, resolve
from zot.errors import UsageError
from zot.runtime.check import check_settings
from zot.serve.stdio import greet, leave
from zot.wire.acp_greeting import AcpGreeting
from zot.wire.jsonrpc import RpcRequest, decode
from zot.wire.lines import MAX_LINE_BYTES, LineSplitter, TooLong

if TYPE_CHECKING:
    from zot.client.client import Client

#: Not flags of this command: the client chooses sessions and their directories.
_CLIENTS = ("--session", "--no-session", "--cwd")
#: How long a prompt waits for the daemon to come back before it fails.
_RECONNECT_S = 10.0
_MODES = ("ask", "accept_edits", "allow_all", "plan")
MANUAL = flags.Manual(
    "zot acp",
    "Serve an editor: the Agent Client Protocol v1 on standard input and output. Sessions are recorded.",
    (
        flags.Flag("--mode", "Start sessions in this mode: ask, accept_edits, allow_all or plan (default: the policy).",
                   value="MODE", parse=flags.choice(*_MODES), group="Tools and permissions"),
        flags.Flag("--login", "Store the provider's key, as zot login does, and exit. Editors run this in a terminal.",
                   group="Model", advanced=True),
        *(flag for flag in AGENT_FLAGS if flag.name not in _CLIENTS),
        flags.MAX_LINE_FLAG,
        flags.Flag("--via-daemon", "Serve the sessions of the running daemon, which other clients can follow, too.",
                   group="Endpoint"),
        flags.WAIT_FLAG,
        flags.PLACE_FLAGS[0],
    ),
    FOREIGN_FLAGS,
    (
        ("zot acp", "The command to enter in the editor's settings."),
        ("zot acp --provider lab", "Serve the scripted model, to try an editor without a key."),
        ("zot acp --via-daemon", "Share sessions with zot attach, zot web and other clients of the daemon."),
        ("zot acp --mode ask", "Ask in the editor before each change and command."),
    ),
    {
        0: "The input ended, or a signal arrived; every accepted prompt has its answer.",
        1: "zot could not start, or the output broke.",
        2: "Wrong usage.",
    },
)  # fmt: skip


def _answer(greeting: AcpGreeting, line: bytes | TooLong) -> bytes | None:
    """Return the answer to `initialize`; None for a line that the server must handle."""
    if isinstance(line, TooLong):
        return None
    request = decode(line)
    return greeting.answer(request) if isinstance(request, RpcRequest) and request.method == "initialize" else None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    ignore_foreign(settings, words, "prompts come from the editor")
    limit = settings.pop("max_line_bytes", MAX_LINE_BYTES)
    mode, via_daemon = settings.pop("mode", None), settings.pop("via_daemon", False)
    if mode and via_daemon:
        raise UsageError("--mode has no effect with --via-daemon: the daemon's policy applies")
    place = {"socket": settings.pop("socket", None), "wait_s": settings.pop("wait", 0.0)}
    if settings.pop("login", False):
        from zot.commands.login import main as login  # Imported lazily: only this flag needs it.

        return login([resolve(settings).provider])
    config = resolve(settings)
    check_settings(config)  # A missing key is reported with the first session, so that the client can authenticate.
    if os.isatty(0):
        sys.stderr.write("zot: acp speaks JSON-RPC with an editor; Ctrl-D ends it. To ask the agent: zot -p PROMPT\n")
    greeting = AcpGreeting()
    streams = greet(LineSplitter(max_line_bytes=limit), partial(_answer, greeting))
    if isinstance(streams, int):
        return streams
    # Imported lazily: initialize is answered before asyncio and the modules of a session are loaded.
    from zot.serve.acp.server import serve_stdio

    def connect(questions: bool) -> Client:
        from zot.client.client import Client  # Imported lazily: few editors use the daemon.

        config_dir = settings.get("config_dir")
        return Client.connect(**place, config_dir=config_dir, reconnect_s=_RECONNECT_S, questions=questions)

    overrides, daemon = ConfigOverrides.of_flags(settings), connect if via_daemon else None
    leave(serve_stdio(config, greeting, streams, overrides=overrides, mode=mode, connect=daemon))
