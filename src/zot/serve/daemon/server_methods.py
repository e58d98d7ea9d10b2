"""Methods on the daemon itself (status, health, agents, logs, costs), and the table of all methods."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from zot.errors import AgentError, UserError
from zot.messages import timestamp
from zot.serve.daemon.audit import AuditEntry, recent
from zot.serve.daemon.catalog import CatalogMethods
from zot.serve.daemon.client_connection import AnswerThen, ClientConnection, Handler, SlowAnswer
from zot.serve.daemon.metrics import rss_bytes
from zot.serve.daemon.session_methods import SessionMethods, SideQuestions
from zot.serve.daemon.settings_methods import ExtensionMethods, SettingsMethods
from zot.serve.daemon.spending import Span
from zot.wire import daemon_types
from zot.wire.daemon import PROTOCOL_VERSION
from zot.wire.daemon_types import Component
from zot.wire.host import Refused, Request, check

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon
    from zot.serve.daemon.sessions import DaemonSessions
    from zot.serve.host.requests import RequestAnswered

#: Limit for a check.
_WITHIN_S = 5.0
_AUDIT_LINES, _MAX_AUDIT_LINES = 50, 500


class HealthCheck:
    """Health check of one part, with the time of its last success and its last error."""

    def __init__(self, attempt: Callable[[], Awaitable[object]], *, within_s: float = _WITHIN_S) -> None:
        """``attempt`` raises AgentError if the part does not work."""
        self._attempt = attempt
        self._within_s = within_s
        self._last_ok: str | None = None
        self._last_error: str | None = None

    async def make(self) -> Component:
        """Run the check and return its result. The last error stays known after a success."""
        problem = ""
        try:
            async with asyncio.timeout(self._within_s):
                await self._attempt()
        except TimeoutError:
            problem = f"no answer within {self._within_s:g} s"
        except AgentError as failure:
            problem = str(failure)
        now = timestamp()
        if problem:
            self._last_error = problem
        else:
            self._last_ok = now
        return Component(
            status="error" if problem else "ok", updated_at=now, last_ok=self._last_ok, last_error=self._last_error
        )


class ServerMethods:
    """Handlers of the methods on the daemon itself."""

    def __init__(self, daemon: Daemon, sessions: DaemonSessions) -> None:
        self._daemon = daemon
        self._sessions = sessions
        self._journal = HealthCheck(sessions.catalog.check)
        #: Answers without a confirmed delivery.
        self._undelivered: dict[tuple[int, str], RequestAnswered] = {}
        #: Clients that wait for an answer, each with the task that makes it.
        self._responding: set[tuple[ClientConnection, asyncio.Task[Any]]] = set()

    @property
    def table(self) -> Mapping[str, Handler]:
        """Handlers by method."""
        return {
            "status": self._status,
            "health": self._health,
            "agents/list": self._agents,
            "agents/status": self._agents,
            "tui/list": self._clients,
            "cost/query": self._costs,
            "audit/recent": self._audit,
            "logs/subscribe": self._subscribe,
            "sessions/watch": self._watch,
            "config/list": self._entries,
            "config/sections": self._sections,
            "config/templates": self._templates,
            "config/reload": self._reload,
            "host/respond": self._respond,
            "host/delivered": self._delivered,
            "daemon/stop": self._stop,
        }

    def left(self, connection: ClientConnection) -> None:
        """Handle a disconnect: unconfirmed answers count as undelivered, and pending requests are cancelled."""
        self._daemon.log_feed.leave(connection.wire)
        self._sessions.watchers.leave(connection)
        for waiting, task in list(self._responding):
            if waiting is connection:
                task.cancel()
        for place in [place for place in self._undelivered if place[0] == id(connection)]:
            self._undelivered.pop(place).delivered(False)

    async def _status(self, connection: ClientConnection, asked: daemon_types.Nothing) -> daemon_types.Status:
        daemon = self._daemon
        ids = tuple(one for one in self._sessions.pool.ids if connection.grant.sees(one))
        config_dir = daemon.parts.agents.directory or msgspec.UNSET
        return daemon_types.Status(
            server_version=daemon.server_version,
            protocol_version=PROTOCOL_VERSION,
            active_sessions=len(ids),
            session_ids=ids,
            server_pid=os.getpid(),
            uptime_seconds=int(daemon.uptime_s),
            clients=len(self._visible(connection)),
            config_dir=config_dir,
            config_file=os.path.join(config_dir, "config.toml") if config_dir else msgspec.UNSET,
            config_kind="default" if daemon.place.config_dir is None else "custom",
            local_ipc_endpoint=daemon.place.socket,
            listens=tuple(daemon.listens),
            data_dir=daemon.place.data_dir,
        )

    async def _health(self, connection: ClientConnection, asked: daemon_types.Nothing) -> daemon_types.Health:
        now = timestamp()
        ok = daemon_types.Component(status="ok", updated_at=now, last_ok=now)
        process = daemon_types.Process(
            rss_bytes=rss_bytes(), system_ram_total_bytes=_ram(), num_cpus=os.cpu_count() or 1
        )
        return daemon_types.Health(
            pid=os.getpid(),
            updated_at=now,
            uptime_seconds=int(self._daemon.uptime_s),
            components={"daemon": ok, "journal": await self._journal.make()},
            process=process,
        )

    async def _agents(self, connection: ClientConnection, asked: daemon_types.Nothing) -> daemon_types.Agents:
        pool, sees = self._sessions.pool, connection.grant.sees
        loaded = [pool.session(session_id) for session_id in pool.ids if sees(session_id)]
        live = Counter("default" if one is None else one.agent.name or "default" for one in loaded)
        kept = Counter(entry.agent for entry in await self._sessions.catalog.listed() if sees(entry.record.id))
        agents = [(name, *self._sessions.opener.describe(name)) for name in self._daemon.parts.agents.names]
        return daemon_types.Agents(
            tuple(
                daemon_types.AgentEntry(
                    alias=name,
                    provider=provider,
                    model=model,
                    live_sessions=live[name],
                    persisted_sessions=kept[name],
                )
                for name, provider, model in agents
            )
        )

    async def _clients(self, connection: ClientConnection, asked: daemon_types.Nothing) -> daemon_types.Clients:
        return daemon_types.Clients(
            tuple(
                daemon_types.ClientEntry(
                    tui_id=one.name,
                    connected_at=timestamp(one.since),
                    connected_at_unix=int(one.since),
                    peer_label=one.label,
                    transport=one.label.partition(":")[0],
                )
                for one in self._visible(connection)
            )
        )

    def _visible(self, connection: ClientConnection) -> list[ClientConnection]:
        """Return the connections that a client may see: those of the same token if that is bound to sessions."""
        grant = connection.grant
        return [one for one in self._daemon.connections if grant.sessions is None or one.grant == grant]

    async def _costs(self, connection: ClientConnection, asked: daemon_types.CostQuery) -> daemon_types.Costs:
        span = Span(asked.since, asked.until)
        return await self._sessions.catalog.spent(span, agent=asked.agent, only=connection.grant.sessions)

    async def _audit(self, connection: ClientConnection, asked: daemon_types.RecentAudit) -> daemon_types.AuditLines:
        del connection
        limit = _AUDIT_LINES if asked.limit is None else min(asked.limit, _MAX_AUDIT_LINES)
        audit = self._daemon.parts.audit
        audit.flush()
        found = await asyncio.to_thread(recent, audit.path, limit)
        return daemon_types.AuditLines(tuple(_audit_line(entry) for entry in found))

    async def _subscribe(self, connection: ClientConnection, asked: daemon_types.Nothing) -> AnswerThen:
        return AnswerThen(daemon_types.Subscribed(), lambda: self._daemon.log_feed.subscribe(connection.wire))

    async def _watch(self, connection: ClientConnection, asked: daemon_types.Nothing) -> AnswerThen:
        return AnswerThen(daemon_types.Watching(), lambda: self._sessions.watchers.add(connection))

    async def _entries(
        self, connection: ClientConnection, asked: daemon_types.ConfigList
    ) -> daemon_types.ConfigEntries:
        return daemon_types.ConfigEntries()

    async def _sections(self, connection: ClientConnection, asked: daemon_types.Nothing) -> daemon_types.Sections:
        return daemon_types.Sections()

    async def _templates(self, connection: ClientConnection, asked: daemon_types.Nothing) -> daemon_types.Templates:
        return daemon_types.Templates()

    async def _reload(self, connection: ClientConnection, asked: daemon_types.Nothing) -> daemon_types.Reloading:
        self._daemon.reload()
        return daemon_types.Reloading(self._daemon.parts.agents.names)

    async def _respond(self, connection: ClientConnection, asked: daemon_types.HostRespond) -> SlowAnswer:
        _check_run(asked)

        async def respond() -> daemon_types.HostAnswered:
            task = asyncio.current_task()
            assert task is not None
            self._responding.add((connection, task))
            try:
                age_s, has_requests_ahead = (asked.age_ms or 0) / 1000, bool(asked.ahead)
                answered = await self._sessions.respond(asked, age_s=age_s, has_requests_ahead=has_requests_ahead)
            finally:
                self._responding.discard((connection, task))
            self._undelivered[id(connection), asked.ids.request_id] = answered
            return daemon_types.HostAnswered(answered.reply.response, answered.reply.code)

        return SlowAnswer(respond())

    async def _delivered(self, connection: ClientConnection, asked: daemon_types.HostDelivered) -> daemon_types.Noted:
        answered = self._undelivered.pop((id(connection), asked.request_id), None)
        if answered is None:
            raise UserError(f"no answer to the request {asked.request_id!r} awaits its delivery here")
        answered.delivered()
        return daemon_types.Noted()

    async def _stop(self, connection: ClientConnection, asked: daemon_types.Stop) -> AnswerThen:
        successor = connection if asked.handover else None
        grace_s = self._daemon.grace_s if asked.grace_s is None else asked.grace_s
        return AnswerThen(
            daemon_types.Stopping(grace_s=grace_s),
            lambda: self._daemon.stop(grace_s=asked.grace_s, successor=successor),
        )


def _check_run(request: Request) -> None:
    """Raise UserError if a request of the host protocol is not a run."""
    try:
        check(request)
    except Refused as problem:
        raise UserError(str(problem)) from None
    if (request.type or "run") != "run":
        raise UserError(f"type: a {request.type!r} needs no daemon; only a 'run' is answered here")


def _audit_line(entry: AuditEntry) -> daemon_types.AuditLine:
    known = {name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None}
    del known["prev"]
    return daemon_types.AuditLine(**known)


def _ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def make_handlers(daemon: Daemon, sessions: DaemonSessions) -> tuple[ServerMethods, Mapping[str, Handler]]:
    """Return the server methods, which must learn of disconnects, and the handlers of all methods."""
    pool, catalog, opener = sessions.pool, sessions.catalog, sessions.opener
    server, side_questions = ServerMethods(daemon, sessions), SideQuestions(pool, opener.opening_aside)
    daemon.pause_on_stop(side_questions)
    return server, {
        **SessionMethods(pool, catalog, side_questions).table,
        **side_questions.table,
        **SettingsMethods(pool, opener).table,
        **ExtensionMethods(pool).table,
        **CatalogMethods(pool, catalog, daemon.is_recovered).table,
        **server.table,
    }
