"""Opening sessions: from an `OpenRequest` to a live `Session`, assembled from its concrete parts."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from zot.agent.approvals import Approvals, Denials
from zot.agent.compaction import AutoCompact
from zot.agent.loop import Agent, AgentSettings, Budget
from zot.config.config import (
    DEFAULT_AGENT,
    PROMPTING,
    RECORDED,
    Config,
    ConfigOverrides,
    data_directory,
    extension_places,
    journal_path,
    resumed,
    rule_warning,
    zot_home,
)
from zot.config.policy import Policy, Private
from zot.errors import AgentError, DirectoryGone
from zot.runtime.check import check, clock_of, expected_of, working_directory
from zot.runtime.provider_assembly import masked, provider_of
from zot.runtime.provider_choice import models_of
from zot.runtime.shared import SharedResources
from zot.runtime.system_prompt import date_of, system_of
from zot.runtime.toolbox import Toolbox
from zot.session.recovery import WaitingRuns
from zot.session.session import Session
from zot.session.transcripts import TranscriptPast
from zot.store import GuardSet, LockChanged, Row, SettingsChanged, Store

if TYPE_CHECKING:
    from zot.extensions.manager import Manager
    from zot.runtime.idempotency import IdempotentRequest
    from zot.tools.documents import OpenDocuments

log = logging.getLogger("zot")

#: Prefix of session ids that strangers prompt, so that none of them can name a session of the user.
HOSTED = "host:"
_HTTP_CLIENT = "zot.providers.http"


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a session with the settings ``config``, recorded under ``config.session`` unless that is None.

    A recorded session that exists keeps its recorded settings, except the ``overrides``.
    """

    config: Config
    overrides: ConfigOverrides = ConfigOverrides()
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
    #: Treatment of an unfinished run whose process died. RESUME and CONTINUE also request approvals while no client can
    #: answer them.
    unfinished: WaitingRuns = WaitingRuns.LEAVE
    #: The host's request that it is opened for.
    host_request: IdempotentRequest | None = None
    #: The files as the user's editor has them; not used with a lock, which the editor would not keep.
    documents: OpenDocuments | None = None
    #: The conversation that an unrecorded session starts from.
    past: TranscriptPast | None = None
    #: Returns the request for a session that exists, given its recorded settings; None to follow the recorded agent.
    adapt: Callable[[SettingsChanged], OpenRequest] | None = None

    @classmethod
    def for_host(cls, config: Config, request: IdempotentRequest) -> OpenRequest:
        """Return the request for the session of a chat: the current configuration counts, not the recorded one."""
        config = msgspec.structs.replace(config, session=f"{HOSTED}{request.session_id}")
        overrides = ConfigOverrides(frozenset({*RECORDED, *PROMPTING, "lock"}))
        # It has no agent of its own: each request names one.
        return cls(config=config, overrides=overrides, agent="", guarded=True, host_request=request)

    def adapted(self, recorded: SettingsChanged) -> OpenRequest:
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
    from zot.journal.opening import open_journal  # Imported lazily: most sessions of programs are not recorded.

    with _preloading(config.provider):
        journal = await open_journal(journal_path(config))
        try:
            cwd = working_directory(config.cwd)
            record, stored = await journal.resume(config.session, cwd=cwd, create=request.creates)
            changes = resources.same_prompts(stored.changes)
            try:
                settings = settle(request, changes)
                if resources.serves_many:
                    parts = await asyncio.to_thread(assemble, settings, resources)
                else:
                    parts = assemble(settings, resources)
            except AgentError:
                await journal.discard(record)  # Invalid settings leave no empty session.
                raise
            # From here on the session closes the journal at its end.
            session = parts.session(record, TranscriptPast(changes, stored.rows, record.totals, journal.close))
            await session.worker.recover(request.unfinished)
        except BaseException:
            await journal.close()
            raise
    return session


def open_unrecorded(request: OpenRequest, resources: SharedResources) -> Session:
    """Return the requested session, which is kept in memory only, at once. Raise ConfigError."""
    return assemble(settle(request, ()), resources).session(None, request.past)


async def preload(provider: str) -> None:
    """Import the HTTP client in the next step of the event loop, unless ``provider`` needs none."""
    if provider != "lab":
        await asyncio.sleep(0)
        import_module(_HTTP_CLIENT)


@contextmanager
def _preloading(provider: str) -> Iterator[None]:
    """Import the HTTP client while the caller awaits something else."""
    if _HTTP_CLIENT in sys.modules:
        yield
        return
    task = asyncio.ensure_future(preload(provider))
    try:
        yield
    finally:
        task.cancel()


#: The default policy of an agent that strangers can prompt, and the advice in its denials.
_HOST_POLICY = ("read=allow", "skill=allow", "*=deny")
_HOST_ADVICE = "the operator of zot can allow more with --policy, such as --policy '*=allow', or in config.toml"


class SettledRequest(msgspec.Struct, frozen=True):
    """A request adapted to the recorded settings. ``agent`` names the agent; ``system`` is the prompt to keep."""

    request: OpenRequest
    agent: str
    system: str | None = None


def settle(request: OpenRequest, changes: Sequence[Row]) -> SettledRequest:
    """Return a session's settings from now on. ``changes`` are its recorded ones, none if it is new.

    Raise ConfigError, DirectoryGone.
    """
    recorded = next((row for row in reversed(changes) if isinstance(row, SettingsChanged)), None)
    if recorded is None:
        return SettledRequest(_guarded(request), request.agent_name)
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
        raise DirectoryGone(recorded.cwd, "name another directory with --cwd DIR")
    locks = [row.locked for row in changes if isinstance(row, LockChanged)]
    if locks and "lock" not in overrides:
        config = msgspec.structs.replace(config, lock=locks[-1])
    # Nor has it a system prompt: a new one is made.
    system = None if PROMPTING & overrides.names else recorded.system or None
    return SettledRequest(msgspec.structs.replace(request, config=config), request.agent_name or recorded.agent, system)


def _guarded(request: OpenRequest) -> OpenRequest:
    """Return a request whose policy denies by default if it is guarded."""
    if not request.guarded:
        return request
    policy = (*request.config.policy, *_HOST_POLICY)
    return msgspec.structs.replace(request, config=msgspec.structs.replace(request.config, policy=policy))


class SessionParts(msgspec.Struct, frozen=True):
    """The parts of a session, made from its settings and from files."""

    agent: Agent
    toolbox: Toolbox
    key: str
    now: Callable[[], str]

    def session(self, store: Store | None, past: TranscriptPast | None) -> Session:
        """Return a session of these parts that starts from its ``past``."""
        return Session(self.agent, store, tools=self.toolbox, key=self.key, now=self.now, past=past)


def assemble(settled: SettledRequest, resources: SharedResources) -> SessionParts:
    """Return the parts of a session. Reads files; callable from any thread. Raise ConfigError."""
    request, config, system = settled.request, settled.request.config, settled.system
    model_id, models = check(config), models_of(config)
    cwd, key, expected = working_directory(config.cwd), os.urandom(6).hex(), expected_of(config)
    now = clock_of(config.frozen_time)
    toolbox = Toolbox(config, resources, cwd=cwd, key=key, documents=request.documents)
    if system is None:
        system = system_of(config, toolbox, date=date_of(config), expected=expected)
    left_s = None if request.host_request is None else request.host_request.left_s
    settings = AgentSettings(
        model_id=model_id,
        system=resources.same_text(system),
        cwd=cwd,
        env=resources.tool_environment(config.environment),
        reasoning=config.reasoning,
        max_steps=config.max_steps,
        budget=Budget(config.max_cost, config.max_tokens_total),
        auto_compact=AutoCompact(config.auto_compact is not False, config.compact_at),
        expected=expected,
        name=settled.agent,
        guarded=request.guarded,
        locked=config.lock,
    )
    agent = Agent(
        provider_of(config, models, model_id, resources, left_s=left_s),
        models,
        settings,
        tools=toolbox.tools,
        source=toolbox.mcp,
        extensions=_extensions(request, toolbox, model_id),
        approver=approvals_of(request, cwd=cwd, key=key),
    )
    return SessionParts(agent, toolbox, key, now)


def _extensions(request: OpenRequest, toolbox: Toolbox, model_id: str) -> Manager | None:
    """Return the extensions of a session; None if there are none and none can `join` or be loaded later."""
    if not extension_places(request.config) and not request.joinable and not request.reloadable:
        return None
    from zot.runtime.extensions import open_extensions  # Imported lazily: many sessions have no extension.

    return open_extensions(request, toolbox, model_id)


def approvals_of(request: OpenRequest, *, cwd: str, key: str) -> Approvals:
    """Return the approver of tool calls. Guarded sessions reach no private file; those of a host never ask."""
    config, policy = request.config, _policy(request.config)
    if request.guarded:
        policy = msgspec.structs.replace(policy, private=cache(partial(_private, config, cwd, key)))
    if request.host_request is None:
        return Approvals(policy, cwd=cwd, timeout_s=config.approval_timeout_s)

    denials = Denials(request.host_request.name, advice=_HOST_ADVICE, mask=partial(masked, config))
    return Approvals(policy, cwd=cwd, denials=denials)


def _private(config: Config, cwd: str, key: str) -> Private:
    """Return the paths that strangers never reach: zot's own, except skills and spilled output,
    and the kernel's."""
    from zot.config.private_paths import KERNEL, private_paths  # Imported lazily: only a call with a path needs it.

    home, kept = zot_home(config.environment), data_directory(config)
    skills = () if home is None else (os.path.join(home, "skills"),)
    spilled = () if kept is None else (os.path.join(kept, "spill", key),)
    # A working directory in shared memory is the operator's choice.
    kernel = [place for place in KERNEL if not os.path.realpath(cwd).startswith(f"{place}/")]
    return Private((*(one.path for one in private_paths(config, cwd)), *kernel), (*skills, *spilled))


def _policy(config: Config) -> Policy:
    """Return the policy, and log a warning for each rule about an unknown tool. Raise ConfigError."""
    policy = Policy.parse(config.policy)
    for rule in policy.rules:
        if warning := rule_warning(config, rule.tool):
            log.warning(warning)
    return policy
