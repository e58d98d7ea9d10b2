"""Recorded sessions, whatever the database: a file of SQLite, or PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from zot.errors import StoreFailed
from zot.journal import queries
from zot.journal.answers import Clock, DatabaseClock
from zot.journal.connection import Connection
from zot.journal.queries import SessionRecord
from zot.journal.session_store import SessionStore, StoredPast, busy
from zot.journal.writer_thread import WriterThread
from zot.messages import timestamp

if TYPE_CHECKING:
    from zot.journal.queries import Hit

T = TypeVar("T")
P = ParamSpec("P")


class SessionReader(ABC):
    """Read access to recorded sessions. Close it after use."""

    def __init__(self, path: str) -> None:
        #: The file, or the address of the database without its password.
        self.path = path

    @abstractmethod
    async def reading(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``query(connection, *args, **kwargs)``, in another thread and read-only. Raise StoreFailed."""

    @abstractmethod
    def is_running(self, session: SessionRecord) -> bool:
        """True if a process runs a session, here or elsewhere."""

    @abstractmethod
    async def close(self) -> None:
        """Close the file or the connections."""

    async def sessions(self, *, cwd: str | None = None) -> list[SessionRecord]:
        """Return all sessions, or those of a directory, the newest first."""
        return await self.reading(queries.listed, cwd=cwd)

    async def newest(self, cwd: str, *, but: str) -> SessionRecord | None:
        """Return the last used session of a directory whose id does not begin with ``but``."""
        return await self.reading(queries.newest, cwd, but=but)

    async def find(self, session_id: str) -> SessionRecord:
        """Return a session's record. Raise NoSuchSession."""
        return await self.reading(queries.get, session_id)

    async def search(self, text: str, *, limit: int = 50) -> list[Hit]:
        """Return the messages that contain ``text``, ignoring case, newest sessions first."""
        return await self.reading(queries.matches, text, limit)


class SessionJournal(SessionReader):
    """Recorded sessions that can be written. Blocking work is done in other threads."""

    writer: WriterThread
    #: The clock by which stored answers age.
    clock: Clock | DatabaseClock

    def __init__(self, path: str) -> None:
        super().__init__(path)
        #: Descriptions of losses when a damaged file was replaced, oldest first.
        self.notices: list[str] = []
        self._when_failed: list[Callable[[StoreFailed], None]] = []

    @abstractmethod
    async def writing(self, action: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``action(connection, *args, **kwargs)``, in a transaction after everything queued before.

        It runs in the writer's thread and completes even if the caller is cancelled.
        """

    @abstractmethod
    async def writing_durably(
        self, action: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do as `writing` does; the result survives a loss of power."""

    @abstractmethod
    async def record(self, session_id: str, *, cwd: str = "", create: bool = True) -> SessionStore:
        """Return the record of a session, creating it if ``create``; else raise NoSuchSession if there is none."""

    async def discard(self, record: SessionStore) -> None:
        """Delete a session that this record created, unless it has been used since, where the journal can do so."""

    @abstractmethod
    async def resume(self, session_id: str, *, cwd: str = "", create: bool = True) -> tuple[SessionStore, StoredPast]:
        """Return the record of a session and its past."""

    @abstractmethod
    def version(self, connection: Connection) -> int:
        """Return a number that changes when another connection may have written."""

    @abstractmethod
    async def left_behind(self) -> list[str]:
        """Return the sessions whose newest run has no end because its process crashed or parked it."""

    @abstractmethod
    def is_run_here(self, session: SessionRecord) -> bool:
        """True if this process runs a session."""

    @abstractmethod
    def has_lost(self, session: SessionRecord, last: int) -> bool:
        """True if an idle session ends with row ``last``, but more is known to have been stored."""

    @abstractmethod
    async def delete(self, session_id: str) -> SessionRecord:
        """Delete a session for good; return its record. Raise NoSuchSession, SessionBusy while it runs."""

    @abstractmethod
    async def collect(self) -> int:
        """Delete unreferenced blobs and free space; return how many blobs were deleted."""

    @abstractmethod
    async def check_writing(self) -> None:
        """Raise StoreFailed if writing fails now."""

    def suspect(self, problem: BaseException) -> None:
        """Take note of a ``problem`` that may be damage."""

    def when_failed(self, call: Callable[[StoreFailed], None]) -> None:
        """Call ``call``, in another thread, when the writer has failed for good."""
        self._when_failed.append(call)

    def _fail(self, problem: StoreFailed) -> None:
        for call in self._when_failed:
            call(problem)

    async def check_elsewhere(self, session_id: str) -> None:
        """Raise SessionBusy, with its owner, if another process runs a session; NoSuchSession."""
        session = await self.find(session_id)
        if session.owner is not None and self.is_running(session) and not self.is_run_here(session):
            raise busy(session)

    async def rename(self, session_id: str, title: str) -> None:
        """Give a session a title. Raise NoSuchSession."""
        await self.writing(queries.rename, session_id, title)

    async def is_closed(self, session_id: str) -> bool:
        """True if a session is marked as closed."""
        return await self.reading(queries.is_closed, session_id)

    async def mark_closed(self, session_id: str, *, closed: bool) -> None:
        """Mark a session as closed, or remove the mark. Does nothing if there is no such session."""
        now = timestamp()
        if closed:
            await self.writing_durably(queries.mark_closed, session_id, now)
        else:
            await self.writing_durably(queries.unmark_closed, session_id)

    async def fork(self, session_id: str, new_id: str, *, at: int) -> SessionRecord:
        """Make ``new_id`` from the rows of a session up to number ``at``. Raise NoSuchSession, UserError."""
        return await self.writing(queries.fork, session_id, at, new_id)
