"""Access to sessions: which client may use one, and which ids and directories are valid."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from zot.errors import NoSuchSession, RuntimeBusy, UserError
from zot.runtime.pool import NewSessionSettings, SessionPool
from zot.serve.daemon.client_connection import ClientConnection
from zot.wire.jsonrpc import NOT_OWNED, RpcError

if TYPE_CHECKING:
    from zot.serve.daemon.catalog import SessionCatalog
    from zot.serve.daemon.daemon import Daemon
    from zot.session.session import Session

#: Longest id of a new session.
MAX_ID = 1024


@asynccontextmanager
async def use_session(pool: SessionPool, connection: ClientConnection, session_id: str) -> AsyncIterator[Session]:
    """Use a session for a change. Raise RpcError if a remote client may only look at it."""
    async with pool.use(session_id) as session:
        _check(connection, session, session_id)
        yield session


async def check_use(pool: SessionPool, connection: ClientConnection, session_id: str) -> None:
    """Raise RpcError where `use_session` does; NoSuchSession. For changes to a session that need not be loaded.

    Local clients pass unchecked, so they can delete a session that cannot be loaded any more.
    """
    if not connection.is_local:
        async with pool.use(session_id, looks=True) as session:
            _check(connection, session, session_id)


def check_idle(session: Session, what: str) -> None:
    """Raise RuntimeBusy, with ``what`` as the beginning of its message, while a session is busy."""
    if session.worker.busy:
        raise RuntimeBusy(f"{what} while a prompt or compact is running; end it first with session/cancel")


def check_approval(connection: ClientConnection, prompted_by: Collection[str]) -> None:
    """Raise RpcError if a client would allow a call, or answer for it, of a run that its own token prompted or steered.

    Refusing is always possible. The role `self_approve` lifts this.
    """
    grant = connection.grant
    if grant.name in prompted_by and not grant.may("self_approve"):
        raise RpcError(
            NOT_OWNED,
            f"the token {grant.name!r} prompted this run and cannot approve its calls: another"
            " token, a local client, or a token with the role 'self_approve' can",
        )


def may_use(connection: ClientConnection, session: Session) -> bool:
    """True if a client may change a session. Tools of an unguarded session may do anything, so remote clients may
    use it only if its agent has a policy."""
    return connection.is_local or _may_use_remotely(connection.daemon, session)


def _may_use_remotely(daemon: Daemon, session: Session) -> bool:
    return session.agent.guarded or daemon.parts.has_rules(session.agent.name or "default")


def _check(connection: ClientConnection, session: Session, session_id: str) -> None:
    if not connection.is_local:
        check_remote_use(connection.daemon, session, session_id)


def check_remote_use(daemon: Daemon, session: Session, session_id: str) -> None:
    """Raise RpcError if clients over the network may only look at a session."""
    if not _may_use_remotely(daemon, session):
        alias = session.agent.name or "default"
        raise RpcError(
            NOT_OWNED,
            f"session {session_id!r} was created on this machine and its agent has no policy: network clients can only"
            f" view it and cancel its turn; to allow more, set a policy in [agents.{alias}]",
        )


async def check_name(catalog: SessionCatalog, session_id: str) -> None:
    """Raise UserError if the id is too long for a new session. An existing one may have a longer id from a host."""
    if len(session_id) > MAX_ID:
        try:
            await catalog.position(session_id)
        except NoSuchSession:
            raise UserError(f"the id of a new session may have {MAX_ID} characters, not {len(session_id)}") from None


async def evict_if_directory_gone(
    pool: SessionPool, connection: ClientConnection, session_id: str, wanted: NewSessionSettings
) -> None:
    """Evict an idle session whose directory is gone if an allowed client wants another directory. Raise UserError."""
    if wanted.cwd is None:
        return
    if not os.path.isabs(wanted.cwd) or not await asyncio.to_thread(os.path.isdir, wanted.cwd):
        raise UserError(f"{wanted.cwd}: the directory of a session must exist and be absolute")
    session = pool.session(session_id)
    if session is None or session.worker.busy or session.agent.name not in ("", wanted.agent):
        return
    if may_use(connection, session) and not await asyncio.to_thread(os.path.isdir, session.agent.cwd):
        await pool.let_go(session_id)
