"""MCP over standard input and output: one client, and the sessions of this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from zot.config.config import DEFAULT_AGENT, Config, ConfigOverrides, journal_path
from zot.errors import NoSuchSession, UserError
from zot.journal.opening import open_journal
from zot.journal.recorded_sessions import SessionJournal
from zot.runtime.open import HOSTED, OpenRequest, open_session
from zot.runtime.pool import Channel, NewSessionSettings, PoolLimits, SessionPool
from zot.runtime.shared import SharedResources
from zot.serve.mcp.agent import AgentService, McpSessions
from zot.serve.mcp.server import McpAnswered, McpClientConnection, McpService
from zot.serve.stdio import GreetedStreams
from zot.serve.streams import StreamWriter, serve_lines
from zot.session.history import Batch
from zot.session.recovery import WaitingRuns
from zot.session.session import Session
from zot.wire.daemon import Grant
from zot.wire.jsonrpc import NULL, Bad, Reply, RpcRequest, decode, encode_error, frame_too_large
from zot.wire.lines import TooLong
from zot.wire.mcp_server import McpGreeting

#: The most sessions loaded at once; the least recently used idle one is unloaded for the next.
_MAX_SESSIONS: Final = 64
#: Limit for closing the sessions.
_CLOSE_S: Final = 1.0


class McpLineServer:
    """Serves one client, line by line."""

    def __init__(
        self, service: McpService, greeting: McpGreeting, output: StreamWriter, sessions: OwnMcpSessions
    ) -> None:
        self._connection = McpClientConnection(service, greeting=greeting)
        self._output = output
        self._sessions = sessions

    @property
    def sessions(self) -> Sequence[Session]:
        """The sessions, but for those whose run waits for an approval: it stays open in the journal."""
        return [one for one in self._sessions.sessions if one.approvals.pending is None]

    def take(self, line: bytes | TooLong) -> None:
        """Handle one line."""
        if isinstance(line, TooLong):
            self._output.write(encode_error(NULL, frame_too_large(line.limit)))
            return
        match decode(line):
            case Bad() as bad:
                self._output.write(encode_error(bad.id, bad))
            case Reply() as reply:
                self._connection.take_reply(reply)
            case RpcRequest(id=None) as request:
                self._connection.take_notification(request)
            case RpcRequest() as request:
                self._connection.answer(request, self._output).add_done_callback(self._write)
            case None:
                pass  # A malformed reply matches none of our requests.

    def _write(self, task: asyncio.Task[McpAnswered]) -> None:
        if not task.cancelled():
            self._output.write(task.result().frame)

    def end_input(self) -> None:
        """Handle the end of the client's input: it can no longer answer approvals."""
        self._connection.end()

    async def finish(self) -> None:
        """Wait until every request has been answered."""
        while waiting := self._connection.requests:
            await asyncio.wait(waiting)
        for session in self.sessions:
            await session.worker.finish()

    async def close(self) -> None:
        """Close the sessions, within a limit."""
        self._connection.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._sessions.close(), _CLOSE_S)


class _Unfollowed(Channel):
    """The events of one session, which only those take who wait for its runs."""

    is_followed = False

    def opened(self, session: Session) -> None:
        pass

    def closed(self) -> None:
        pass

    def on_foreign_rows(self, upto: int) -> None:
        pass

    def deliver(self, batch: Batch) -> None:
        pass


class OwnMcpSessions(McpSessions):
    """The sessions of this process. ``config`` and ``overrides`` are those of the command line."""

    def __init__(self, config: Config, overrides: ConfigOverrides, resources: SharedResources) -> None:
        self._config = config
        self._overrides = overrides
        self._resources = resources
        self._starting = asyncio.Lock()
        self._opened: tuple[SessionPool, SessionJournal] | None = None

    @property
    def sessions(self) -> Sequence[Session]:
        """The loaded sessions."""
        return () if self._opened is None else self._opened[0].sessions

    async def opened(self) -> tuple[SessionPool, SessionJournal]:
        async with self._starting:
            if self._opened is None:
                journal = await open_journal(journal_path(self._config))
                limits = PoolLimits(_MAX_SESSIONS)
                pool = SessionPool(self._open, lambda _: _Unfollowed(), journal, limits=limits, own_process=True)
                self._opened = pool, journal
        return self._opened

    async def check_new(self, grant: Grant, session_id: str, wanted: NewSessionSettings) -> NewSessionSettings:
        check_directory(wanted.cwd)
        if session_id.startswith(HOSTED):
            raise NoSuchSession(f"there is no session {session_id!r}")
        return wanted

    def check(self, grant: Grant, session_id: str, session: Session) -> None:
        if session_id.startswith(HOSTED):
            raise NoSuchSession(f"there is no session {session_id!r}")

    def is_followed(self, session_id: str) -> bool:
        return False

    def note(self, grant: Grant, method: str, session_id: str, outcome: str) -> None:
        pass  # The user's own.

    async def close(self) -> None:
        """Close the sessions; a run that waits for an approval stays open in the journal."""
        if self._opened is not None:
            pool, journal = self._opened
            await pool.close()
            await journal.close()

    async def _open(self, session_id: str, wanted: NewSessionSettings | None) -> Session:
        config, overrides = self._config, self._overrides
        if wanted is not None and wanted.agent != DEFAULT_AGENT:
            config = overrides.config_of(wanted.agent) or config
        places: dict[str, Any] = {"session": session_id}
        if wanted is not None and wanted.cwd is not None:
            places["cwd"] = wanted.cwd
            overrides = overrides.including("cwd")
        request = OpenRequest(
            config=msgspec.structs.replace(config, **places),
            overrides=overrides,
            creates=wanted is not None,
            unfinished=WaitingRuns.RESUME,
        )
        return await open_session(request, self._resources)


def check_directory(cwd: str | None) -> None:
    """Raise UserError unless a session can be opened in ``cwd``."""
    if cwd is not None and not (os.path.isabs(cwd) and os.path.isdir(cwd)):
        raise UserError(f"cwd must be an absolute path of a directory that exists, not {cwd!r}")


def serve_stdio(
    config: Config,
    greeting: McpGreeting,
    streams: GreetedStreams,
    *,
    overrides: ConfigOverrides,
) -> int:
    """Serve the client in an event loop of its own. Return the exit code."""

    async def make(output: StreamWriter, resources: SharedResources) -> McpLineServer:
        sessions = OwnMcpSessions(config, overrides, resources)
        return McpLineServer(AgentService(sessions), greeting, output, sessions)

    return asyncio.run(serve_lines(make, streams))
