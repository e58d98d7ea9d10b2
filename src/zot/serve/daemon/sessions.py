"""Sessions of a daemon: the pool, the feeds of their updates, host requests, and how its agents' sessions are opened.

Imported after `initialize` is answered, with everything that other methods need.
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from zot.config.config import DEFAULT_AGENT, OF_PROVIDER, RECORDED, ConfigOverrides, resumed
from zot.errors import DirectoryGone, NoSuchAgent, NoSuchSession, UserError
from zot.events import AgentEvent, ApprovalRequest, Done
from zot.journal import replay
from zot.messages import timestamp
from zot.providers.models import Model
from zot.runtime.check import check, working_directory
from zot.runtime.open import HOSTED, OpenRequest, open_session, open_unrecorded, preload
from zot.runtime.pool import NewSessionSettings, PoolLimits, SessionPool
from zot.runtime.provider_choice import EarlierProviders, models_of
from zot.runtime.toolbox import warn_without_sandbox
from zot.serve.daemon.catalog import SessionCatalog
from zot.serve.daemon.feed import ForeignRunWatcher, RecordedEvents, SessionFeed, SessionWatchers
from zot.serve.daemon.server_methods import make_handlers
from zot.serve.host.requests import RequestAnswered, RequestServer
from zot.session.history import Batch, Subscriber
from zot.session.recovery import WaitingRuns, recover_unusable
from zot.session.side_question import side_config
from zot.session.transcripts import TranscriptPast, past_of
from zot.store import SettingsChanged

if TYPE_CHECKING:
    from zot.runtime.idempotency import IdempotentRequest
    from zot.serve.daemon.daemon import Daemon, DaemonParts
    from zot.serve.daemon.gateway import Gateway
    from zot.session.session import Session
    from zot.wire.host import Request

#: Settings in which a client's choice for a session overrides flags.
_CHOSEN = frozenset({*RECORDED, *OF_PROVIDER, "lock"} - {"cwd"})

#: Advice for a session whose directory is gone.
_ANOTHER_PLACE = "session/new with its id and a cwd, or zot attach SESSION --cwd DIR, names another place"


class DaemonSessions:
    """The sessions of a daemon, and the handlers of the methods on them."""

    def __init__(self, daemon: Daemon) -> None:
        self._metrics = daemon.metrics
        self._journal = daemon.parts.journal
        settings = daemon.parts.settings
        self.opener = SessionOpener(daemon.parts)
        self.pool = SessionPool(
            self.opener.opening,
            self._new_feed,
            self._journal,
            limits=PoolLimits(settings.max_sessions, idle_s=settings.idle_s),
            own_process=daemon.parts.own_process,
            resumes=not daemon.parts.worker_pool,
        )
        self.catalog = SessionCatalog(self._journal)
        self.watchers = SessionWatchers()
        #: Follows runs in other processes.
        self.watch: ForeignRunWatcher | Gateway = ForeignRunWatcher(daemon)
        self._host_requests = RequestServer(self.opener.opening_for_host)
        self.server_methods, self.handlers = make_handlers(daemon, self)
        if daemon.parts.worker_pool:
            from zot.serve.daemon.gateway import gateway  # Imported lazily: it needs the extra `fleet`.

            self.watch = gateway(daemon, self)
            self.handlers = {**self.handlers, **self.watch.table}

    async def preload(self, provider: str) -> None:
        """Import the modules that the first run needs: the HTTP client, and extensions, which can come at any time."""
        await preload(provider)
        import_module("zot.extensions.manager")

    def feed(self, session_id: str) -> SessionFeed:
        """Return the feed of a session's updates."""
        return cast("SessionFeed", self.pool.channel(session_id))

    def _new_feed(self, session_id: str) -> SessionFeed:
        return SessionFeed(session_id, RecordedEvents(self._journal, session_id), self._metrics, self.watchers)

    async def respond(
        self, request: Request, *, age_s: float = 0.0, has_requests_ahead: bool = False
    ) -> RequestAnswered:
        """Answer a request of the host protocol. Raise DaemonStopping if the next daemon should be asked."""
        self.pool.check_open()
        answered = await self._host_requests.answer(request, age_s=age_s, has_requests_ahead=has_requests_ahead)
        self._metrics.responses += 1
        return answered

    def after_turn(self, session_id: str, call: Callable[[], None], *, through_approvals: bool = False) -> None:
        """Call when a session's turn is over or waits for an approval; at once if none runs.

        With ``through_approvals`` only the end of the turn counts.
        """
        session, is_ended = self.pool.ending(session_id), self.pool.is_ended(session_id)
        # The start of a turn was sent, but not its end.
        runs = session is not None and session.worker.has_begun and self.feed(session_id).in_run
        # A run that is cancelled before it begins still begins, if it can, so that its end is sent.
        begins = session is not None and is_ended and session.worker.busy and not session.worker.has_begun
        is_asked = session is not None and session.approvals.pending is not None and not is_ended
        if session is None or not (runs or begins) or (is_asked and not through_approvals):
            call()
            return
        loop = asyncio.get_running_loop()
        ends = (Done,) if through_approvals else (Done, ApprovalRequest)
        pause = RunWaiter(session, lambda: loop.call_soon(call), ends)
        if begins:
            self.pool.when_ended(session_id, pause.reach)

    async def settle(self, *, within_s: float) -> None:
        """Wait until all runs have ended or wait for an approval; ``within_s`` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as waits:
                waits.create_task(settle_all(self.pool))
                waits.create_task(self._host_requests.finish())

    async def close(self) -> None:
        """End all host requests, then all sessions."""
        await self._host_requests.close()
        await self.pool.close()


class RunWaiter(Subscriber):
    """Waits for a run's end, or for an approval request: only a person ends that wait. ``ends`` has other types."""

    def __init__(
        self,
        session: Session,
        reached: Callable[[], object],
        ends: tuple[type[AgentEvent], ...] = (Done, ApprovalRequest),
    ) -> None:
        self._ends = ends
        self._reached: Callable[[], object] | None = reached
        self.leave = session.history.subscribe(self)

    def deliver(self, batch: Batch) -> None:
        """Check a batch for such an event."""
        if any(isinstance(event, self._ends) for event in batch.events):
            self.reach()

    def reach(self) -> None:
        """Call the callback, once. Safe to call repeatedly."""
        reached, self._reached = self._reached, None
        self.leave()
        if reached is not None:
            reached()


async def settle_all(pool: SessionPool) -> None:
    """Wait until all sessions have finished their queues, except those that wait for an approval."""
    while running := [one for one in pool.sessions if one.worker.busy and one.approvals.pending is None]:
        async with asyncio.TaskGroup() as waits:
            for session in running:
                waits.create_task(_settle(session))


async def _settle(session: Session) -> None:
    paused = asyncio.Event()
    pause = RunWaiter(session, paused.set)
    waits = [asyncio.ensure_future(session.worker.finish()), asyncio.ensure_future(paused.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pause.leave()
        for wait in waits:
            wait.cancel()


class _State(enum.Enum):
    """Whether a session is recorded, and has messages."""

    NEW = enum.auto()
    EMPTY = enum.auto()
    USED = enum.auto()


class _Workspace(NamedTuple):
    """The checkout of a session, and the state of the session before it is opened."""

    place: str
    state: _State


class SessionOpener:
    """Opens a daemon's sessions. Flags override files."""

    def __init__(self, parts: DaemonParts) -> None:
        self._parts = parts
        #: Sessions with choices by a client, which flags must not undo when they are loaded again.
        self._chosen: set[str] = set()

    async def opening(self, session_id: str, wanted: NewSessionSettings | None) -> Session:
        """Load a session, or create it as ``wanted``. Raise NoSuchSession if it does not exist and none is wanted."""
        workspace = await self._workspace(session_id, wanted)
        request = self._request(session_id, wanted, workspace)
        try:
            session = await open_session(request, self._parts.resources)
        except NoSuchAgent:
            await self._conclude(session_id)
            raise
        except DirectoryGone as problem:
            raise DirectoryGone(problem.cwd, _ANOTHER_PLACE) from None
        try:
            if not self._parts.worker_pool or _is_changed_here(session, wanted, workspace):
                await session.establish()
        except BaseException:
            await session.close()
            raise
        return session

    async def _workspace(self, session_id: str, wanted: NewSessionSettings | None) -> _Workspace | None:
        """Return the checkout of a session whose agent has a repository; None for others. Raise UserError."""
        if (workspaces := self._parts.workspaces) is None:
            return None
        if not any(workspaces.has(alias) for alias in self._parts.agents.names):
            return None
        agent, state = "" if wanted is None else wanted.agent, _State.NEW
        with suppress(NoSuchSession):
            record = await self._parts.journal.find(session_id)
            agent = await self._parts.journal.reading(replay.agent_of, record)
            state = _State.USED if record.messages else _State.EMPTY
        place = await workspaces.prepare(session_id, agent)
        return None if place is None else _Workspace(place, state)

    def _request(
        self,
        session_id: str,
        wanted: NewSessionSettings | None,
        workspace: _Workspace | None,
        recorded: SettingsChanged | None = None,
    ) -> OpenRequest:
        """Return the request for a session: a new one as ``wanted``, or one that exists with ``recorded`` settings.

        Raise NoSuchAgent, or UserError if another agent than the recorded one is wanted.
        """
        alias = _alias(recorded, wanted, session_id)
        made = wanted is not None and wanted.guarded if recorded is None else recorded.guarded
        guarded = made or session_id.startswith(HOSTED)  # Earlier versions did not record it.
        # An existing session stays in its directory while that exists; a client without access cannot move it.
        may_move = not (wanted and wanted.guarded) or guarded or self._parts.has_rules(alias)
        is_placed = recorded is None or (may_move and not os.path.isdir(recorded.cwd))
        cwd = wanted.cwd if wanted is not None and is_placed else None
        if workspace is not None:
            is_placed = recorded is None or not os.path.isdir(recorded.cwd)
            if not self._parts.worker_pool and recorded is not None:
                # The first worker writes the system prompt anew: the instructions are in the checkout.
                is_placed = workspace.state is _State.EMPTY or recorded.cwd != workspace.place
            cwd = workspace.place if is_placed else None
        overrides = self._overrides(session_id)
        return OpenRequest(
            config=self._parts.config(alias, session_id, cwd),
            overrides=overrides if cwd is None else overrides.including("cwd"),
            agent=alias,
            guarded=guarded,
            reloadable=True,
            joinable=self._parts.joinable,
            creates=wanted is not None,
            unfinished=self._unfinished(workspace),
            adapt=partial(self._request, session_id, wanted, workspace),
        )

    def _unfinished(self, workspace: _Workspace | None) -> WaitingRuns:
        """Return the treatment of a run whose process died. A worker continues it, but for one whose changed files were
        in a checkout of the worker that is gone."""
        if self._parts.worker_pool:
            return WaitingRuns.IGNORE
        return WaitingRuns.CONTINUE if self._parts.is_worker and workspace is None else WaitingRuns.RESUME

    async def _conclude(self, session_id: str) -> None:
        """Recover a dead process's run in a session that is read-only because its agent is gone."""
        with suppress(NoSuchSession):
            if (await self._parts.journal.find(session_id)).owner is not None:
                record, past = await self._parts.journal.resume(session_id, create=False)
                await recover_unusable(record, TranscriptPast(past.changes, past.rows, record.totals), now=timestamp)

    async def opening_for_host(self, request: IdempotentRequest) -> Session:
        """Return the session of a host request."""
        alias = request.agent if request.agent in self._parts.agents.names else DEFAULT_AGENT
        return await open_session(
            OpenRequest.for_host(self._parts.config(alias, None, None), request), self._parts.resources
        )

    def others(self, session: Session) -> Sequence[Model]:
        """Return the other providers' models that a session can use: its agent's own, and all with a key.

        Reads files.
        """
        config, left = self._parts.config(session.agent.name or DEFAULT_AGENT, None, None), EarlierProviders()
        if config.provider != session.agent.provider.name:
            with suppress(UserError):  # The configuration may be wrong.
                left.leave(config.provider, config, models_of(config).find(config.model))
        return left.elsewhere(session.agent.provider.name, config)

    def opening_aside(self, session: Session) -> Session:
        """Return an unrecorded session without tools that has another session's history. Reads files."""
        now = session.agent.configured()
        config = self._parts.config(now.agent or DEFAULT_AGENT, None, None)
        recorded = {name: getattr(now, name) for name in RECORDED}
        config = side_config(resumed(config, recorded, self._parts.flags.keys() - _CHOSEN))
        past = past_of(session.history.transcript.messages, session.history.totals)
        return open_unrecorded(OpenRequest(config=config, past=past), self._parts.resources)

    def check(self, session_id: str, wanted: SettingsChanged) -> None:
        """Raise ConfigError, UserError if a session cannot work as ``wanted``. Reads files."""
        config = self._parts.config(wanted.agent or DEFAULT_AGENT, session_id, None)
        recorded = {name: getattr(wanted, name) for name in RECORDED}
        check(resumed(config, recorded, self._parts.flags.keys() - _CHOSEN))

    def unusable(self) -> Mapping[str, UserError]:
        """Return the agents whose sessions cannot be opened now, each with the reason. Reads files."""
        problems: dict[str, UserError] = {}
        for alias in self._parts.agents.names:
            try:
                check(self._parts.config(alias, None, None))
            except UserError as problem:
                problems[alias] = problem
        return problems

    def check_sandbox(self) -> None:
        """Log once if agents are locked and this system has no sandbox for their commands. Reads files."""
        for alias in self._parts.agents.names:
            with suppress(UserError):  # `unusable` reports it.
                config = self._parts.config(alias, None, None)
                warn_without_sandbox(config, self._parts.resources, working_directory(config.cwd))

    def chosen(self, session_id: str) -> None:
        """Keep a session's current settings whenever it is opened, even if flags differ."""
        self._chosen.add(session_id)

    def describe(self, alias: str) -> tuple[str, str]:
        """Return the provider and the model of an agent; "" for an unknown model."""
        config = self._parts.config(alias, None, None)
        try:
            return config.provider, models_of(config).find(config.model).id
        except UserError:
            return config.provider, config.model or ""

    def _overrides(self, session_id: str) -> ConfigOverrides:
        """Return the flags that override a session's recorded settings."""
        return ConfigOverrides(frozenset(self._parts.flags.keys() - (_CHOSEN if session_id in self._chosen else ())))


def _is_changed_here(session: Session, wanted: NewSessionSettings | None, workspace: _Workspace | None) -> bool:
    """True if a gateway must record a session's settings: it is new, or its client names another directory. All others
    are as its worker has recorded them."""
    recorded = session.history.configured
    names_place = wanted is not None and wanted.cwd is not None and workspace is None
    return recorded is None or (names_place and recorded.cwd != session.agent.cwd)


def _alias(recorded: SettingsChanged | None, wanted: NewSessionSettings | None, session_id: str) -> str:
    """Return the agent of a session. Raise UserError if another one is wanted."""
    if recorded is None:
        return DEFAULT_AGENT if wanted is None else wanted.agent
    alias = recorded.agent or DEFAULT_AGENT
    if wanted is not None and wanted.agent != alias:
        raise UserError(f"session {session_id!r} belongs to the agent {alias!r}, not to {wanted.agent!r}")
    return alias
