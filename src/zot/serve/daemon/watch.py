"""Rows that other processes add to sessions which clients of this daemon follow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zot.errors import AgentError
from zot.journal.connection import Connection
from zot.journal.queries import ChangedSession, changed_since, find, last_seq, owned
from zot.messages import timestamp
from zot.serve.daemon.feed import SessionFeed

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon

log = logging.getLogger("zot")

#: Interval of checks while any session is followed.
_CHECK_S = 0.5
#: Sessions used this recently may have changed since the last check.
_RECENT_S = 4.0


class ForeignRunWatcher:
    """Polls the journal for rows that other processes add to followed sessions, and notifies their feeds."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._journal = daemon.parts.journal
        self._elsewhere: set[str] = set()
        #: Followed sessions that run elsewhere, and those of them whose process was missing at the last check.
        self._running: set[str] = set()
        self._missing: set[str] = set()
        self._unrecoverable: set[str] = set()
        #: The version of the database at the last check, by connection.
        self._versions: dict[int, int] = {}
        #: Wall-clock time of the last check, as in the sessions' records. The clock may be set meanwhile.
        self._checked = time.time()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            since, self._checked = self._checked, time.time()
            if any(connection.followed for connection in self._daemon.connections):
                try:
                    if await self._journal.reading(self._has_changed) or self._running:
                        await self._check(self._followed(), timestamp(min(since, self._checked) - _RECENT_S))
                        await self._recover_dead()
                except AgentError as problem:  # The next check may succeed.
                    log.debug("the rows of other processes cannot be read: %s", problem)

    def _followed(self) -> Mapping[str, SessionFeed]:
        """Return the feeds of followed sessions that do not run in this process."""
        pool = self._daemon.sessions.pool
        followed = {one for connection in self._daemon.connections for one in connection.followed}
        running = {one for one in followed if (session := pool.session(one)) is not None and session.worker.busy}
        return {session_id: self._daemon.sessions.feed(session_id) for session_id in followed - running}

    async def _check(self, feeds: Mapping[str, SessionFeed], since: str) -> None:
        newest = await self._journal.reading(self._newest, feeds, since)
        if newest:
            followed = self._followed()
            for session_id, (seq, epoch) in newest.items():
                feed = followed.get(session_id)  # It may run here by now.
                if feed is not None and feed is feeds[session_id]:
                    feed.set_epoch(epoch)
                    feed.on_foreign_rows(seq)

    async def _recover_dead(self) -> None:
        """Recover sessions whose process died. Needs two checks: an ending process may not have released its lease."""
        begun = await self._journal.reading(owned) if self._running else ()
        missing = {one.id for one in begun if one.id in self._running and not self._journal.is_running(one)}
        for session_id in missing & self._missing - self._unrecoverable:
            try:
                await self._daemon.sessions.pool.recover(session_id)
            except AgentError as problem:
                log.warning("cannot recover session %r, whose process has died: %s", session_id, problem)
                self._unrecoverable.add(session_id)
        self._missing = missing
        self._unrecoverable &= missing

    def _has_changed(self, connection: Connection) -> bool:
        """True if the database has changed since this connection's last check."""
        version = self._journal.version(connection)
        before, self._versions[id(connection)] = self._versions.get(id(connection)), version
        return bool(before != version)

    def _newest(
        self, connection: Connection, feeds: Mapping[str, SessionFeed], since: str
    ) -> dict[str, tuple[int, int]]:
        """Return the newest row and the epoch of the followed sessions with rows that were not sent here."""
        found = changed_since(connection, since)
        ahead = {one.id for one in found if one.id in feeds and _is_new_to(feeds[one.id], one)}
        over = self._elsewhere.difference(one.id for one in found).intersection(feeds)
        self._elsewhere = {one.id for one in found if one.is_run}
        self._running = self._elsewhere.intersection(feeds)
        sessions = (find(connection, session_id) for session_id in ahead | over)
        return {one.id: (last_seq(connection, one.number), one.epoch) for one in sessions if one is not None}


def _is_new_to(feed: SessionFeed, found: ChangedSession) -> bool:
    """True if a session has rows that were not sent here, or is a new one of the same id."""
    return found.last_seq > feed.seq or feed.epoch not in (0, found.epoch)
