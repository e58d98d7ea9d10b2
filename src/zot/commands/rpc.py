"""`zot rpc`: zot RPC v1 on standard input and output; answers hello before asyncio is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, RESUME_FLAGS, Config, ConfigOverrides, ignore_foreign, resolve
from zot.runtime.check import check
from zot.serve.stdio import greet, leave
from zot.version import __version__
from zot.wire.lines import MAX_LINE_BYTES, LineSplitter, TooLong
from zot.wire.rpc_greeting import Greeting, decode_greeting

MANUAL = flags.Manual(
    "zot rpc",
    "Serve one session over zot RPC v1: newline-delimited JSON on standard input and output.",
    (*AGENT_FLAGS, flags.MAX_LINE_FLAG),
    (*RESUME_FLAGS, *FOREIGN_FLAGS),
    (
        (
            """echo '{"type":"prompt","message":"show me"}' | zot rpc --provider lab""",
            "Send one prompt to the scripted model and print its events.",
        ),
        (
            "zot rpc --session build --policy bash=ask",
            "Record the session `build`; ask the client before each command.",
        ),
    ),
    {
        0: "The input ended, or a signal arrived; every accepted prompt has its `done`.",
        1: "zot could not start, the token was wrong, or the output broke.",
        2: "Wrong usage.",
    },
)


def _answer(greeting: Greeting, line: bytes | TooLong) -> bytes | None:
    """Return the answer to a greeting; None for a line that the server must handle."""
    command = None if isinstance(line, TooLong) else decode_greeting(line)
    return None if command is None or greeting.refusal(command) is not None else greeting.answer(command)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    ignore_foreign(settings, words, "zot rpc takes no words; it reads commands from standard input")
    for flag in RESUME_FLAGS:  # Clients also pass them to other modes; here only --session records.
        settings.pop(flag.key, None)
    limit = settings.pop("max_line_bytes", MAX_LINE_BYTES)
    token = os.environ.pop("ZOTCORE_RPC_TOKEN", "")
    config = _without_auto_compact(resolve(settings))
    model = check(config) if config.session is None else ""
    if os.isatty(0):
        sys.stderr.write("zot: rpc reads one JSON object per line; Ctrl-D ends it. To ask the agent: zot -p PROMPT\n")
    greeting = Greeting(version=__version__, provider=config.provider, model=lambda: model, token=token)
    # A recorded session's model is known only once it is open.
    is_late = config.session is not None
    streams = greet(LineSplitter(max_line_bytes=limit), partial(_answer, greeting), answers_late=is_late)
    if isinstance(streams, int):
        return streams
    # Imported lazily: hello is answered before asyncio and the modules of a session are loaded.
    from zot.serve.rpc import serve_stdio

    leave(serve_stdio(config, greeting, streams, overrides=ConfigOverrides.of_flags(settings)))


def _without_auto_compact(config: Config) -> Config:
    """Return ``config`` without automatic compaction unless configured, as version 1 was published."""
    if config.auto_compact is None and config.compact_at is None:
        return replace(config, auto_compact=False)
    return config
