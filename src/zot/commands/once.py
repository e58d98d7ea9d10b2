"""`zot -p` and `zot --json`: one prompt, its answer or its events, and the end."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zot.commands.kept import open_earlier, open_kept, take_earlier
from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, RESUME_FLAGS, chosen, ignore_foreign, resolve
from zot.errors import AgentError, UsageError
from zot.runtime.open import check, open_any
from zot.serve.stdio import claim, leave, leave_on_signals

if TYPE_CHECKING:
    from zot.session.session import Session


def _features(text: str) -> tuple[str, ...]:
    from zot.wire.rpc_greeting import FEATURES

    names = tuple(filter(None, text.split(",")))
    if unknown := [name for name in names if name not in FEATURES]:
        raise ValueError(f"there is no feature {unknown[0]!r}; known: {', '.join(FEATURES)}")
    return names


_FLAGS = (
    flags.Flag("--print", "print the last message of the answer", short="-p"),
    flags.Flag("--json", "print every event as a line of JSON, `done` last"),
    flags.Flag("--features", "what events may say beyond version 1, such as seq,thinking", value="LIST",
               parse=_features),
    flags.Flag("--stdin-wait", "how long standard input may be silent before it is left alone (3)", value="SECONDS",
               parse=flags.seconds),
    *RESUME_FLAGS,
    *AGENT_FLAGS,
)  # fmt: skip
_SUMMARY = """\
Answer one prompt and leave. Words that are no flags are the prompt; what is piped in follows it, or is the prompt. The
word `-` says that standard input must be waited for. `/name args` runs a command of an extension. The exit code is 0
only if there is an answer."""
_STDIN_WAIT_S = 3.0


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    settings, words = flags.parse(argv, (*_FLAGS, *FOREIGN_FLAGS, flags.Flag("--help", "this text", short="-h")))
    if settings.pop("help", False):
        sys.stdout.write(flags.usage("zot -p PROMPT", _SUMMARY, _FLAGS) + "\n")
        return 0
    ignore_foreign(settings)
    how = {name: settings.pop(name, None) for name in ("print", "json", "features", "stdin_wait")}
    how |= {"resume": settings.get("resume"), "form": _form(settings)}
    if how["print"] and how["json"]:
        raise UsageError("--print and --json exclude each other")
    _check_words(words)
    earlier = take_earlier(settings)
    keep = "no_session" not in settings
    config = resolve(settings)
    if config.session is None and earlier is None:
        check(config)  # What one that is there works with is known only when it has been opened.
    leave_on_signals(as_failure=True)
    incoming, outgoing = claim()
    import asyncio

    opening: Callable[[], Awaitable[Session]]
    if earlier is not None:
        opening = partial(open_earlier, config, chosen(settings), earlier)
    else:
        opening = partial(open_kept if keep else open_any, config, chosen(settings), own_process=True)
    leave(asyncio.run(_answer(opening, words, how, incoming, outgoing)))


def _check_words(words: Sequence[str]) -> None:
    try:
        " ".join(words).encode()
    except UnicodeEncodeError:
        raise UsageError("the prompt is not UTF-8") from None


def _form(settings: dict[str, Any]) -> Callable[[str], str]:
    """Return what makes of an answer what is printed: where JSON is wanted, models like to put a fence around it."""
    if "output_schema" not in settings:
        return str
    from zot.agent.output_schema import unfenced

    return unfenced


async def _answer(
    opening: Callable[[], Awaitable[Session]], words: Sequence[str], how: dict[str, Any], incoming: int, outgoing: int
) -> int:
    """Answer the prompt; return the exit code."""
    from zot.serve.lifetime import Lifetime, close_in_time, unwritten, wind_down
    from zot.serve.once import EventLines, LastWords, OneRun
    from zot.serve.streams import Writer

    output, lifetime = Writer(outgoing), Lifetime(outgoing, as_failure=True)
    output.on_broken(lifetime.end)
    face = EventLines(output, frozenset(how["features"] or ())) if how["json"] else LastWords(output, how["form"])
    session: Session | None = None
    problem: AgentError | None = None

    async def answer() -> None:
        nonlocal session, problem
        try:
            # Only a prompt is worth a session.
            prompt = await _prompt(words, incoming, how)
            session = await opening()
            await OneRun(session, output, face).run(prompt)
        except AgentError as failure:
            problem = failure
        await output.drained()

    finished = await lifetime.bound(answer())
    if session is not None:
        if finished:
            await close_in_time(session, lifetime)
        await wind_down(session, output)
    output.close()
    if output.problem is not None:
        return unwritten(output.problem)
    if problem is not None:
        sys.stderr.write(f"zot: {problem}\n")
    return lifetime.exit_code if not finished else _exit_code(problem)


def _exit_code(problem: AgentError | None) -> int:
    return 0 if problem is None else 2 if isinstance(problem, UsageError) else 1


async def _prompt(words: Sequence[str], incoming: int, how: dict[str, Any]) -> str:
    """Return the prompt: the words, and behind them what is piped in. Raise UsageError if there is neither."""
    from zot.serve.once import read_piped

    wait_s = how["stdin_wait"] or _STDIN_WAIT_S
    text = " ".join(word for word in words if word != "-")
    piped = await read_piped(incoming, patience_s=None if "-" in words or not text else wait_s)
    if piped is None:
        sys.stderr.write(f"zot: standard input is open, but silent for {wait_s:g} s: going on without it\n")
    if not text.strip() and not (piped or "").strip():
        taken = f"; {how['resume']!r} was taken for the id of a session" if how["resume"] else ""
        raise UsageError(f"there is no prompt: give it as words, or on standard input{taken}")
    return "\n\n".join(filter(None, (text, (piped or "").rstrip("\n"))))
