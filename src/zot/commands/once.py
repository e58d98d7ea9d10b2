"""`zot -p` and `zot --json`: one prompt, its answer or events, then exit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from zot.commands.subcommands import absolute_directory, find_session
from zot.config import flags
from zot.config.config import (
    AGENT_FLAGS,
    FOREIGN_FLAGS,
    RESUME_FLAGS,
    Config,
    ConfigOverrides,
    ignore_foreign,
    journal_path,
    pop_resume_flags,
    resolve,
)
from zot.encoding import encode
from zot.errors import AgentError, ConfigError, NoSuchSession, StoreFailed, UsageError
from zot.events import Done, Error
from zot.journal.opening import is_there, open_journal
from zot.run_summary import BlockedCall
from zot.runtime.check import check
from zot.runtime.open import HOSTED, OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.serve.once import EventLines, FinalText, OneRun, blocked_lines, read_piped
from zot.serve.stdio import claim, leave, leave_on_signals, report_write_failure
from zot.serve.streams import Lifetime, StreamWriter, close_in_time, flush, wind_down
from zot.session.session import Session, new_session_id
from zot.text import did_you_mean
from zot.ui.readable import one_line
from zot.wire.rpc_greeting import FEATURES


async def _open(request: OpenRequest, resources: SharedResources, *, earlier: str | None, keep: bool) -> Session:
    """Return the requested session, an ``earlier`` one, or a new one, which is recorded if possible and to ``keep``.

    ``earlier`` is the name of a session, "" for the newest of the directory. Raise NoSuchSession if there is none.
    """
    if earlier is not None:
        return await _open_printing(request, await _find_earlier(request.config, earlier), resources)
    if request.config.session is not None or not keep:
        return await open_session(request, resources)

    try:
        journal_path(request.config)
    except ConfigError as problem:
        reason: Exception = problem
    else:
        try:
            return await _open_printing(request, new_session_id(), resources)
        except StoreFailed as problem:
            if request.config.journal is not None:  # --store named the place, so the record is wanted.
                raise
            reason = problem
    # Recording was not requested, so its failure must not prevent an answer.
    sys.stderr.write(f"zot: this session is not recorded: {reason}\n")
    return await open_session(request, resources)


async def _open_printing(request: OpenRequest, session_id: str, resources: SharedResources) -> Session:
    """Open a session that the user did not name, and print its id."""
    config = msgspec.structs.replace(request.config, session=session_id)
    session = await open_session(msgspec.structs.replace(request, config=config), resources)
    _print_session_id(session_id)
    return session


def _print_session_id(session_id: str) -> None:
    """Print the id of a session that was not named, on a terminal. Programs that need the id set it themselves."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"zot: session {one_line(session_id, 60)}\n")


async def _find_earlier(config: Config, name: str) -> str:
    """Return the id of the session ``name``, or of the newest one of the directory if it is "". Raise NoSuchSession.

    The newest is never a host's session: it must not be continued by accident, without the host's policy.
    """
    path, cwd = journal_path(config), absolute_directory(config.cwd)
    nothing = NoSuchSession(f"no session of {cwd} to continue; list all with: zot sessions list --all")
    if not await asyncio.to_thread(is_there, path):
        raise nothing
    journal = await open_journal(path)
    try:
        if name:
            return (await find_session(journal, name)).id
        newest = await journal.newest(cwd, but=HOSTED)
        if newest is None:
            raise nothing
        return newest.id
    finally:
        await journal.close()


def _features(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    if unknown := [name for name in names if name not in FEATURES]:
        near = did_you_mean(unknown[0], FEATURES)
        raise ValueError(f"unknown feature {unknown[0]!r}; known: {', '.join(FEATURES)}{near}")
    return names


MANUAL = flags.Manual(
    "zot -p PROMPT",
    """\
Answer one prompt and exit. Words that are not flags are the prompt; piped input follows it, or is the prompt.
The word `-` waits for standard input. `/NAME ARGS` runs an extension's command.""",
    (
        flags.Flag("--print", "Print the last message of the answer.", short="-p"),
        flags.Flag("--json", "Print every event as a line of JSON, `done` last."),
        flags.Flag("--features", "Add to the events of version 1, such as seq,thinking.", value="LIST",
                   parse=_features, advanced=True),
        flags.Flag("--stdin-wait", "Ignore standard input that stays silent for this long (default: 3).",
                   value="SECONDS", parse=flags.seconds, advanced=True),
        *RESUME_FLAGS,
        *AGENT_FLAGS,
    ),
    FOREIGN_FLAGS,
    (
        ('zot -p "What does this project do?"', "Ask about the current directory."),
        ('git diff | zot -p "Review this"', "Send piped input along with the prompt."),
        ('zot --json -c "And the tests?"', "Continue the newest session here; print events as JSON."),
    ),
    {
        0: "The model answered.",
        1: "No answer: the model service, a limit or the configuration prevented it. Or a tool call could not run: "
        "its approval could not be requested, or --lock found no sandbox.",
        2: "Wrong usage, or no prompt.",
        130: "Interrupted: 128 plus the number of the signal.",
    },
)  # fmt: skip
_STDIN_WAIT_S = 3.0


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    try:
        return _main(argv)
    except AgentError as problem:
        if "--json" in argv:  # Nothing has been written yet, and `done` is always the last line.
            sys.stdout.write("".join(encode(event).decode() + "\n" for event in (Error(str(problem)), Done())))
        raise


def _main(argv: Sequence[str]) -> int:
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    ignore_foreign(settings)
    how = {name: settings.pop(name, None) for name in ("print", "json", "features", "stdin_wait")}
    how |= {"resume": settings.get("resume"), "form": _form(settings)}
    if how["print"] and how["json"]:
        raise UsageError("--print and --json exclude each other")
    _check_words(words)
    earlier = pop_resume_flags(settings)
    keep = "no_session" not in settings
    config = resolve(settings)
    # The settings of an existing session are known only once it is open; a missing prompt is reported before a key.
    if config.session is None and earlier is None and any(words):
        check(config)
    leave_on_signals(as_failure=True)
    incoming, outgoing = claim()

    request = OpenRequest(config=config, overrides=ConfigOverrides.of_flags(settings))
    opening = partial(_open, request, earlier=earlier, keep=keep)
    leave(asyncio.run(_answer(opening, words, how, incoming, outgoing)))


def _check_words(words: Sequence[str]) -> None:
    try:
        " ".join(words).encode()
    except UnicodeEncodeError:
        raise UsageError("the prompt is not UTF-8") from None


def _form(settings: dict[str, Any]) -> Callable[[str], str]:
    """Return the function that formats an answer: with an output schema, it removes the fence around JSON."""
    if "output_schema" not in settings:
        return str
    from zot.agent.output_schema import unfenced  # Imported lazily: only `--output-schema` needs it.

    return unfenced


async def _answer(
    opening: Callable[[SharedResources], Awaitable[Session]],
    words: Sequence[str],
    how: dict[str, Any],
    incoming: int,
    outgoing: int,
) -> int:
    """Answer the prompt; return the exit code."""
    output, lifetime = StreamWriter(outgoing), Lifetime(outgoing, as_failure=True)
    output.on_broken(lifetime.end)
    face = EventLines(output, frozenset(how["features"] or ())) if how["json"] else FinalText(output, how["form"])
    resources = SharedResources(own_process=True)
    session: Session | None = None
    run: OneRun | None = None
    problem: AgentError | None = None

    async def answer() -> None:
        nonlocal session, run, problem
        try:
            # Read the prompt first: without one, no session is created.
            prompt = await _prompt(words, incoming, how)
            session = await opening(resources)
            run = OneRun(session, output, face)
            await run.run(prompt)
        except AgentError as failure:
            problem = failure
            face.refuse(str(failure))
        await output.drained()

    finished = await lifetime.bound(answer())
    if session is not None:
        if finished:
            await close_in_time([session], lifetime)
        await wind_down([session], resources, output)
    if not finished:
        face.refuse("stopped before it began")
        await flush(output)
    output.close()
    if output.problem is not None:
        return report_write_failure(output.problem)
    if problem is not None:
        sys.stderr.write(f"zot: {problem}\n")
    blocked = () if run is None else run.blocked
    sys.stderr.write(blocked_lines(blocked))
    return lifetime.exit_code if not finished else _exit_code(problem, blocked)


def _exit_code(problem: AgentError | None, blocked: Sequence[BlockedCall]) -> int:
    if problem is None:
        return 1 if blocked else 0
    return 2 if isinstance(problem, UsageError) else 1


async def _prompt(words: Sequence[str], incoming: int, how: dict[str, Any]) -> str:
    """Return the prompt: the words, then the piped input. Raise UsageError if there is neither."""
    wait_s = how["stdin_wait"] or _STDIN_WAIT_S
    text = " ".join(word for word in words if word != "-")
    piped = await read_piped(incoming, patience_s=None if "-" in words or not text else wait_s)
    if piped is None:
        sys.stderr.write(f"zot: standard input is open but silent for {wait_s:g} s; continuing without it\n")
    if not text.strip() and not (piped or "").strip():
        taken = f"; {how['resume']!r} was read as the id of a session" if how["resume"] else ""
        raise UsageError(f"no prompt; give it as words or on standard input: zot -p PROMPT{taken}")
    return "\n\n".join(filter(None, (text, (piped or "").rstrip("\n"))))
