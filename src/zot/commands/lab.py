"""`zot lab serve`: a scripted model over HTTP, for anything that can be pointed at a base URL."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zot import flags
from zot.errors import ConfigError
from zot.providers.lab.script import Script, demo


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError("must be from 0 to 65535")
    return number


_FLAGS = (
    flags.Flag("--script", "what to play; without it, the built-in demonstration", value="FILE"),
    flags.Flag("--host", "where to listen (127.0.0.1)", value="ADDRESS"),
    flags.Flag("--port", "which port; 0, the default, takes a free one", value="N", parse=_port),
)
_SUMMARY = """\
Serve a scripted model that speaks Anthropic Messages, OpenAI Chat Completions and OpenAI Responses.
The base URL is printed on standard output. `zot lab check --script FILE` only looks for mistakes in a script."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    settings, words = flags.parse(argv, (*_FLAGS, flags.Flag("--help", "this text", short="-h")))
    if settings.get("help"):
        sys.stdout.write(flags.usage("zot lab serve", _SUMMARY, _FLAGS) + "\n")
        return 0
    if words not in (["serve"], ["check"]):
        raise ConfigError("say what lab should do: zot lab serve, or zot lab check --script FILE")
    script = Script.load(settings["script"]) if "script" in settings else demo()
    if words == ["check"]:
        return 0
    import asyncio

    asyncio.run(_serve(script, settings.get("host", "127.0.0.1"), settings.get("port", 0)))
    return 0


async def _serve(script: Script, host: str, port: int) -> None:
    """Serve until a signal comes."""
    import asyncio
    import signal

    from zot.providers.lab.server import serve

    serving = asyncio.current_task()
    assert serving is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await serve(script, host=host, port=port, ready=_announce)
    except asyncio.CancelledError:
        if serving.uncancel() > 0:
            raise


def _announce(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
