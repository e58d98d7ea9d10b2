"""`zot lab serve`: a scripted model over HTTP, for any client with a configurable base URL."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence

from zot.config import flags
from zot.errors import UsageError, plain_reason
from zot.providers.lab.script import Script, demo
from zot.text import did_you_mean


def _port(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise ValueError("must be a whole number from 0 to 65535")
    return number


_FLAGS = (
    flags.Flag("--script", "Play this script (default: the built-in demonstration).", value="FILE"),
    flags.Flag("--host", "Listen at this address (default: 127.0.0.1).", value="ADDRESS"),
    flags.Flag("--port", "Listen at this port (default: 0, a free one).", value="N", parse=_port),
    flags.Flag("--log", "Print a line per request to standard error: prompt, tools, scene, reply, faults."),
)
MANUAL = flags.Manual(
    "zot lab serve",
    """\
Serve a scripted model over HTTP as Anthropic Messages, OpenAI Chat Completions, OpenAI Responses and Gemini.
Prints the base URL on standard output. `zot lab check --script FILE` only checks a script.""",
    _FLAGS,
    examples=(("zot lab serve --port 8123 --log", "Serve the demonstration, and log every request."),),
    exits={0: "A signal ended it.", 1: "It could not listen, or the script has a mistake.", 2: "Wrong usage."},
)
CHECK_MANUAL = flags.Manual(
    "zot lab check",
    "Check a lab script and report the first mistake with its line. Plays nothing.",
    (flags.Flag("--script", "Check this script.", value="FILE"),),
    _FLAGS,
    (("zot lab check --script demo.lab", "Check a script before a test relies on it."),),
    {0: "The script has no mistakes.", 1: "It has a mistake.", 2: "Wrong usage."},
)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, CHECK_MANUAL if "check" in argv else MANUAL)) is None:
        return 0
    settings, words = given
    if words not in (["serve"], ["check"]):
        near = did_you_mean(words[0], ("serve", "check")) if words else ""
        raise UsageError(f"name what to do: zot lab serve, or zot lab check --script FILE{near}")
    script = Script.load(settings["script"]) if "script" in settings else demo()
    if words == ["check"]:
        return 0
    log = _print_line if settings.get("log") else None
    return asyncio.run(_serve(script, settings.get("host", "127.0.0.1"), settings.get("port", 0), log))


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # Never blocks: lines that the reader has no room for are dropped and counted.


async def _serve(script: Script, host: str, port: int, log: Callable[[str], None] | None) -> int:
    """Serve until a signal; return the exit code, 1 if the address could not be printed."""
    from zot.providers.lab.http_server import serve  # Imported lazily: `lab check` does not need it.
    from zot.providers.lab.stage import LabService

    serving = asyncio.current_task()
    assert serving is not None
    code = 0

    def announce(url: str) -> None:
        nonlocal code
        try:
            # Bypass the buffer of `sys.stdout`: unwritten data would fail once more at exit.
            os.write(1, f"{url}\n".encode())
        except OSError as problem:
            sys.stderr.write(f"zot: cannot print the address {url}: {plain_reason(problem)}\n")
            code = 1
            serving.cancel()  # An exception would arrive as an exception group.

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await serve(LabService(script, log), host=host, port=port, ready=announce)
    except asyncio.CancelledError:
        if serving.uncancel() > 0:
            raise
    return code
