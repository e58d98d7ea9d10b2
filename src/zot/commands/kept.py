"""Which kept session one prompt belongs to: a new one, one that was named, or an earlier one."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.config import Config, journal_path
from zot.errors import ConfigError, NoSuchSession, StoreFailed, UsageError
from zot.runtime.open import HOSTED, open_recorded, open_session
from zot.ui.readable import one_line

if TYPE_CHECKING:
    from zot.session.session import Session


def take_earlier(settings: dict[str, Any]) -> str | None:
    """Take away the flags that ask for an earlier session; return its id, "" for the newest, None without them."""
    asked = [name for name in ("session", "continue", "resume", "no_session") if name in settings]
    if len(asked) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in asked[:2])
        raise UsageError(f"{first} and {second} exclude each other")
    newest = "" if settings.pop("continue", False) else None
    named: str | None = settings.pop("resume", newest)
    return named


async def open_kept(config: Config, given: Collection[str], *, own_process: bool) -> Session:
    """Return the session that ``config`` names; without a name a new one, which is kept if that is possible."""
    if config.session is not None:
        return await open_recorded(config, given, own_process=own_process)
    from zot.session.session import new_session_id

    try:
        journal_path(config)
    except ConfigError as problem:
        reason: Exception = problem
    else:
        try:
            new = msgspec.structs.replace(config, session=new_session_id())
            session = await open_recorded(new, given, own_process=own_process)
        except StoreFailed as problem:
            reason = problem
        else:
            _tell(new.session or "")
            return session
    # Nobody asked for it, so nobody must go without an answer for it.
    sys.stderr.write(f"zot: this session is not kept: {reason}\n")
    return open_session(config, own_process=own_process)


async def open_earlier(config: Config, given: Collection[str], name: str) -> Session:
    """Return the session that ``name`` means, or the newest of the directory if it is "". Raise NoSuchSession.

    The newest is never one that strangers talk to: what they said must not be gone on with by accident, without the
    policy that is theirs.
    """
    session_id = await _earlier(config, name)
    found = msgspec.structs.replace(config, session=session_id)
    session = await open_recorded(found, given, own_process=True)
    _tell(session_id)
    return session


def _tell(session_id: str) -> None:
    """Say which session it is, to a person who has not named it. Programs that want to know it name it themselves."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"zot: session {one_line(session_id, 60)}\n")


async def _earlier(config: Config, name: str) -> str:
    import asyncio

    from zot.commands.subcommands import chosen, directory
    from zot.journal.journal import Journal
    from zot.journal.schema import is_there

    path, cwd = journal_path(config), directory(config.cwd)
    nothing = NoSuchSession(f"there is no session of {cwd} to go on with; zot sessions list --all shows the others")
    if not await asyncio.to_thread(is_there, path):
        raise nothing
    journal = await Journal.open(path)
    try:
        if name:
            return (await chosen(journal, name)).id
        newest = await journal.newest(cwd, but=HOSTED)
        if newest is None:
            raise nothing
        return newest.id
    finally:
        await journal.close()
