"""A Config becomes a live session. The only file that picks concrete parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from zot.config import RECORDED, TOOL_NAMES, Config, resumed, tool_environment, tool_names, zot_home
from zot.errors import ConfigError
from zot.provision import credential_of, masked, models_of, provider_of

if TYPE_CHECKING:
    from zot.agent.approvals import Approvals
    from zot.agent.expected import Expected
    from zot.agent.hooks import Extensions
    from zot.agent.policy import Policy
    from zot.answers import Demand, Once
    from zot.journal.journal import Journal
    from zot.journal.record import Record
    from zot.session import Past, Session
    from zot.store import Store
    from zot.toolbox import Toolbox

T = TypeVar("T")


def check(config: Config) -> str:
    """Return the model that will be used. Raise ConfigError, or UserError, for what `open_session` would not take.

    Loads next to nothing: whoever waits for a first answer waits for this, too.
    """
    model = models_of(config).find(config.model)
    credential_of(config, model)
    check_settings(config)
    return model.id


def check_settings(config: Config) -> None:
    """Raise ConfigError for what would make no sense with any provider."""
    _directory(config.cwd)
    tool_names(config)
    for flag, file in (("--script", config.script), ("--replay", config.replay)):
        if file and config.provider != "lab":
            raise ConfigError(f"{flag} is for --provider lab")
    if config.script and config.replay:
        raise ConfigError("--script and --replay exclude each other: lab plays one of them")
    if config.script and not os.path.exists(config.script):
        raise ConfigError(f"{config.script}: no such file")
    if config.script and os.path.isfile(config.script):  # A pipe can be read only once, so it is read later.
        from zot.providers.lab.script import Script

        Script.load(config.script)
    if config.output_schema is not None:
        from zot.schema import load

        load(config.output_schema)
    if config.policy:
        from zot.agent.policy import Policy

        Policy.parse(config.policy)
    if config.frozen_time is not None:
        _clock(config.frozen_time)


#: Settings that have a say in the system prompt: without them, a session that goes on keeps the one it had.
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
    """Return a session that works as ``config`` says: one of the journal if it names one, else one that is not kept."""
    if config.session is None:
        return open_session(config, own_process=own_process)
    return await open_recorded(config, given, own_process=own_process)


async def open_recorded(
    config: Config, given: Collection[str], *, own_process: bool = False, reloadable: bool = False
) -> Session:
    """Return the session of the journal that ``config.session`` names, made if it is new.

    One that exists goes on with what it worked with, except for the settings that were ``given``. Raise ConfigError,
    StoreFailed if the journal cannot be used.
    """
    session, _ = await _open_recorded(
        config, given, lambda journal, record: None, own_process=own_process, reloadable=reloadable
    )
    return session


#: Whose sessions strangers talk to: nobody out there can name a session of the user's.
HOSTED = "host:"
#: What an agent may do that strangers can talk to, unless its own policy says otherwise; and how it is told to say so.
_HOST_POLICY = ("read=allow", "skill=allow", "*=deny")
_HOST_ADVICE = "whoever runs zot can allow more with --policy, such as --policy '*=allow', or in config.toml"


async def open_hosted(config: Config, demand: Demand) -> tuple[Session, Once]:
    """Return the session of a chat, and what sees to it that what it wants is answered once.

    What is configured counts, whatever the session worked with before. Raise ConfigError, StoreFailed.
    """
    import msgspec

    from zot.answers import Once

    policy = (*config.policy, *_HOST_POLICY)
    hosted = msgspec.structs.replace(config, session=f"{HOSTED}{demand.session_id}", policy=policy)
    return await _open_recorded(
        hosted,
        {*RECORDED, *_PROMPTING},
        lambda journal, record: Once(journal, record, demand),
        own_process=True,
        demand=demand,
    )


async def _open_recorded(
    config: Config,
    given: Collection[str],
    attend: Callable[[Journal, Record], T],
    *,
    own_process: bool,
    demand: Demand | None = None,
    reloadable: bool = False,
) -> tuple[Session, T]:
    """Open a session of the journal, and what ``attend`` makes of its record."""
    from zot.journal.journal import Journal
    from zot.session import Past
    from zot.store import Configured

    assert config.session is not None
    journal = await Journal.open(journal_path(config))
    try:
        record, past = await journal.resume(config.session, cwd=_directory(config.cwd))
        recorded = next((row for row in reversed(past.changes) if isinstance(row, Configured)), None)
        system = None
        if recorded is not None:
            if not recorded.cwd:  # One that came from elsewhere left it there: it works here from now on.
                given = {*given, "cwd"}
            config = resumed(config, {name: getattr(recorded, name) for name in RECORDED}, given)
            _check_left(recorded.cwd, given)
            # One that came from elsewhere left its system prompt there: it is made anew.
            system = None if _PROMPTING.intersection(given) else recorded.system or None
        session = open_session(
            config,
            record,
            own_process=own_process,
            past=Past(past.changes, past.rows, record.totals, journal.close),
            system=system,
            demand=demand,
            reloadable=reloadable,
        )
        await session.mend()
    except BaseException:
        await journal.close()
        raise
    return session, attend(journal, record)


def _check_left(cwd: str, given: Collection[str]) -> None:
    """Raise ConfigError if a session's directory is gone, and no other was given."""
    if "cwd" not in given and not os.path.isdir(cwd):
        raise ConfigError(f"{cwd}, where this session works, is gone; --cwd DIR names another place")


def journal_path(config: Config) -> str:
    """Return where sessions are kept. Raise ConfigError if there is no place for them."""
    home = zot_home(config.environment)
    if home is None:
        raise ConfigError("there is no home to keep sessions in: set ZOT_HOME or HOME")
    return os.path.join(home, "journal.db")


async def check_journal(config: Config) -> str:
    """Return where sessions are kept, having seen that they can be. Raise ConfigError, StoreFailed."""
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
    past: Past | None = None,
    system: str | None = None,
    demand: Demand | None = None,
    reloadable: bool = False,
) -> Session:
    """Return a session that works as ``config`` says. Raise ConfigError if it makes no sense.

    ``past`` is what it remembers, ``system`` a system prompt that it keeps, ``demand`` what a stranger wants of it. The
    extensions of one that is ``reloadable`` can be replaced while it goes on. In a process of our own, commands that
    tools run are kept out of its memory and environment; an embedding program decides that for itself.
    """
    from zot.agent.budget import Budget
    from zot.agent.loop import Agent
    from zot.agent.relief import AutoCompact
    from zot.extension_host import open_extensions
    from zot.session import Session
    from zot.toolbox import Toolbox

    model_id, models = check(config), models_of(config)
    cwd, key = _directory(config.cwd), os.urandom(6).hex()
    toolbox = Toolbox(config, cwd=cwd, key=key, own_process=own_process)
    find = partial(open_extensions, config, toolbox, cwd=cwd, model_id=model_id)
    agent = Agent(
        provider_of(config, models, model_id, left_s=None if demand is None else demand.left_s),
        models,
        model_id=model_id,
        system=_system(config, toolbox, cwd) if system is None else system,
        extensions=_reloadable(find) if reloadable else find(),
        tools=toolbox.tools,
        cwd=cwd,
        env=tool_environment(config.environment),
        max_steps=config.max_steps,
        budget=Budget(config.max_cost, config.max_tokens_total),
        reasoning=config.reasoning,
        expected=_expected(config),
        auto_compact=AutoCompact(config.auto_compact is not False, config.compact_at),
        approver=_approvals(config, cwd, key, demand),
    )
    return Session(agent, store, jobs=toolbox, key=key, now=_clock(config.frozen_time), past=past, files=toolbox.files)


def _reloadable(find: Callable[[], Extensions | None]) -> Extensions:
    from zot.reloadable import Reloadable

    return Reloadable(find)


def _approvals(config: Config, cwd: str, key: str, demand: Demand | None) -> Approvals:
    """Return who judges tool calls. What a stranger wants is never asked about, and never gets to what is ours."""
    from zot.agent.approvals import Approvals

    policy = _policy(config)
    if demand is None:
        return Approvals(policy, cwd=cwd, timeout_s=config.approval_timeout_s)
    import msgspec

    from zot.agent.denials import Denials
    from zot.agent.policy import Private

    if (home := zot_home(config.environment)) is not None:
        readable = (os.path.join(home, "skills"), os.path.join(home, "spill", key))
        policy = msgspec.structs.replace(policy, private=Private(os.path.abspath(home), readable))
    denials = Denials(demand.name, advice=_HOST_ADVICE, mask=partial(masked, config))
    return Approvals(policy, cwd=cwd, denials=denials)


def _policy(config: Config) -> Policy:
    """Return the rules for tools. One about a tool that we do not have may be a mistake, which would have no effect."""
    import logging

    from zot.agent.policy import Policy

    policy, log = Policy.parse(config.policy), logging.getLogger("zot")
    for rule in policy.rules:
        if rule.tool not in ("*", *TOOL_NAMES):
            log.warning("policy: no tool of zot is named %r; its own are %s", rule.tool, ", ".join(TOOL_NAMES))
    return policy


def prompt_of(config: Config) -> str:
    """Return the system prompt of a session that works as ``config`` says. Raise ConfigError."""
    from zot.toolbox import Toolbox

    cwd = _directory(config.cwd)
    return _system(config, Toolbox(config, cwd=cwd, key="", own_process=False), cwd)


def _system(config: Config, toolbox: Toolbox, cwd: str) -> str:
    from zot.agent.prompt import system_prompt
    from zot.instructions import discover

    home, expected = zot_home(config.environment), _expected(config)
    found = () if config.no_instructions else discover(cwd=cwd, home=home)
    return system_prompt(
        cwd=cwd,
        date=_clock(config.frozen_time)()[:10],
        tools=[tool.spec.name for tool in toolbox.tools],
        replaced_by=_own_words(home) if config.system_prompt is None else config.system_prompt,
        instructions=[(item.path, item.text) for item in found],
        appended=(
            *config.append_system_prompt,
            toolbox.manifest,
            expected.instruction if expected is not None else "",
        ),
    )


def _expected(config: Config) -> Expected | None:
    if config.output_schema is None:
        return None
    from zot.agent.expected import Expected
    from zot.schema import load

    return Expected(load(config.output_schema))


def _own_words(home: str | None) -> str | None:
    """Return what the user wrote to take the place of our words; None if there is no such file."""
    if home is None:
        return None
    from zot.regular import content

    path = os.path.join(home, "SYSTEM.md")
    try:
        return content(path).decode("utf-8-sig").strip()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None


def _clock(frozen_time: str | None) -> Callable[[], str]:
    """Return what tells the time in events: the clock, or a time of its own that is the same in every run."""
    from zot.messages import timestamp

    if frozen_time is None:
        return timestamp
    from datetime import datetime

    import msgspec

    try:
        start = msgspec.convert(frozen_time, datetime).timestamp()
    except msgspec.ValidationError:
        raise ConfigError(f"{frozen_time!r} is not a time such as 2026-01-31T12:00:00Z") from None
    ticks = count()
    return lambda: timestamp(start + next(ticks) / 1000)


def _directory(path: str | None) -> str:
    """Return the working directory, absolute. Raise ConfigError if there is none."""
    try:
        directory = os.path.abspath(path or os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists; use --cwd DIR") from None
    if not os.path.isdir(directory):
        raise ConfigError(f"{directory} is not a directory")
    return directory


def checked(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return ``base`` with ``settings``. Raise ConfigError if one is unknown or of the wrong type."""
    import msgspec

    if not isinstance(base, Config | None):
        raise ConfigError("the configuration must be a zot.Config; settings are given by name")
    fields = {} if base is None else msgspec.structs.asdict(base)
    paths = {name: os.fspath(value) for name, value in settings.items() if isinstance(value, os.PathLike)}
    try:
        return msgspec.convert({**fields, **settings, **paths}, Config)
    except msgspec.ValidationError as problem:
        raise ConfigError(str(problem)) from None
