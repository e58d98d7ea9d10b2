"""Daemon: its parts, its clients, its method table and its shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET

from zot.client.endpoint import admits, identify, is_confined
from zot.config.config import Config
from zot.config.configured_agents import AgentConfigs
from zot.config.file import DaemonSettings
from zot.config.paths import DaemonPaths
from zot.serve.daemon.audit import Identity, Refusals
from zot.serve.daemon.client_connection import ClientConnection
from zot.serve.daemon.lifecycle import ClientShutdown
from zot.serve.daemon.logs import LogFeed
from zot.serve.daemon.metrics import Metrics, rss_bytes, size_of_database
from zot.serve.daemon.sockets import LocalWire, client_limit
from zot.version import __version__
from zot.wire.daemon import (
    FEATURES,
    METHODS,
    PROTOCOL_VERSION,
    READ_ONLY,
    STOPPING,
    Initialize,
    Initialized,
    capabilities,
    check_version,
)
from zot.wire.jsonrpc import NULL, TOO_MANY_CLIENTS, RpcError, encode_error
from zot.wire.lines import MAX_LINE_BYTES

if TYPE_CHECKING:
    from zot.journal.recorded_sessions import SessionJournal
    from zot.runtime.shared import SharedResources
    from zot.serve.daemon.audit import Audit
    from zot.serve.daemon.sessions import DaemonSessions
    from zot.serve.workspaces import Workspaces


class DaemonParts:
    """Shared by the sessions of a daemon. ``flags`` override files."""

    def __init__(
        self,
        place: DaemonPaths,
        agents: AgentConfigs,
        *,
        journal: SessionJournal,
        resources: SharedResources,
        audit: Audit,
        flags: Mapping[str, Any],
    ) -> None:
        self.place = place
        self.agents = agents
        self.journal = journal
        self.audit = audit
        self.joinable = False
        #: The pool of workers that runs the prompts; "" if the daemon runs them itself.
        self.worker_pool = ""
        #: Whether this is a worker: it continues runs of workers that are gone.
        self.is_worker = False
        #: The checkouts of sessions whose agents have a repository; None without workers.
        self.workspaces: Workspaces | None = None
        #: Paths that no session may reach; keys of certificates are added.
        self.private: tuple[str, ...] = place.private
        self.resources = resources
        self.own_process = resources.own_process
        self.flags = flags

    @property
    def settings(self) -> DaemonSettings:
        """Settings of the daemon itself."""
        return self.agents.file.daemon

    def has_rules(self, alias: str) -> bool:
        """True if an agent has a policy of its own, so that remote clients may use it."""
        return alias in self.agents.names and bool(self.config(alias, None, None).policy)

    def config(self, alias: str, session_id: str | None, cwd: str | None) -> Config:
        """Return the settings of an agent's session. Raise NoSuchAgent, ConfigError."""
        config = self.agents.config(alias, self.flags)
        journal = self.flags.get("journal") or self.place.journal or config.journal
        config = msgspec.structs.replace(config, session=session_id, journal=journal, private=self.private)
        if self.worker_pool:  # Extensions and MCP servers run on workers.
            config = msgspec.structs.replace(config, no_ext=True, ext=(), mcp_servers=())
        return config if cwd is None else msgspec.structs.replace(config, cwd=cwd)


log = logging.getLogger("zot")

#: Limit of clients: the process needs descriptors for other things, too.
MAX_CLIENTS = 1024
#: How long a client may stay uninitialized before another may take its place.
_SILENT_S = 10.0
#: How long an ephemeral daemon waits for the next client.
_EPHEMERAL_S = 1.0


class PausedByStop(Protocol):
    """A part of the daemon that pauses while the daemon stops."""

    def pause(self) -> None:
        """Accept no new work. Safe to call repeatedly."""

    def resume(self) -> None:
        """Accept work again: the stop was withdrawn."""


class Daemon:
    """State shared by all connections."""

    def __init__(self, parts: DaemonParts, *, ephemeral: bool = False, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.parts = parts
        self.place = parts.place
        self.server_version = parts.settings.server_version or __version__
        #: Set while no recovery of a dead process's sessions is running.
        self.is_recovered = asyncio.Event()
        self.is_recovered.set()
        self.metrics = Metrics()
        #: Listening addresses besides the socket.
        self.listens: list[str] = []
        self.log_feed = LogFeed()
        self._refusals = Refusals(parts.audit, self.metrics)
        self._sessions: DaemonSessions | None = None
        self._connections: dict[ClientConnection, None] = {}
        self._began = time.monotonic()
        self._ephemeral = ephemeral
        #: Longest accepted line or WebSocket message.
        self.max_line_bytes = max_line_bytes
        self._leaving: asyncio.TimerHandle | None = None
        self._shutdown = ClientShutdown(self._leaving_clients)
        self._stopping = asyncio.Event()
        #: Set if a stop was withdrawn; replaced for each stop.
        self._resumed = asyncio.Event()
        #: Whether a stop without a successor was requested, and whether resuming is impossible by now.
        self._must_end = False
        self._is_over = False
        self.grace_s = parts.settings.grace_s
        self._pausing: list[PausedByStop] = []
        #: Set when the first client has initialized.
        self._has_greeted = asyncio.Event()
        #: Client that takes the endpoint over.
        self.successor: ClientConnection | None = None

    @property
    def sessions(self) -> DaemonSessions:
        """The sessions, and the handlers of all methods."""
        if self._sessions is None:
            from zot.serve.daemon.sessions import DaemonSessions  # Imported lazily: `initialize` is answered before.

            self._sessions = DaemonSessions(self)
        return self._sessions

    # Status.

    @property
    def connections(self) -> Sequence[ClientConnection]:
        """Connected clients."""
        return tuple(self._connections)

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def gauges(self) -> Mapping[str, float]:
        """Return current values for `Metrics.told`."""
        sessions = self.sessions.pool.sessions
        return {
            "clients": len(self._connections),
            "sessions": len(sessions),
            "running": sum(session.worker.busy for session in sessions),
            "journal_bytes": size_of_database(self.parts.journal.path),
            "rss_bytes": rss_bytes(),
            "uptime_seconds": round(self.uptime_s, 3),
        }

    # Clients.

    def accept(self, wire: LocalWire) -> ClientConnection | None:
        """Return the connection of a client at the local socket; None if it is refused."""
        try:
            peer = identify(wire.transport.get_extra_info("socket"))
        except OSError:
            return None
        who = Identity("unix", uid=peer.uid, pid=peer.pid)
        if not admits(peer):
            self._refuse(who, "uid", f"{peer.label}: this daemon serves uid {os.geteuid()} only")
            return None
        if is_confined(peer):
            self._refuse(who, "sandbox", f"{peer.label}: it is in a sandbox of zot, or has ended")
            return None
        return self.admit(wire, who, peer.label)

    def admit(self, wire: LocalWire, who: Identity, label: str) -> ClientConnection | None:
        """Return the connection of a local client; None, after sending an error, if there are too many clients."""
        connection = self.connect(ClientConnection(self, wire, who, label=label))
        if connection is None:
            self._refuse(who, "clients", f"{label}: there are {len(self._connections)} already")
            wire.send(encode_error(NULL, RpcError(TOO_MANY_CLIENTS, "there are too many clients; try again later")))
            wire.finish()
        return connection

    def connect(self, connection: ClientConnection) -> ClientConnection | None:
        """Register a client; None if there are too many."""
        if len(self._connections) >= client_limit(MAX_CLIENTS) and not self._make_room():
            return None
        self._connections[connection] = None
        self.metrics.connections += 1
        self.parts.audit.note("connected", connection.who)
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        return connection

    def _refuse(self, who: Identity, outcome: str, why: str) -> None:
        """Log the refusal of a local client, up to a rate limit."""
        if self._refusals.note(who, "", outcome):
            log.warning("refused a connection of %s", why)

    def _make_room(self) -> bool:
        """Disconnect the oldest client that has not initialized in time. False if there is none."""
        before = time.monotonic() - _SILENT_S
        for one in self._connections:
            if not one.is_initialized and one.came < before:
                del self._connections[one]
                one.wire.cut(f"{one.label} did not call initialize, and other clients are waiting")
                return True
        return False

    def left(self, connection: ClientConnection) -> None:
        """Remove a client that has gone; resume if it was to take over."""
        self._connections.pop(connection, None)
        self._shutdown.left(connection)
        if connection is self.successor and not self._must_end and not self._is_over:
            self._resume()
        if self._sessions is not None:
            self._sessions.server_methods.left(connection)
        if self._ephemeral and not self._connections and not self._stopping.is_set():
            self._leaving = asyncio.get_running_loop().call_later(_EPHEMERAL_S, self.stop)

    def initialize(self, connection: ClientConnection, asked: Initialize) -> Initialized:
        """Return the answer to `initialize`. Raise RpcError."""
        check_version(asked)
        self._has_greeted.set()
        self._shutdown.initialized(connection, wants_notice=STOPPING in asked.features)
        return Initialized(
            protocol_version=PROTOCOL_VERSION,
            server_version=self.server_version,
            server_pid=os.getpid(),
            capabilities=capabilities(connection.grant),
            features=tuple(feature for feature in FEATURES if feature in asked.features),
            endpoint=self.place.socket,
            tui_id=connection.name,
            max_line_bytes=UNSET if self.max_line_bytes == MAX_LINE_BYTES else self.max_line_bytes,
        )

    def note(self, connection: ClientConnection, method: str, params: Any, problem: RpcError | None) -> None:
        """Record a call in the audit log; successful read-only ones are counted."""
        self.metrics.errors += problem is not None
        self.metrics.calls += method not in READ_ONLY or problem is not None
        if problem is None and METHODS[method].role in ("any", "view"):
            self.parts.audit.read(connection.who)
            return
        outcome = "ok" if problem is None else str(problem.code)
        session_id = getattr(params, "session_id", None) or ""
        self.parts.audit.call(connection.who, method, session=session_id, outcome=outcome)

    # Sessions and configuration.

    def reload(self) -> None:
        """Read the configuration again. Raise ConfigError without changing anything."""
        self.parts.agents = self.parts.agents.reloaded()
        settings = self.parts.settings
        self.server_version = settings.server_version or __version__
        pool = self.sessions.pool
        pool.limits = msgspec.structs.replace(pool.limits, loaded=settings.max_sessions, idle_s=settings.idle_s)
        if not self._stopping.is_set():  # The stop request may have set its own grace period.
            self.grace_s = settings.grace_s
        pool.renew()
        log.info("the configuration was read again: %s", ", ".join(self.parts.agents.names))

    async def greeted(self, within_s: float) -> None:
        """Wait until the first client was answered, for at most ``within_s``: clients take precedence."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._has_greeted.wait()
        await asyncio.sleep(0)  # Lets the answer be written.

    async def recover(self, *, patience_s: float = 0.0) -> None:
        """Recover the sessions that dead processes left in the middle of a run: end the run, or await its approval.

        Waits up to ``patience_s`` for a first client, which takes precedence.
        """
        self.is_recovered.clear()
        try:
            await self.greeted(patience_s)
            if not self.parts.worker_pool:  # Workers recover sessions.
                await self.sessions.pool.recover_all(await self.parts.journal.left_behind())
        finally:
            self.is_recovered.set()

    # Shutdown.

    def stop(self, *, grace_s: float | None = None, successor: ClientConnection | None = None) -> None:
        """Start to stop. ``successor`` takes the endpoint over; if it leaves meanwhile, the daemon resumes."""
        if successor is not None and successor not in self._connections:
            return  # It has disconnected already.
        if grace_s is not None:
            self.grace_s = grace_s
        self.successor = successor or self.successor
        self._must_end |= successor is None
        if not self._stopping.is_set():
            self._resumed = asyncio.Event()
        self._stopping.set()
        self._shutdown.warn()
        self.sessions.pool.stop()
        for part in self._pausing:  # Before another client is accepted that would not be served.
            part.pause()

    def _resume(self) -> None:
        """Withdraw the stop. Released resources stay released."""
        log.warning("the daemon resumes: its successor has gone")
        self.successor, self.grace_s = None, self.parts.settings.grace_s
        self._stopping.clear()
        self._resumed.set()
        self.sessions.pool.resume()
        for part in self._pausing:
            part.resume()
        self._shutdown.cancel_warning()

    def pause_on_stop(self, part: PausedByStop) -> None:
        """Pause ``part`` whenever a stop starts, possibly repeatedly, and resume it when the stop is withdrawn."""
        self._pausing.append(part)

    @property
    def has_no_successor(self) -> bool:
        """True if the daemon ends and no other takes over."""
        return self._must_end and self.successor is None

    async def stopped(self) -> None:
        """Wait until a stop is requested."""
        await self._stopping.wait()

    async def finish(self) -> bool:
        """Give runs their grace period. False if the daemon resumed instead; otherwise `close` it."""
        resumed = self._resumed
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(self._spend_grace()), group.create_task(resumed.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        self._is_over = not resumed.is_set()
        return self._is_over

    async def close(self, *, grace_s: float | None = None) -> None:
        """Give runs their grace period, then end them, disconnect the clients and release everything."""
        self._is_over = True
        self.stop(grace_s=grace_s)
        await self._spend_grace()
        await self.sessions.close()
        await self._shutdown.disconnect_all()

    async def _spend_grace(self) -> None:
        if self.grace_s > 0:
            await self.sessions.settle(within_s=self.grace_s)

    def _leaving_clients(self) -> list[ClientConnection]:
        return [one for one in self._connections if one is not self.successor]
