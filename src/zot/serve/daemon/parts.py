"""Parts of a daemon: agents, journal, shared resources, and the opening of its sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.agents import AgentConfigs
from zot.config.config import DEFAULT_AGENT, OF_PROVIDER, RECORDED, Config, Overrides, journal_path, resumed
from zot.config.file import DaemonSettings
from zot.config.paths import DaemonPaths
from zot.errors import DirectoryGone, NoSuchAgent, NoSuchSession, UserError
from zot.messages import timestamp

if TYPE_CHECKING:
    from zot.journal.journal import Journal
    from zot.providers.models import Model
    from zot.runtime.idempotency import IdempotentRequest
    from zot.runtime.open import OpenRequest
    from zot.runtime.pool import NewSession
    from zot.runtime.shared import SharedResources
    from zot.serve.daemon.audit import Audit
    from zot.session.session import Session
    from zot.store import Configured

#: Settings in which a client's choice for a session overrides flags.
_CHOSEN = frozenset({*RECORDED, *OF_PROVIDER, "lock"} - {"cwd"})

#: Advice for a session whose directory is gone.
_ANOTHER_PLACE = "session/new with its id and a cwd, or zot attach SESSION --cwd DIR, names another place"


class DaemonParts:
    """Opens a daemon's sessions as their agents are configured. ``flags`` override files."""

    def __init__(
        self,
        place: DaemonPaths,
        agents: AgentConfigs,
        *,
        journal: Journal,
        resources: SharedResources,
        audit: Audit,
        flags: Mapping[str, Any],
    ) -> None:
        self.place = place
        self.agents = agents
        self.journal = journal
        self.audit = audit
        self.joinable = False
        self.resources = resources
        self.own_process = resources.own_process
        self._flags = flags
        #: Sessions with choices by a client, which flags must not undo when they are loaded again.
        self._chosen: set[str] = set()

    @property
    def settings(self) -> DaemonSettings:
        """Settings of the daemon itself."""
        return self.agents.file.daemon

    async def opening(self, session_id: str, wanted: NewSession | None) -> Session:
        """Load a session, or create it as ``wanted``. Raise NoSuchSession if it does not exist and none is wanted."""
        from zot.runtime.open import open_session

        request = self._request(session_id, wanted)
        try:
            session = await open_session(request, self.resources)
        except NoSuchAgent:
            await self._conclude(session_id)
            raise
        except DirectoryGone as problem:
            raise DirectoryGone(problem.cwd, _ANOTHER_PLACE) from None
        try:
            await session.establish()
        except BaseException:
            await session.close()
            raise
        return session

    def _request(self, session_id: str, wanted: NewSession | None, recorded: Configured | None = None) -> OpenRequest:
        """Return the request for a session: a new one as ``wanted``, or one that exists with ``recorded`` settings.

        Raise NoSuchAgent, or UserError if another agent than the recorded one is wanted.
        """
        from zot.runtime.open import HOSTED, OpenRequest

        alias = _alias(recorded, wanted, session_id)
        made = wanted is not None and wanted.guarded if recorded is None else recorded.guarded
        guarded = made or session_id.startswith(HOSTED)  # Earlier versions did not record it.
        # An existing session stays in its directory while that exists; a client without access cannot move it.
        may_move = not (wanted and wanted.guarded) or guarded or self.has_rules(alias)
        is_placed = recorded is None or (may_move and not os.path.isdir(recorded.cwd))
        cwd = wanted.cwd if wanted is not None and is_placed else None
        overrides = self._overrides(session_id)
        return OpenRequest(
            config=self._config(alias, session_id, cwd),
            overrides=overrides if cwd is None else overrides.including("cwd"),
            agent=alias,
            guarded=guarded,
            reloadable=True,
            joinable=self.joinable,
            creates=wanted is not None,
            keeps_approvals=True,
            adapt=partial(self._request, session_id, wanted),
        )

    async def _conclude(self, session_id: str) -> None:
        """Recover a dead process's run in a session that is read-only because its agent is gone."""
        from zot.session.recovery import recover_unusable
        from zot.session.transcripts import TranscriptPast

        with suppress(NoSuchSession):
            if (await self.journal.find(session_id)).owner is not None:
                record, past = await self.journal.resume(session_id, create=False)
                await recover_unusable(record, TranscriptPast(past.changes, past.rows, record.totals), now=timestamp)

    async def opening_for_host(self, request: IdempotentRequest) -> Session:
        """Return the session of a host request."""
        from zot.runtime.open import OpenRequest, open_session

        alias = request.agent if request.agent in self.agents.names else DEFAULT_AGENT
        return await open_session(OpenRequest.for_host(self._config(alias, None, None), request), self.resources)

    def others(self, session: Session) -> Sequence[Model]:
        """Return the other providers' models that a session can use: its agent's own, and all with a key.

        Reads files.
        """
        from zot.runtime.providers import EarlierProviders, models_of

        config, left = self._config(session.agent.name or DEFAULT_AGENT, None, None), EarlierProviders()
        if config.provider != session.agent.provider.name:
            with suppress(UserError):  # The configuration may be wrong.
                left.leave(config.provider, config, models_of(config).find(config.model))
        return left.elsewhere(session.agent.provider.name, config)

    def opening_aside(self, session: Session) -> Session:
        """Return an unrecorded session without tools that has another session's history. Reads files."""
        from zot.runtime.open import OpenRequest, open_unrecorded
        from zot.session.side_question import side_config
        from zot.session.transcripts import past_of

        now = session.agent.configured()
        config = self._config(now.agent or DEFAULT_AGENT, None, None)
        recorded = {name: getattr(now, name) for name in RECORDED}
        config = side_config(resumed(config, recorded, self._flags.keys() - _CHOSEN))
        past = past_of(session.transcript.messages, session.totals)
        return open_unrecorded(OpenRequest(config=config, past=past), self.resources)

    def check(self, session_id: str, wanted: Configured) -> None:
        """Raise ConfigError, UserError if a session cannot work as ``wanted``. Reads files."""
        from zot.runtime.check import check

        config = self._config(wanted.agent or DEFAULT_AGENT, session_id, None)
        recorded = {name: getattr(wanted, name) for name in RECORDED}
        check(resumed(config, recorded, self._flags.keys() - _CHOSEN))

    def unusable(self) -> Mapping[str, UserError]:
        """Return the agents whose sessions cannot be opened now, each with the reason. Reads files."""
        from zot.runtime.check import check

        problems: dict[str, UserError] = {}
        for alias in self.agents.names:
            try:
                check(self._config(alias, None, None))
            except UserError as problem:
                problems[alias] = problem
        return problems

    def chosen(self, session_id: str) -> None:
        """Keep a session's current settings whenever it is opened, even if flags differ."""
        self._chosen.add(session_id)

    def has_rules(self, alias: str) -> bool:
        """True if an agent has a policy of its own, so that remote clients may use it."""
        return alias in self.agents.names and bool(self._config(alias, None, None).policy)

    def describe(self, alias: str) -> tuple[str, str]:
        """Return the provider and the model of an agent; "" for an unknown model."""
        from zot.runtime.providers import models_of

        config = self._config(alias, None, None)
        try:
            return config.provider, models_of(config).find(config.model).id
        except UserError:
            return config.provider, config.model or ""

    def _overrides(self, session_id: str) -> Overrides:
        """Return the flags that override a session's recorded settings."""
        return Overrides(frozenset(self._flags.keys() - (_CHOSEN if session_id in self._chosen else ())))

    def _config(self, alias: str, session_id: str | None, cwd: str | None) -> Config:
        config = self.agents.config(alias, self._flags)
        journal = self.place.journal or config.journal
        config = msgspec.structs.replace(config, session=session_id, journal=journal, private=(self.place.data_dir,))
        return config if cwd is None else msgspec.structs.replace(config, cwd=cwd)


def journal_of(place: DaemonPaths, agents: AgentConfigs) -> str:
    """Return the path of a daemon's journal. Raise ConfigError."""
    return place.journal or journal_path(agents.config(DEFAULT_AGENT))


def _alias(recorded: Configured | None, wanted: NewSession | None, session_id: str) -> str:
    """Return the agent of a session. Raise UserError if another one is wanted."""
    if recorded is None:
        return DEFAULT_AGENT if wanted is None else wanted.agent
    alias = recorded.agent or DEFAULT_AGENT
    if wanted is not None and wanted.agent != alias:
        raise UserError(f"session {session_id!r} is one of the agent {alias!r}, not of {wanted.agent!r}")
    return alias
