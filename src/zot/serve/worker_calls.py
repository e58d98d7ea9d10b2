"""Methods of the daemon's protocol that a worker answers for clients of gateways: on commands, panels and settings.

The handlers are those of a daemon. The client is elsewhere: it follows the session at its gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from zot.errors import explained
from zot.events import AgentEvent
from zot.fleet.worker_requests import CallMethod, Outcome
from zot.runtime.pool import SessionPool
from zot.serve.daemon.catalog import SessionCatalog
from zot.serve.daemon.client_connection import AnswerThen, Deferred, Handler, SlowAnswer, as_rpc_error
from zot.serve.daemon.session_methods import SessionMethods, SideQuestions
from zot.serve.daemon.settings_methods import ExtensionMethods, SettingsMethods
from zot.wire.daemon import METHODS, Grant, read_params
from zot.wire.jsonrpc import RpcError

if TYPE_CHECKING:
    from zot.serve.daemon.client_connection import ClientConnection
    from zot.serve.daemon.daemon import DaemonParts
    from zot.serve.daemon.sessions import SessionOpener

log = logging.getLogger("zot")

#: Sends an event that is not recorded to the clients of a session.
Announce = Callable[[str, AgentEvent], None]


class _Feed:
    def __init__(self, session_id: str, announce: Announce) -> None:
        self._session_id = session_id
        self._announce = announce

    def deliver_unrecorded(self, event: AgentEvent) -> None:
        self._announce(self._session_id, event)


class ClientElsewhere:
    """A client of a gateway, as far as the handlers of `WorkerCalls` know a `ClientConnection`."""

    def __init__(self, parts: DaemonParts, asked: CallMethod, announce: Announce) -> None:
        self.parts = parts
        self.grant = Grant(asked.name, asked.roles)
        self.label = asked.label
        self.is_local = self.grant.may("operate")
        #: The newest row that the client gets before the answer.
        self.seq = 0
        self._announce = announce

    @property
    def daemon(self) -> ClientElsewhere:
        """The parts of a daemon that handlers use are here."""
        return self

    @property
    def sessions(self) -> ClientElsewhere:
        """Likewise."""
        return self

    def feed(self, session_id: str) -> _Feed:
        """Return the way to the clients of a session."""
        return _Feed(session_id, self._announce)

    def follow(self, session_id: str) -> None:
        """Do nothing: it does so at its gateway."""

    def when_sent(self, session_id: str, seq: int, call: Callable[[], None]) -> None:
        """Let the answer follow the row ``seq``."""
        self.seq = seq
        call()

    def send_turn_aborted(self, session_id: str, prompt_id: str, *, then: Callable[[], object]) -> None:
        """Answer only."""
        then()

    def send_turn_failed(
        self, session_id: str, reason: str, prompt_id: str = "", *, then: Callable[[], object] = lambda: None
    ) -> None:
        """Answer only."""
        then()


class WorkerCalls:
    """Calls methods for clients of gateways."""

    def __init__(self, parts: DaemonParts, pool: SessionPool, opener: SessionOpener) -> None:
        self._parts = parts
        side_questions = SideQuestions(pool, opener.opening_aside)
        self._handlers: Mapping[str, Handler] = {
            **SessionMethods(pool, SessionCatalog(parts.journal), side_questions).table,
            **side_questions.table,
            **SettingsMethods(pool, opener).table,
            **ExtensionMethods(pool).table,
        }

    async def call(self, asked: CallMethod, announce: Announce) -> Outcome:
        """Call a method; return its result or its error."""
        client = ClientElsewhere(self._parts, asked, announce)
        try:
            params = read_params(METHODS[asked.method], asked.params)
            answer = await self._handlers[asked.method](cast("ClientConnection", client), params)
            result = await _awaited(answer)
            if isinstance(result, RpcError):
                raise result
        except Exception as problem:  # The outermost boundary: an error fails this call, not the worker.
            error = as_rpc_error(explained(problem, log, asked.method))
            return Outcome(error.message, code=error.code, seq=client.seq)
        return Outcome(result=msgspec.Raw(msgspec.json.encode(result)), seq=client.seq)


async def _awaited(answer: Any) -> Any:
    """Return the result of a handler, or an RpcError. Its follow-up work is the gateway's."""
    if isinstance(answer, SlowAnswer):
        answer = await answer.work
    if isinstance(answer, Deferred):
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.then(outcome.set_result)
        return await outcome
    return answer.result if isinstance(answer, AnswerThen) else answer
