"""Sessions on disk for whoever only looks: also where nothing can be written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from zot.errors import StoreFailed
from zot.journal import queries
from zot.journal.queries import SessionRecord
from zot.journal.readers import Readers
from zot.journal.schema import connect_to_look, is_of_later

if TYPE_CHECKING:
    from zot.journal.search_part import Hit

T = TypeVar("T")


class Look:
    """What can be known of sessions without changing anything. Close it when you are done."""

    def __init__(self, path: str, readers: Readers) -> None:
        self.path = path
        self._readers = readers

    def is_running(self, session: SessionRecord) -> bool:
        """True if somebody runs a session, as far as we can tell: where nothing can be written, we cannot."""
        del session
        return False

    async def sessions(self, *, cwd: str | None = None) -> list[SessionRecord]:
        """Return all sessions, or those of a directory, the newest first."""
        return await self.reading(lambda connection: queries.listed(connection, cwd=cwd))

    async def newest(self, cwd: str, *, but: str) -> SessionRecord | None:
        """Return the session of a directory that was used last, of those whose id does not begin with ``but``."""
        return await self.reading(lambda connection: queries.newest(connection, cwd, but=but))

    async def find(self, session_id: str) -> SessionRecord:
        """Return what is known of a session. Raise NoSuchSession."""
        return await self.reading(lambda connection: queries.get(connection, session_id))

    async def search(self, text: str, *, limit: int = 50) -> list[Hit]:
        """Return where ``text`` was said, in any case of letters, in the newest sessions first."""
        from zot.journal.search_part import matches  # Who opens a session waits for what is loaded.

        return await self.reading(lambda connection: matches(connection, text, limit))

    async def reading(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with a connection that only reads, in another thread. Raise StoreFailed."""
        return await self._readers.run(action)

    async def close(self) -> None:
        """Let go of the file."""
        await asyncio.to_thread(self._readers.close)


def can_be_written(path: str) -> bool:
    """True if a journal can be opened for more than looking."""
    lock = f"{path}.lock"
    needed = [path, os.path.dirname(path) or ".", *([lock] if os.path.exists(lock) else [])]
    return all(os.access(file, os.W_OK) for file in needed)


async def look(path: str) -> Look:
    """Open a journal that exists, to look only; it is not salvaged. Raise StoreFailed."""
    found = Look(path, Readers(path, connect_to_look))
    try:
        if await found.reading(is_of_later):
            raise StoreFailed(f"{path} was written by a later zot: update zot")
    except BaseException:
        await found.close()
        raise
    return found
