"""Opening sessions: from an `OpenRequest` to a live `Session`. The only module that picks concrete parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from zot.config.config import (
    DEFAULT_AGENT,
    RECORDED,
    Config,
    Overrides,
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
    from zot.runtime.idempotency import IdempotentRequest
    from zot.runtime.shared import SharedResources
    from zot.runtime.toolbox import Toolbox
    from zot.session.session import Session
    from zot.session.transcripts import TranscriptPast
    from zot.store import Configured, Row, Store

#: Prefix of session ids that strangers prompt, so that none of them can name a session of the user.
HOSTED = "host:"

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


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a session with the settings ``config``, recorded under ``config.session`` unless that is None.

    A recorded session that exists keeps its recorded settings, except the ``overrides``.
    """

    config: Config
    overrides: Overrides = Overrides()
    #: The name of its agent in the record, "" for none; None for that of ``config`` unless it is the default agent.
    agent: str | None = None
    #: Strangers prompt it: its policy denies by default. A session once guarded stays guarded.
    guarded: bool = False
    #: Its extensions can be replaced while it is open.
    reloadable: bool = False
    #: Further extensions can connect to it. So can those that guarded it before.
    joinable: bool = False
    #: Create a recorded session that does not exist. Otherwise `open_session` raises NoSuchSession.
    creates: bool = True
    #: Resume a run that waits for an approval, and request approvals even while no client can answer them.
    keeps_approvals: bool = False
    #: The host's request that it is opened for.
    host_request: IdempotentRequest | None = None
    #: The conversation that an unrecorded session starts from.
    past: TranscriptPast | None = None
    #: Returns the request for a session that exists, given its recorded settings; None to follow the recorded agent.
    adapt: Callable[[Configured], OpenRequest] | None = None

    @classmethod
    def for_host(cls, config: Config, request: IdempotentRequest) -> OpenRequest:
        """Return the request for the session of a chat: the current configuration counts, not the recorded one."""
        config = msgspec.structs.replace(config, session=f"{HOSTED}{request.session_id}")
        overrides = Overrides(frozenset({*RECORDED, *_PROMPTING, "lock"}))
        # It has no agent of its own: each request names one.
        return cls(config=config, overrides=overrides, agent="", guarded=True, host_request=request)

    def adapted(self, recorded: Configured) -> OpenRequest:
        """Return the request for a session that exists, with these recorded settings.

        Policy and tools come from the session's own agent unless the user named another one.
        """
        if self.adapt is not None:
            return self.adapt(recorded)
        if recorded.agent in ("", self.config.agent) or "agent" in self.overrides:
            return self
        own = self.overrides.config_of(recorded.agent)
        if own is None:
            return self
        kept = {"session": self.config.session, "auto_compact": self.config.auto_compact}
        return msgspec.structs.replace(self, config=msgspec.structs.replace(own, **kept))

    @property
    def agent_name(self) -> str:
        """The name of its agent in the record."""
        if self.agent is not None:
            return self.agent
        return "" if self.config.agent == DEFAULT_AGENT else self.config.agent


async def open_session(request: OpenRequest, resources: SharedResources) -> Session:
    """Return the requested session, recovered if a process died in it. It borrows ``resources`` until it is closed.

    Raise ConfigError, StoreFailed if the journal cannot be used, NoSuchSession if it does not exist and the request
    does not create it.
    """
    config = request.config
    if config.session is None:
        return open_unrecorded(request, resources)
    import asyncio

    from zot.journal.journal import Journal

    with _preloading(config.provider):
        journal = await Journal.open(journal_path(config))
        try:
            record, stored = await journal.resume(config.session, cwd=_directory(config.cwd), create=request.creates)
            from zot.session.recovery import WaitingRuns
            from zot.session.transcripts import TranscriptPast

            changes = resources.same_prompts(stored.changes)
            settings = _settle(request, changes)
            if resources.serves_many:
                parts = await asyncio.to_thread(_assemble, settings, resources)
            else:
                parts = _assemble(settings, resources)
            session = parts.session(record, TranscriptPast(changes, stored.rows, record.totals, journal.close))
            await session.recover(WaitingRuns.RESUME if request.keeps_approvals else WaitingRuns.LEAVE)
        except BaseException:
            await journal.close()
            raise
    return session


def open_unrecorded(request: OpenRequest, resources: SharedResources) -> Session:
    """Return the requested session, which is kept in memory only, at once. Raise ConfigError."""
    return _assemble(_settle(request, ()), resources).session(None, request.past)


class _Settled(msgspec.Struct, frozen=True):
    """A request adapted to what is recorded: ``agent`` is the agent's name, ``system`` the system prompt to keep."""

    request: OpenRequest
    agent: str
    system: str | None = None


def _settle(request: OpenRequest, changes: Sequence[Row]) -> _Settled:
    """Return a session's settings from now on. ``changes`` are its recorded ones, none if it is new.

    Raise ConfigError, DirectoryGone.
    """
    from zot.store import Configured, GuardSet, LockChanged

    recorded = next((row for row in reversed(changes) if isinstance(row, Configured)), None)
    if recorded is None:
        return _Settled(_guarded(request), request.agent_name)
    request = request.adapted(recorded)
    # Under any agent it contains text of strangers, and a guard that is disconnected keeps blocking.
    request = _guarded(
        msgspec.structs.replace(
            request,
            guarded=request.guarded or recorded.guarded,
            joinable=request.joinable or any(isinstance(row, GuardSet) for row in changes),
        )
    )
    # An imported session has no directory: it uses the given one from now on.
    overrides = request.overrides if recorded.cwd else request.overrides.including("cwd")
    config = resumed(request.config, {name: getattr(recorded, name) for name in RECORDED}, overrides)
    if "cwd" not in overrides and not os.path.isdir(recorded.cwd):
        raise DirectoryGone(recorded.cwd, "--cwd DIR names another place")
    locks = [row.locked for row in changes if isinstance(row, LockChanged)]
    if locks and "lock" not in overrides:
        config = msgspec.structs.replace(config, lock=locks[-1])
    # Nor has it a system prompt: a new one is made.
    system = None if _PROMPTING & overrides.names else recorded.system or None
    return _Settled(msgspec.structs.replace(request, config=config), request.agent_name or recorded.agent, system)


def _guarded(request: OpenRequest) -> OpenRequest:
    """Return a request whose policy denies by default if it is guarded."""
    if not request.guarded:
        return request
    from zot.runtime.approvals import guarded

    return msgspec.structs.replace(request, config=guarded(request.config))


class SessionParts(msgspec.Struct, frozen=True):
    """The parts of a session, made from its settings and from files."""

    agent: Agent
    toolbox: Toolbox
    key: str
    now: Callable[[], str]

    def session(self, store: Store | None, past: TranscriptPast | None) -> Session:
        """Return a session of these parts that starts from its ``past``."""
        from zot.session.session import Session

        box = self.toolbox
        return Session(self.agent, store, background=box, key=self.key, now=self.now, past=past, files=box.files)


def _assemble(settled: _Settled, resources: SharedResources) -> SessionParts:
    """Return the parts of a session. Reads files; callable from any thread. Raise ConfigError."""
    from zot.agent.compaction import AutoCompact
    from zot.agent.loop import Agent, Budget
    from zot.runtime.approvals import approvals_of
    from zot.runtime.extensions import open_extensions
    from zot.runtime.system_prompt import system_of
    from zot.runtime.toolbox import Toolbox

    request, config, system = settled.request, settled.request.config, settled.system
    model_id, models = check(config), models_of(config)
    cwd, key, expected = _directory(config.cwd), os.urandom(6).hex(), _expected(config)
    now = clock_of(config.frozen_time)
    toolbox = Toolbox(config, resources, cwd=cwd, key=key)
    if system is None:
        system = system_of(config, toolbox, date=_date(config), expected=expected)
    left_s = None if request.host_request is None else request.host_request.left_s
    agent = Agent(
        provider_of(config, models, model_id, resources, left_s=left_s),
        models,
        model_id=model_id,
        system=resources.same_text(system),
        extensions=open_extensions(request, toolbox, model_id),
        tools=toolbox.tools,
        cwd=cwd,
        env=_tool_environment(config.environment, resources),
        max_steps=config.max_steps,
        budget=Budget(config.max_cost, config.max_tokens_total),
        reasoning=config.reasoning,
        expected=expected,
        auto_compact=AutoCompact(config.auto_compact is not False, config.compact_at),
        approver=approvals_of(request, cwd=cwd, key=key),
        name=settled.agent,
        guarded=request.guarded,
        locked=config.lock,
    )
    return SessionParts(agent, toolbox, key, now)


def _tool_environment(env: Mapping[str, str], resources: SharedResources) -> Mapping[str, str]:
    return resources.same(("environment", frozenset(env.items())), lambda: tool_environment(env))


#: The modules of a session, in the order of their imports.
_MODULES = (
    "agent.loop",
    "session.session",
    "runtime.toolbox",
    "runtime.extensions",
    "config.skills",
    "tools.base",
    "tools.specs",
    "agent.approvals",
    "providers.service",
)


async def preload(provider: str) -> None:
    """Import the modules of a session one by one, yielding to the event loop in between."""
    import asyncio

    for name in _unloaded(provider):
        await asyncio.sleep(0)
        __import__(name)


@contextmanager
def _preloading(provider: str) -> Iterator[None]:
    """Import the modules of a session while the caller awaits something else."""
    if not _unloaded(provider):
        yield
        return
    import asyncio

    task = asyncio.ensure_future(preload(provider))
    try:
        yield
    finally:
        task.cancel()


def _unloaded(provider: str) -> list[str]:
    needed = _MODULES if provider == "lab" else (*_MODULES, "providers.http")
    return [name for part in needed if (name := f"zot.{part}") not in sys.modules]


def check(config: Config) -> str:
    """Return the id of the model to use. Raise ConfigError or UserError for settings that `open_session` would refuse.

    Imports next to nothing: the first answer waits for this.
    """
    model = models_of(config).find(config.model)
    credential_of(config, model)
    check_settings(config)
    return model.id


def check_settings(config: Config) -> None:
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
        script_of(config)
    if config.output_schema is not None:
        from zot.agent.output_schema import load

        load(config.output_schema)
    if config.policy:
        from zot.config.policy import Policy

        Policy.parse(config.policy)
    if config.frozen_time is not None:
        clock_of(config.frozen_time)


async def check_journal(config: Config) -> str:
    """Return the journal's path after checking that it can be written. Raise ConfigError, StoreFailed."""
    from zot.journal.journal import Journal

    journal = await Journal.open(journal_path(config))
    try:
        await journal.writing(lambda connection: None)
    finally:
        await journal.close()
    return journal.path


def prompt_of(config: Config) -> str:
    """Return the system prompt of a session for ``config``. Raise ConfigError."""
    from zot.runtime.shared import SharedResources
    from zot.runtime.system_prompt import system_of
    from zot.runtime.toolbox import Toolbox

    toolbox = Toolbox(config, SharedResources(), cwd=_directory(config.cwd), key="")
    return system_of(config, toolbox, date=_date(config), expected=_expected(config))


def _date(config: Config) -> str:
    return clock_of(config.frozen_time)()[:10]


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

    try:
        start = msgspec.convert(frozen_time, datetime).timestamp()
    except msgspec.ValidationError:
        raise ConfigError(f"{frozen_time!r} is not a time such as 2026-01-31T12:00:00Z") from None
    ticks = count()
    return lambda: timestamp(start + next(ticks) / 1000)
