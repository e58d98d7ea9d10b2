"""Who may do something with a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from zot.errors import RuntimeBusy
from zot.runtime.pool import Hub
from zot.serve.daemon.connection import Connection
from zot.wire.jsonrpc import NOT_OWNED, RpcError

if TYPE_CHECKING:
    from zot.session.session import Session


@asynccontextmanager
async def used(hub: Hub, connection: Connection, session_id: str) -> AsyncIterator[Session]:
    """Have a session to do something with it. Raise RpcError if that is not for whoever is not on this machine."""
    async with hub.use(session_id) as session:
        _check(connection, session, session_id)
        yield session


async def check_use(hub: Hub, connection: Connection, session_id: str) -> None:
    """Raise RpcError where `used` does, and NoSuchSession: for what is done to a session that need not be loaded.

    Who is on this machine is let in without a look, so that also what cannot be loaded any more can be deleted.
    """
    if not connection.is_local:
        async with hub.use(session_id, looks=True) as session:
            _check(connection, session, session_id)


def check_idle(session: Session, what: str) -> None:
    """Raise RuntimeBusy, which says that something cannot be done, while a session has something to do."""
    if session.busy:
        raise RuntimeBusy(f"{what} while a prompt or compact is running; end it first with session/cancel")


def may_use(connection: Connection, session: Session) -> bool:
    """True if a client may do something with a session. One that was made here may do anything, unless its agent has
    rules of its own."""
    if connection.is_local or session.agent.guarded:
        return True
    return connection.office.has_rules(session.agent.name or "default")


def _check(connection: Connection, session: Session, session_id: str) -> None:
    if not may_use(connection, session):
        alias = session.agent.name or "default"
        raise RpcError(
            NOT_OWNED,
            f"session {session_id!r} was made on this machine and its agent has no policy: over the network"
            f" it can be looked at and its turn be ended, no more; a policy of [agents.{alias}] would change that",
        )
