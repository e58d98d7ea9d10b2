"""What a session that is asked for must be like: how it may be called, and where it may work."""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

from zot.errors import NoSuchSession, UserError
from zot.runtime.pool import Hub, Wanted
from zot.serve.daemon.access import may_use
from zot.serve.daemon.connection import Connection

#: So long may the id of a new session be.
MAX_ID = 1024


class Register(Protocol):
    """Knows which sessions there are."""

    async def standing(self, session_id: str) -> tuple[int, int]:
        """Return the number of a session's newest row, and its epoch. Raise NoSuchSession."""


async def check_name(register: Register, session_id: str) -> None:
    """Raise UserError if a new session cannot be called so. One that exists may have its name from a host."""
    if len(session_id) > MAX_ID:
        try:
            await register.standing(session_id)
        except NoSuchSession:
            raise UserError(f"the id of a new session may have {MAX_ID} characters, not {len(session_id)}") from None


async def leave_lost(hub: Hub, connection: Connection, session_id: str, wanted: Wanted) -> None:
    """Let a session be opened elsewhere if its directory is gone, and who may use it wants another. Raise UserError."""
    if wanted.cwd is None:
        return
    if not os.path.isabs(wanted.cwd) or not await asyncio.to_thread(os.path.isdir, wanted.cwd):
        raise UserError(f"{wanted.cwd}: the directory of a session must be one that is there, and absolute")
    session = hub.session(session_id)
    if session is None or session.busy or session.agent.name not in ("", wanted.agent):
        return
    if may_use(connection, session) and not await asyncio.to_thread(os.path.isdir, session.agent.cwd):
        await hub.let_go(session_id)
