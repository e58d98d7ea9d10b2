"""Parts of a daemon: agents, journal, shared resources and how its sessions open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.agents import Agents
from zot.config.config import DEFAULT_AGENT, OF_PROVIDER, RECORDED, Config, journal_path, resumed
from zot.config.file import DaemonSettings
from zot.config.paths import Place
from zot.errors import DirectoryGone, NoSuchAgent, NoSuchSession, UserError

if TYPE_CHECKING:
    from zot.journal.journal import Journal
    from zot.providers.models import Model
    from zot.runtime.idempotency import Once
    from zot.runtime.open import Choice
    from zot.runtime.pool import Wanted
    from zot.runtime.shared import Premises
    from zot.serve.daemon.audit import Audit
    from zot.session.session import Session
    from zot.store import Configured
    from zot.wire.host import Request

#: What a flag says no longer once somebody has chosen for a session.
_CHOSEN = frozenset({*RECORDED, *OF_PROVIDER, "lock"} - {"cwd"})

#: What helps a session whose directory is gone.
_ANOTHER_PLACE = "session/new with its id and a cwd, or zot attach SESSION --cwd DIR, names another place"

#: How long an answer that got out is given again for the same key.
_TTL_S = 60.0


class Establishment:
    """Opens the sessions of a daemon, each as its agent is configured. ``flags`` win over what files say."""

    def __init__(
        self,
        place: Place,
        agents: Agents,
        *,
        journal: Journal,
        premises: Premises,
        audit: Audit,
        flags: Mapping[str, Any],
    ) -> None:
        self.place = place
        self.agents = agents
        self.journal = journal
        self.audit = audit
        self.joinable = False
        self.premises = premises
        self.own_process = premises.own_process
        self._flags = flags
        #: The sessions for which somebody has chosen, so that flags do not undo it when they are loaded again.
        self._chosen: set[str] = set()

    @property
    def settings(self) -> DaemonSettings:
        """How the daemon works, whichever agent it runs."""
        return self.agents.daemon

    async def opening(self, session_id: str, wanted: Wanted | None) -> Session:
        """Return a session; one that does not exist is made as ``wanted``. Raise NoSuchSession if nothing is."""
        from zot.runtime.open import HOSTED, Choice, open_chosen

        cwd = None if wanted is None else wanted.cwd

        def choose(recorded: Configured | None) -> Choice:
            alias = _alias(recorded, wanted, session_id)
            made = wanted is not None and wanted.guarded if recorded is None else recorded.guarded
            guarded = made or session_id.startswith(HOSTED)  # Also one of an earlier zot, which did not record it.
            # One that exists stays where it is, as long as it can; and who may not use it does not move it.
            may_move = not (wanted and wanted.guarded) or guarded or self.has_rules(alias)
            place = cwd if recorded is None or (may_move and not os.path.isdir(recorded.cwd)) else None
            given = {*self._given(session_id), *(() if place is None else ("cwd",))}
            config = self._config(alias, session_id, place)
            return Choice(config, given, agent=alias, guarded=guarded, joinable=self.joinable, reloadable=True)

        first = self._config(DEFAULT_AGENT if wanted is None else wanted.agent, session_id, cwd)
        try:
            session = await open_chosen(first, choose, self.premises, creates=wanted is not None)
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

    async def _conclude(self, session_id: str) -> None:
        """End what a dead process left in a session that can be read only, because its agent is gone."""
        from zot.messages import timestamp
        from zot.session.recovery import conclude
        from zot.session.transcripts import Past

        with suppress(NoSuchSession):
            if (await self.journal.find(session_id)).owner is not None:
                record, past = await self.journal.resume(session_id, create=False)
                await conclude(record, Past(past.changes, past.rows, record.totals), now=timestamp)

    async def opening_by(self, request: Request, came: float, deadline: float) -> tuple[Session, Once]:
        """Return the session of a request of the host protocol, and what sees to it that it is answered once."""
        from zot.runtime.idempotency import Demand
        from zot.runtime.open import open_hosted

        assert request.session_id is not None
        assert request.prompt is not None
        alias = request.agent_name if request.agent_name in self.agents.names else DEFAULT_AGENT
        demand = Demand(
            request.session_id,
            request.ids.request_id,
            request.prompt,
            request.agent_name,
            request.key,
            _TTL_S,
            came,
            deadline,
        )
        return await open_hosted(self._config(alias, None, None), demand, self.premises)

    def others(self, session: Session) -> Sequence[Model]:
        """Return the models of other providers that a session can use: its agent's own, and all that have a key.

        Reads files.
        """
        from zot.runtime.providers import LeftProviders, models_of

        config, left = self._config(session.agent.name or DEFAULT_AGENT, None, None), LeftProviders()
        if config.provider != session.agent.provider.name:
            with suppress(UserError):  # What the file says of it may be wrong.
                left.leave(config.provider, config, models_of(config, self.premises).find(config.model))
        return left.elsewhere(session.agent.provider.name, config)

    def opening_aside(self, session: Session) -> Session:
        """Return a session that has the past of another, has no tools, and is not kept. Reads files."""
        from zot.runtime.open import open_session
        from zot.session.side_question import bare
        from zot.session.transcripts import told

        now = session.agent.configured()
        config = self._config(now.agent or DEFAULT_AGENT, None, None)
        recorded = {name: getattr(now, name) for name in RECORDED}
        config = bare(resumed(config, recorded, self._flags.keys() - _CHOSEN))
        past = told(session.transcript.messages, session.totals)
        return open_session(config, past=past, premises=self.premises)

    def check(self, session_id: str, wanted: Configured) -> None:
        """Raise ConfigError, UserError if a session cannot work as is ``wanted``. Reads files."""
        from zot.runtime.open import check

        config = self._config(wanted.agent or DEFAULT_AGENT, session_id, None)
        recorded = {name: getattr(wanted, name) for name in RECORDED}
        check(resumed(config, recorded, self._flags.keys() - _CHOSEN), self.premises)

    def unusable(self) -> Mapping[str, UserError]:
        """Return the agents of which no session could be made now, each with the reason. Reads files."""
        from zot.runtime.open import check

        problems: dict[str, UserError] = {}
        for alias in self.agents.names:
            try:
                check(self._config(alias, None, None), self.premises)
            except UserError as problem:
                problems[alias] = problem
        return problems

    def chosen(self, session_id: str) -> None:
        """Let what a session works with hold whenever it is opened, also if flags say otherwise."""
        self._chosen.add(session_id)

    def has_rules(self, alias: str) -> bool:
        """True if an agent has a policy of its own, so that strangers may be let to it."""
        return alias in self.agents.names and bool(self._config(alias, None, None).policy)

    def describe(self, alias: str) -> tuple[str, str]:
        """Return the provider and the model of an agent; "" for a model that cannot be told."""
        from zot.runtime.providers import models_of

        config = self._config(alias, None, None)
        try:
            return config.provider, models_of(config, self.premises).find(config.model).id
        except UserError:
            return config.provider, config.model or ""

    def _given(self, session_id: str) -> frozenset[str]:
        """Return which settings count whatever a session worked with before."""
        return frozenset(self._flags.keys() - (_CHOSEN if session_id in self._chosen else ()))

    def _config(self, alias: str, session_id: str | None, cwd: str | None) -> Config:
        config = self.agents.config(alias, self._flags)
        journal = self.place.journal or config.journal
        config = msgspec.structs.replace(config, session=session_id, journal=journal, private=(self.place.data_dir,))
        return config if cwd is None else msgspec.structs.replace(config, cwd=cwd)


def journal_of(place: Place, agents: Agents) -> str:
    """Return where a daemon keeps its sessions. Raise ConfigError."""
    return place.journal or journal_path(agents.config(DEFAULT_AGENT))


def _alias(recorded: Configured | None, wanted: Wanted | None, session_id: str) -> str:
    """Return whose session it is. Raise UserError if somebody wants it to be another's."""
    if recorded is None:
        return DEFAULT_AGENT if wanted is None else wanted.agent
    alias = recorded.agent or DEFAULT_AGENT
    if wanted is not None and wanted.agent != alias:
        raise UserError(f"session {session_id!r} is one of the agent {alias!r}, not of {wanted.agent!r}")
    return alias
