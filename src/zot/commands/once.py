"""`zot -p` and `zot --json`: one prompt, its answer or its events, and the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from zot import flags
from zot.config import AGENT_FLAGS, LATER_FLAGS, Config, resolve
from zot.errors import AgentError, ConfigError
from zot.runtime import check
from zot.serve.stdio import claim, leave, leave_on_signals

_FLAGS = (
    flags.Flag("--print", "print the last message of the answer", short="-p"),
    flags.Flag("--json", "print every event as a line of JSON, `done` last"),
    flags.Flag("--features", "what events may say beyond version 1, such as seq,thinking", value="LIST",
               parse=lambda text: tuple(filter(None, text.split(",")))),
    flags.Flag("--stdin-wait", "how long standard input may be silent before it is left alone (3)", value="SECONDS",
               parse=flags.seconds),
    *AGENT_FLAGS,
)  # fmt: skip
_SUMMARY = """\
Answer one prompt and leave. Words that are no flags are the prompt; what is piped in follows it, or is the prompt. The
word `-` says that standard input must be waited for. The exit code is 0 only if there is an answer."""
_STDIN_WAIT_S = 3.0


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    settings, words = flags.parse(argv, (*_FLAGS, *LATER_FLAGS, flags.Flag("--help", "this text", short="-h")))
    if settings.pop("help", False):
        sys.stdout.write(flags.usage("zot -p PROMPT", _SUMMARY, _FLAGS) + "\n")
        return 0
    how = {name: settings.pop(name, None) for name in ("print", "json", "features", "stdin_wait")}
    if how["print"] and how["json"]:
        raise ConfigError("--print and --json exclude each other")
    config = resolve(settings)
    check(config)
    leave_on_signals()
    incoming, outgoing = claim()
    import asyncio

    leave(asyncio.run(_answer(config, words, how, incoming, outgoing)))


async def _answer(config: Config, words: Sequence[str], how: dict[str, Any], incoming: int, outgoing: int) -> int:
    """Answer the prompt; return the exit code."""
    from zot.runtime import open_session
    from zot.serve.lifetime import Lifetime, unwritten, wind_down
    from zot.serve.once import EventLines, LastWords, OneRun
    from zot.serve.streams import Writer

    output, lifetime = Writer(outgoing), Lifetime(outgoing)
    output.on_broken(lifetime.end)
    session = open_session(config, own_process=True)
    face = EventLines(output, frozenset(how["features"] or ())) if how["json"] else LastWords(output)
    problem: AgentError | None = None

    async def answer() -> None:
        nonlocal problem
        try:
            prompt = await _prompt(words, incoming, how["stdin_wait"] or _STDIN_WAIT_S)
            await OneRun(session, output, face).run(prompt)
        except AgentError as failure:
            problem = failure
        await output.drained()

    finished = await lifetime.bound(answer())
    await wind_down(session, output)
    output.close()
    if output.problem is not None:
        return unwritten(output.problem)
    if problem is not None:
        sys.stderr.write(f"zot: {problem}\n")
    return lifetime.exit_code if not finished else 0 if problem is None else 1


async def _prompt(words: Sequence[str], incoming: int, wait_s: float) -> str:
    """Return the prompt: the words, and behind them what is piped in. Raise ConfigError if there is neither."""
    from zot.serve.once import read_piped

    text = " ".join(word for word in words if word != "-")
    piped = await read_piped(incoming, patience_s=None if "-" in words or not text else wait_s)
    if piped is None:
        sys.stderr.write(f"zot: standard input is open, but silent for {wait_s:g} s: going on without it\n")
    if not text.strip() and not (piped or "").strip():
        raise ConfigError("there is no prompt: give it as words, or on standard input")
    return "\n\n".join(filter(None, (text, (piped or "").rstrip("\n"))))
