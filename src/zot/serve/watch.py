"""Runs that are made elsewhere, by other processes or beside the hub: who follows a session hears of those, too."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping

from zot.errors import AgentError
from zot.journal.journal import Journal
from zot.journal.tables import find, last_seq, marked, touched
from zot.messages import timestamp
from zot.serve.feed import Feed

log = logging.getLogger("zot")

#: How often we look, while somebody follows a session.
_LOOK_S = 0.5
#: What was used so short ago may have been used since we last looked.
_RECENT_S = 4.0


class Watch:
    """Looks into the journal for rows of sessions that nobody runs here, and tells their feeds."""

    def __init__(self, journal: Journal, followed: Callable[[], Mapping[str, Feed]]) -> None:
        """``followed`` returns the feeds of sessions that somebody follows and that do not run in the hub."""
        self._journal = journal
        self._followed = followed
        self._elsewhere: set[str] = set()
        #: What each connection saw of the file when it last looked.
        self._versions: dict[int, int] = {}
        #: When we last looked, by the clock that says when sessions were used. It may be set meanwhile.
        self._looked = time.time()

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            feeds = self._followed()
            if feeds:
                try:
                    await self._look(feeds)
                except AgentError as problem:  # It may be there again the next time.
                    log.debug("what others record cannot be read: %s", problem)

    async def _look(self, feeds: Mapping[str, Feed]) -> None:
        newest = await self._journal.reading(lambda connection: self._newest(connection, feeds))
        if not newest:
            return
        followed = self._followed()
        for session_id, seq in newest.items():
            feed = followed.get(session_id)  # It may have begun here meanwhile.
            if feed is not None and feed is feeds[session_id]:
                feed.overheard(seq)

    def _newest(self, connection: sqlite3.Connection, feeds: Iterable[str]) -> dict[str, int]:
        """Return the newest row of those followed that somebody runs, or has run since we last looked."""
        since, self._looked = self._looked, time.time()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self._versions.get(id(connection)) == version:
            return {}  # Nobody has written anything since this connection last looked.
        self._versions[id(connection)] = version
        recent = touched(connection, timestamp(min(since, self._looked) - _RECENT_S))
        running = {session.id for session in marked(connection)}
        looked, self._elsewhere = self._elsewhere.union(running, recent), running
        found = (find(connection, session_id) for session_id in looked.intersection(feeds))
        return {session.id: last_seq(connection, session.number) for session in found if session is not None}
