"""Opening sessions: from a Config to a live Session. The only module that picks concrete parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from zot.config.config import (
    DEFAULT_AGENT,
    RECORDED,
    Config,
    GivenSettings,
    journal_path,
    resumed,
    tool_environment,
    tool_names,
)
from zot.errors import ConfigError, DirectoryGone
from zot.runtime.providers import credential_of, models_of, provider_of, script_of

if TYPE_CHECKING:
    from zot.agent.loop import Agent
    from zot.agent.output_schema import Expected
    from zot.journal.journal import Journal
    from zot.journal.record import Record
    from zot.runtime.idempotency import IdempotentRequest, Once
    from zot.runtime.shared import SharedResources
    from zot.runtime.toolbox import Toolbox
    from zot.session.session import Session
    from zot.session.transcripts import TranscriptPast
    from zot.store import Configured, Row, Store

T = TypeVar("T")


def check(config: Config, premises: SharedResources | None = None) -> str:
    """Return the id of the model to use. Raise ConfigError or UserError for settings that `open_session` would refuse.

    Imports next to nothing: the first answer waits for this.
    """
    model = models_of(config, premises).find(config.model)
    credential_of(config, model)
    check_settings(config, premises)
    return model.id


def check_settings(config: Config, premises: SharedResources | None = None) -> None:
    """Raise ConfigError for settings that are invalid with any provider."""
    _directory(config.cwd)
    tool_names(config)
    for flag, file in (("--script", config.script), ("--replay", config.replay)):
        if file and config.provider != "lab":
            raise ConfigError(f"{flag} is for --provider lab")
    if config.script and config.replay:
        raise ConfigError("--script and --replay exclude each other: lab plays one of them")
    if config.script and not os.path.exists(config.script):
        raise ConfigError(f"{config.script}: no such file")
    if config.script and os.path.isfile(config.script):  # A pipe can be read only once: not here.
        script_of(config, premises)
    if config.output_schema is not None:
        from zot.agent.output_schema import load

        load(config.output_schema)
    if config.policy:
        from zot.config.policy import Policy

        Policy.parse(config.policy)
    if config.frozen_time is not None:
        clock_of(config.frozen_time)


#: Settings that shape the system prompt: unless one of them is given, a resumed session keeps its prompt.
_PROMPTING = frozenset(
    {
        "system_prompt",
        "append_system_prompt",
        "no_instructions",
        "output_schema",
        "skills",
        "no_skill",
        "tools",
        "no_tools",
        "cwd",
    }
)


async def open_any(config: Config, given: Collection[str], *, own_process: bool = False) -> Session:
    """Return a session for ``config``: a recorded one if it names one, else one that is not kept."""
    if config.session is None:
        return open_session(config, own_process=own_process)
    return await open_recorded(config, given, own_process=own_process)


class SessionChoice(msgspec.Struct, frozen=True):
    """The settings of a session: ``config``, whose fields named in ``given`` override recorded ones.

    ``agent`` is the agent's name, if it has one. ``guarded`` means that strangers prompt it: its policy then denies by
    default. A session once guarded stays guarded, and keeps its agent's name unless there is another. The extensions of
    a ``reloadable`` session can be replaced while it is open; a ``joinable`` one accepts further extensions.
    """

    config: Config
    given: Collection[str] = ()
    agent: str = ""
    guarded: bool = False
    reloadable: bool = False
    joinable: bool = False


#: Returns the settings of a session, given its recorded ones; None if it is new. Reads no files.
Choose: TypeAlias = "Callable[[Configured | None], SessionChoice]"


async def open_recorded(
    config: Config, given: Collection[str], *, own_process: bool = False, parks: bool = False, reloadable: bool = False
) -> Session:
    """Return the session that ``config.session`` names, creating it if it is new.

    An existing one keeps its recorded settings, except those ``given``. With ``parks``, approvals are always requested,
    and a run that waits for one is taken up. Raise ConfigError, StoreFailed if the journal cannot be used.
    """

    def choose(recorded: Configured | None) -> SessionChoice:
        wanted = config
        another = "" if recorded is None or recorded.agent == config.agent else recorded.agent
        if another and isinstance(given, GivenSettings) and "agent" not in given:
            # Policy and tools come from its own agent, not from the caller's.
            own = given.config(another)
            wanted = msgspec.structs.replace(own, session=config.session, auto_compact=config.auto_compact)
        return SessionChoice(
            wanted, given, agent="" if wanted.agent == DEFAULT_AGENT else wanted.agent, reloadable=reloadable
        )

    session, _ = await _open_recorded(
        config, choose, lambda journal, record: None, own_process=own_process, parks=parks
    )
    return session


async def open_chosen(config: Config, choose: Choose, premises: SharedResources, *, creates: bool) -> Session:
    """Return the session that ``config.session`` names, with the settings that ``choose`` returns.

    ``config`` only decides where it is stored, and the directory of a new one. It borrows ``premises`` until it is
    closed, reads files in another thread, and takes up a run that waits for an approval. Raise like `open_recorded`,
    whatever ``choose`` raises, and NoSuchSession if ``creates`` is false and there is none.
    """
    session, _ = await _open_recorded(
        config,
        choose,
        lambda journal, record: None,
        own_process=True,
        parks=True,
        premises=premises,
        creates=creates,
    )
    return session


#: Prefix of session ids that strangers prompt, so that none of them can name a session of the user.
HOSTED = "host:"


async def open_hosted(
    config: Config, demand: IdempotentRequest, premises: SharedResources | None = None
) -> tuple[Session, Once]:
    """Return the session of a chat, and the object that answers its request once.

    The current configuration counts, not the recorded settings. Raise ConfigError, StoreFailed.
    """
    from zot.runtime.idempotency import Once

    hosted = msgspec.structs.replace(config, session=f"{HOSTED}{demand.session_id}")
    chosen = SessionChoice(hosted, {*RECORDED, *_PROMPTING, "lock"}, guarded=True)
    return await _open_recorded(
        hosted,
        lambda _: chosen,
        lambda journal, record: Once(journal, record, demand),
        own_process=True,
        demand=demand,
        premises=premises,
    )


async def _open_recorded(
    config: Config,
    choose: Choose,
    attend: Callable[[Journal, Record], T],
    *,
    own_process: bool,
    parks: bool = False,
    demand: IdempotentRequest | None = None,
    premises: SharedResources | None = None,
    creates: bool = True,
) -> tuple[Session, T]:
    """Open a recorded session; return it with the result of ``attend``."""
    import asyncio
    from contextlib import nullcontext

    from zot.journal.journal import Journal
    from zot.runtime.preload import preloading

    assert config.session is not None
    with nullcontext() if premises is not None else preloading(config.provider):
        journal = await Journal.open(journal_path(config))
        try:
            record, past = await journal.resume(config.session, cwd=_directory(config.cwd), create=creates)
            from zot.session.transcripts import TranscriptPast

            changes = past.changes if premises is None else premises.same_prompts(past.changes)
            choice, system = _resume_settings(choose, changes)
            draw = partial(_plan, choice, own_process=own_process, system=system, demand=demand, premises=premises)
            plan = draw() if premises is None else await asyncio.to_thread(draw)
            session = _build(plan, record, TranscriptPast(changes, past.rows, record.totals, journal.close))
            await (session.take_up() if parks else session.mend())
        except BaseException:
            await journal.close()
            raise
    return session, attend(journal, record)


def _resume_settings(choose: Choose, changes: Sequence[Row]) -> tuple[SessionChoice, str | None]:
    """Return a session's settings from now on, and the system prompt to keep, if any. Raise ConfigError."""
    from zot.runtime.approvals import guarded
    from zot.store import Configured, GuardSet, LockChanged

    recorded = next((row for row in reversed(changes) if isinstance(row, Configured)), None)
    choice = choose(recorded)
    if recorded is not None:
        # Under any agent it contains text of strangers, and a guard that is disconnected keeps blocking.
        name, is_guarded = choice.agent or recorded.agent, choice.guarded or recorded.guarded
        joinable = choice.joinable or any(isinstance(row, GuardSet) for row in changes)
        choice = msgspec.structs.replace(choice, agent=name, guarded=is_guarded, joinable=joinable)
    if choice.guarded:
        choice = msgspec.structs.replace(choice, config=guarded(choice.config))
    if recorded is None:
        return choice, None
    # An imported session has no directory: it uses the given one from now on.
    given = choice.given if recorded.cwd else {*choice.given, "cwd"}
    config = resumed(choice.config, {name: getattr(recorded, name) for name in RECORDED}, given)
    _check_directory(recorded.cwd, given)
    locks = [row.locked for row in changes if isinstance(row, LockChanged)]
    if locks and "lock" not in given:
        config = msgspec.structs.replace(config, lock=locks[-1])
    # Nor has it a system prompt: a new one is made.
    system = None if _PROMPTING.intersection(given) else recorded.system or None
    return msgspec.structs.replace(choice, config=config), system


def _check_directory(cwd: str, given: Collection[str]) -> None:
    """Raise DirectoryGone if a session's directory no longer exists and no other was given."""
    if "cwd" not in given and not os.path.isdir(cwd):
        raise DirectoryGone(cwd, "--cwd DIR names another place")


async def check_journal(config: Config) -> str:
    """Return the journal's path after checking that it can be written. Raise ConfigError, StoreFailed."""
    from zot.journal.journal import Journal

    journal = await Journal.open(journal_path(config))
    try:
        await journal.writing(lambda connection: None)
    finally:
        await journal.close()
    return journal.path


def open_session(
    config: Config,
    store: Store | None = None,
    *,
    own_process: bool = False,
    past: TranscriptPast | None = None,
    reloadable: bool = False,
    premises: SharedResources | None = None,
) -> Session:
    """Return a session for ``config`` that starts from its ``past``. Raise ConfigError.

    With ``own_process``, commands of tools cannot read this process's memory and environment; an embedding program
    decides that for itself.
    """
    plan = _plan(SessionChoice(config, reloadable=reloadable), own_process=own_process, premises=premises)
    return _build(plan, store, past)


class SessionParts(msgspec.Struct, frozen=True):
    """The parts of a session that had to be read from disk, before it is built."""

    agent: Agent
    toolbox: Toolbox
    key: str
    now: Callable[[], str]


def _plan(
    choice: SessionChoice,
    *,
    own_process: bool,
    system: str | None = None,
    demand: IdempotentRequest | None = None,
    premises: SharedResources | None = None,
) -> SessionParts:
    """Return the parts of a session for ``choice``. Callable from any thread. Raise ConfigError.

    ``system`` is a system prompt to keep, ``demand`` a request of a stranger.
    """
    from zot.agent.compaction import AutoCompact
    from zot.agent.loop import Agent, Budget
    from zot.runtime.approvals import approvals_of
    from zot.runtime.extensions import open_extensions
    from zot.runtime.system_prompt import system_of
    from zot.runtime.toolbox import Toolbox

    config = choice.config
    model_id, models = check(config, premises), models_of(config, premises)
    cwd, key, expected = _directory(config.cwd), os.urandom(6).hex(), _expected(config)
    now = clock_of(config.frozen_time)
    toolbox = Toolbox(config, cwd=cwd, key=key, own_process=own_process, premises=premises)
    if system is None:
        system = system_of(config, toolbox, cwd=cwd, date=clock_of(config.frozen_time)()[:10], expected=expected)
    left_s = None if demand is None else demand.left_s
    changing = {"joinable": choice.joinable, "reloadable": choice.reloadable}
    agent = Agent(
        provider_of(config, models, model_id, left_s=left_s, premises=premises),
        models,
        model_id=model_id,
        system=system if premises is None else premises.same_text(system),
        extensions=open_extensions(config, toolbox, cwd=cwd, model_id=model_id, **changing),
        tools=toolbox.tools,
        cwd=cwd,
        env=_tool_environment(config, premises),
        max_steps=config.max_steps,
        budget=Budget(config.max_cost, config.max_tokens_total),
        reasoning=config.reasoning,
        expected=expected,
        auto_compact=AutoCompact(config.auto_compact is not False, config.compact_at),
        approver=approvals_of(config, demand, cwd=cwd, key=key, is_guarded=choice.guarded),
        name=choice.agent,
        guarded=choice.guarded,
        locked=config.lock,
    )
    return SessionParts(agent, toolbox, key, now)


def _build(plan: SessionParts, store: Store | None, past: TranscriptPast | None) -> Session:
    """Build a session that starts from its ``past``."""
    from zot.session.session import Session

    toolbox = plan.toolbox
    return Session(plan.agent, store, jobs=toolbox, key=plan.key, now=plan.now, past=past, files=toolbox.files)


def _tool_environment(config: Config, premises: SharedResources | None) -> Mapping[str, str]:
    env = config.environment
    if premises is None:
        return tool_environment(env)
    return premises.same(("environment", frozenset(env.items())), lambda: tool_environment(env))


def prompt_of(config: Config) -> str:
    """Return the system prompt of a session for ``config``. Raise ConfigError."""
    from zot.runtime.system_prompt import system_of
    from zot.runtime.toolbox import Toolbox

    cwd, date = _directory(config.cwd), clock_of(config.frozen_time)()[:10]
    toolbox = Toolbox(config, cwd=cwd, key="", own_process=False)
    return system_of(config, toolbox, cwd=cwd, date=date, expected=_expected(config))


def _expected(config: Config) -> Expected | None:
    if config.output_schema is None:
        return None
    from zot.agent.output_schema import load

    return load(config.output_schema)


def _directory(path: str | None) -> str:
    """Return the working directory, absolute. Raise ConfigError if there is none."""
    try:
        directory = os.path.abspath(path or os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists; use --cwd DIR") from None
    if not os.path.isdir(directory):
        raise ConfigError(f"{directory} is not a directory")
    return directory


def clock_of(frozen_time: str | None) -> Callable[[], str]:
    """Return the source of timestamps in events: the clock, or a deterministic one that starts at ``frozen_time``."""
    from zot.messages import timestamp

    if frozen_time is None:
        return timestamp
    from datetime import datetime

    try:
        start = msgspec.convert(frozen_time, datetime).timestamp()
    except msgspec.ValidationError:
        raise ConfigError(f"{frozen_time!r} is not a time such as 2026-01-31T12:00:00Z") from None
    ticks = count()
    return lambda: timestamp(start + next(ticks) / 1000)
