"""`zot call`: one request to the daemon, and its answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from zot.client import endpoint
from zot.client.calls import BlockingConnection, CallRefused
from zot.client.endpoint import Patience, whose
from zot.commands.subcommands import FAILED, NOT_RUNNING, print_note, write_bytes
from zot.config import flags
from zot.config.paths import find_socket
from zot.encoding import UNREADABLE, explain
from zot.errors import UsageError
from zot.text import printable

MANUAL = flags.Manual(
    "zot call METHOD [JSON]",
    "Call a method of the running daemon and print the result. JSON is an object with the parameters; - reads it from "
    "standard input.",
    (
        flags.Flag("--updates", "Print the daemon's notifications until the answer, one JSON object per line."),
        flags.Flag("--timeout", "Wait this long for the answer (default: 600).", value="SECONDS", parse=flags.seconds),
        flags.WAIT_FLAG,
        *flags.PLACE_FLAGS,
    ),
    examples=(
        ("zot call status", "Print which sessions are loaded."),
        ("""zot call session/messages '{"sessionId":"ID"}'""", "Print the messages of a session."),
    ),
    exits={
        0: "The method returned a result.",
        1: "It returned an error.",
        2: "Wrong usage.",
        3: "No daemon is running.",
    },
)
_TIMEOUT_S = 600.0
_GREETING_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    if not 1 <= len(words) <= 2:
        raise UsageError("name a method: zot call METHOD [JSON]")
    params = _params(words[1] if len(words) > 1 else "{}")
    path = find_socket(os.environ, socket=settings.get("socket"), config_dir=settings.get("config_dir"))
    try:
        patience = Patience(path, wait_s=settings.get("wait", 0.0))
        line = BlockingConnection(path, within_s=_GREETING_S, patience=patience)
    except (FileNotFoundError, ConnectionRefusedError):
        print_note(_why_unreachable(path))
        return NOT_RUNNING
    except (OSError, CallRefused, msgspec.ValidationError) as problem:
        why = whose(path) if isinstance(problem, OSError) else ""
        print_note(f"the daemon at {path} does not answer: {why or explain(problem)}")
        return FAILED
    with line:
        return _call(line, words[0], params, settings)


def _why_unreachable(path: str) -> str:
    """Return the reason that no daemon can be called."""
    with suppress(OSError):  # The lock may be unreadable for this user.
        if (pid := endpoint.owner(path)) is not None:
            who = f"process {pid}" if pid else "another process"
            return f"{who} is the daemon at {path}, but: {endpoint.GONE} {endpoint.STOP}"
    return f"No daemon is running at {path}. Start one with: zot daemon"


def _call(line: BlockingConnection, method: str, params: dict[str, Any], settings: dict[str, Any]) -> int:
    within_s: float = settings.get("timeout", _TIMEOUT_S)
    heard = _write_update if settings.get("updates") else _ignore
    try:
        result = line.call(method, params, within_s=within_s, on_line=heard)
    except CallRefused as problem:
        data = "" if problem.data is None else f" {msgspec.json.encode(problem.data).decode()}"
        print_note(f"{printable(method)}: error {problem.code}: {printable(str(problem))}{data}")
        return FAILED
    except TimeoutError:
        print_note(f"{printable(method)}: no answer within {within_s:g} s")
        return FAILED
    except OSError as problem:
        print_note(f"{printable(method)}: {problem.strerror or problem}")
        return FAILED
    encoded = msgspec.json.encode(result)
    write_bytes((msgspec.json.format(encoded, indent=2) if sys.stdout.isatty() else encoded) + b"\n")
    return 0


def _params(text: str) -> dict[str, Any]:
    """Parse the parameters. Raise UsageError if they are not a JSON object."""
    try:
        return msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text, type=dict[str, Any])
    except UNREADABLE as problem:
        raise UsageError(f"the parameters are not a JSON object: {explain(problem)}") from None


def _write_update(line: bytes) -> None:
    write_bytes(line + b"\n")
    sys.stdout.flush()


def _ignore(line: bytes) -> None:
    del line
