"""Watch for runs that other processes make in followed sessions."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping

from zot.errors import AgentError
from zot.journal.journal import Journal
from zot.journal.queries import Stirred, find, last_seq, marked, stirred
from zot.messages import timestamp
from zot.serve.daemon.feed import Feed

log = logging.getLogger("zot")

#: How often we look, while somebody follows a session.
_LOOK_S = 0.5
#: What was used so short ago may have been used since we last looked.
_RECENT_S = 4.0


class Watch:
    """Looks into the journal for rows of sessions that nobody runs here, and tells their feeds."""

    def __init__(
        self,
        journal: Journal,
        followed: Callable[[], Mapping[str, Feed]],
        *,
        is_any: Callable[[], bool],
        take_up: Callable[[str], Awaitable[None]],
    ) -> None:
        """``followed`` returns the feeds of sessions that somebody follows and that do not run in the hub; ``is_any``
        tells if somebody follows any. ``take_up`` sees to one whose process has died while it ran."""
        self._journal = journal
        self._followed = followed
        self._is_any = is_any
        self._take_up = take_up
        self._elsewhere: set[str] = set()
        #: Those followed that run elsewhere, as far as we know, and those whose process was not there the last time.
        self._running: set[str] = set()
        self._missing: set[str] = set()
        self._hopeless: set[str] = set()
        #: What each connection saw of the file when it last looked.
        self._versions: dict[int, int] = {}
        #: When we last looked, by the clock that says when sessions were used. It may be set meanwhile.
        self._looked = time.time()

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            since, self._looked = self._looked, time.time()
            if self._is_any():
                try:
                    if await self._journal.reading(self._is_news) or self._running:
                        await self._look(self._followed(), timestamp(min(since, self._looked) - _RECENT_S))
                        await self._see_to_left()
                except AgentError as problem:  # It may be there again the next time.
                    log.debug("what others record cannot be read: %s", problem)

    async def _look(self, feeds: Mapping[str, Feed], since: str) -> None:
        newest = await self._journal.reading(lambda connection: self._newest(connection, feeds, since))
        if newest:
            followed = self._followed()
            for session_id, (seq, epoch) in newest.items():
                feed = followed.get(session_id)  # It may have begun here meanwhile.
                if feed is not None and feed is feeds[session_id]:
                    feed.meet(epoch)
                    feed.overheard(seq)

    async def _see_to_left(self) -> None:
        """Take up those whose process has died; it takes two looks, for whoever has just ended may not have said so."""
        begun = await self._journal.reading(marked) if self._running else ()
        missing = {one.id for one in begun if one.id in self._running and not self._journal.is_running(one)}
        for session_id in missing & self._missing - self._hopeless:
            try:
                await self._take_up(session_id)
            except AgentError as problem:
                log.warning("session %r, whose process has died, could not be seen to: %s", session_id, problem)
                self._hopeless.add(session_id)
        self._missing = missing
        self._hopeless &= missing

    def _is_news(self, connection: sqlite3.Connection) -> bool:
        """True unless nobody has written anything since this connection last looked."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        before, self._versions[id(connection)] = self._versions.get(id(connection)), version
        return bool(before != version)

    def _newest(
        self, connection: sqlite3.Connection, feeds: Mapping[str, Feed], since: str
    ) -> dict[str, tuple[int, int]]:
        """Return the newest row, and the epoch, of those followed of which there is something nobody was shown here."""
        found = stirred(connection, since)
        ahead = {one.id for one in found if one.id in feeds and _is_news_to(feeds[one.id], one)}
        over = self._elsewhere.difference(one.id for one in found).intersection(feeds)
        self._elsewhere = {one.id for one in found if one.is_run}
        self._running = self._elsewhere.intersection(feeds)
        sessions = (find(connection, session_id) for session_id in ahead | over)
        return {one.id: (last_seq(connection, one.number), one.epoch) for one in sessions if one is not None}


def _is_news_to(feed: Feed, found: Stirred) -> bool:
    """True if nobody was shown all of a session here: it has more rows, or is another one of that name."""
    return found.last_seq > feed.seq or feed.epoch not in (0, found.epoch)
