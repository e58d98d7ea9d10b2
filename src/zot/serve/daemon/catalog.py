"""Catalogue of stored sessions, and the methods on it: list, messages, rename, delete.

A listed session names the branch and commit of its working tree, read from git's files: no git is run.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from zot.encoding import encode
from zot.errors import DirectoryGone, NoSuchAgent, NoSuchSession, UserError
from zot.events import ApprovalRequest, QuestionRequest, status_of
from zot.file_names import FileNames
from zot.files import read_chunks
from zot.journal import queries, replay
from zot.journal.connection import Connection
from zot.journal.queries import SessionRecord
from zot.journal.recorded_sessions import SessionJournal
from zot.messages import ImageBlock, Message, ResultBlock, TranscriptBlock, show, timestamp
from zot.runtime.pool import SessionPool
from zot.serve.daemon.access import check_use
from zot.serve.daemon.client_connection import ClientConnection, Handler
from zot.serve.daemon.spending import Span, SpendingCache, added_up
from zot.session.transcripts import Endings, all_messages, current_messages, endings, past_message
from zot.store import Change, Row
from zot.wire import daemon_types
from zot.wire.daemon import Grant
from zot.wire.daemon_types import Costs, MessageEntry, Messages
from zot.wire.spelling import Spelled, Spelling, spelled

#: How long a list waits for the recovery of sessions that a dead process left.
_RECOVERY_S = 5.0
#: Sessions whose last words are remembered.
_MAX_LAST_WORDS = 10_000
#: Directories whose files are remembered, and how many files a search returns.
_MAX_LISTINGS, _MAX_FILES = 16, 50
#: Bytes encoded per turn of the loop.
_PIECE_BYTES = 256 << 10


class SessionDetails(msgspec.Struct, frozen=True):
    """The git branch in a session's directory, and the last words of its conversation."""

    branch: str
    last_words: str


class CatalogEntry(msgspec.Struct, frozen=True):
    """A listed session: its record, newest row, agent, whether any process runs it, the open approval request of a run
    in another process, dead or alive, and whether it was closed and not resumed."""

    record: SessionRecord
    last_seq: int
    agent: str
    is_running: bool = False
    pending: ApprovalRequest | None = None
    is_closed: bool = False
    details: SessionDetails | None = None


class SessionCatalog:
    """Sessions stored in a journal."""

    def __init__(self, journal: SessionJournal) -> None:
        self.journal = journal
        self._ledger = SpendingCache()
        #: Last words of sessions, each with the epoch and the row that they were read at.
        self._last_words: dict[str, tuple[tuple[int, int], str]] = {}

    async def position(self, session_id: str) -> tuple[int, int]:
        """Return the number of a session's newest row, and its epoch. Raise NoSuchSession."""

        def look(connection: Connection) -> tuple[SessionRecord, int]:
            record = queries.get(connection, session_id)
            return record, queries.last_seq(connection, record.number)

        record, last = await self.journal.reading(look)
        if not self.journal.has_lost(record, last):
            return last, record.epoch
        found = await self.journal.record(session_id, create=False)  # Rows were lost: this gives it a new epoch.
        return found.last_seq, found.epoch

    async def listed(
        self,
        *,
        query: str = "",
        cwd: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
        only: Collection[str] | None = None,
        details: bool = False,
        active: bool = False,
    ) -> list[CatalogEntry]:
        """Return sessions, newest first; with ``query``, only those with a matching message; ``only`` those ids.

        With ``active``, those that run or wait are among them even beyond the ``limit``.
        """
        found = [hit.session for hit in await self.journal.search(query)] if query else None

        def look(connection: Connection) -> list[CatalogEntry]:
            entries: list[CatalogEntry] = []
            closed = queries.closed_ids(connection)
            branches: dict[str, str] = {}
            for record in queries.listed(connection, cwd=cwd):
                if limit is not None and len(entries) >= limit:
                    if not active:
                        break
                    if record.owner is None:
                        continue
                if (found is not None and record.id not in found) or (only is not None and record.id not in only):
                    continue
                last_seq = queries.last_seq(connection, record.number)
                if details and record.cwd not in branches:
                    branches[record.cwd] = checked_out(record.cwd).branch
                entry = CatalogEntry(
                    record,
                    last_seq,
                    replay.agent_of(connection, record),
                    self._is_running(record),
                    self._pending_approval(connection, record),
                    record.id in closed,
                    SessionDetails(branches[record.cwd], self._last_words_of(connection, record, last_seq))
                    if details
                    else None,
                )
                if agent is None or entry.agent == agent:
                    entries.append(entry)
            return entries

        return await self.journal.reading(look)

    def _last_words_of(self, connection: Connection, record: SessionRecord, last_seq: int) -> str:
        at = record.epoch, last_seq
        known = self._last_words.get(record.id)
        if known is None or known[0] != at:
            if len(self._last_words) >= _MAX_LAST_WORDS:
                self._last_words.clear()
            known = self._last_words[record.id] = at, replay.last_words(connection, record.number)
        return known[1]

    async def image(self, asked: daemon_types.FindImage) -> ImageBlock | None:
        """Return an image of a conversation; None if it has no such image. Raise NoSuchSession."""
        for message in reversed(await self.messages(asked.session_id, every=True)):
            inside: list[TranscriptBlock]
            if asked.call_id is not None:
                inside = [
                    part
                    for block in message.content
                    if isinstance(block, ResultBlock) and block.call_id == asked.call_id
                    for part in block.content
                ]
            else:
                inside = [*message.content] if (message.role, message.time) == ("user", asked.time) else []
            images = [part for part in inside if isinstance(part, ImageBlock)]
            if inside:
                return images[asked.index] if asked.index < len(images) else None
        return None

    async def spent(self, span: Span, *, agent: str | None = None, only: Collection[str] | None = None) -> Costs:
        """Return the spending of all sessions, or of one agent's. Computed in a thread: there may be many.

        With ``only``, that of these sessions.
        """
        now = timestamp()
        return await self.journal.reading(lambda one: added_up(self._ledger.calls(one, span, agent, only), span, now))

    async def messages(self, session_id: str, *, every: bool = False) -> list[Message]:
        """Return a session's recorded messages; with ``every``, also those that were compacted.

        Raise NoSuchSession.
        """

        def look(connection: Connection) -> list[Message]:
            _, rows = queries.all_changes(connection, queries.get(connection, session_id).number)
            changes = [row for row in rows if isinstance(row, Change)]
            return all_messages(changes) if every else current_messages(changes)

        return await self.journal.reading(look)

    async def endings(self, session_id: str) -> Endings:
        """Return the endings of unsuccessful runs. Raise NoSuchSession."""

        def look(connection: Connection) -> list[Row]:
            return replay.failed_runs(connection, queries.get(connection, session_id).number)

        return endings(await self.journal.reading(look))

    async def delete(self, session_id: str) -> int:
        """Delete a session permanently; return its epoch. Raise NoSuchSession, SessionBusy."""
        return (await self.journal.delete(session_id)).epoch

    async def check(self) -> None:
        """Raise StoreFailed if the journal is not writable now."""
        await self.journal.check_writing()

    async def request_row(self, session_id: str, request_id: str) -> int:
        """Return the row of an approval request of the newest run; 0 if it is not recorded."""
        return await self.journal.reading(replay.request_row, session_id, request_id)

    async def last_event(self, session_id: str, upto: int) -> int:
        """Return the number of the newest event up to ``upto``; 0 if there is none. Raise NoSuchSession."""
        return await self.journal.reading(replay.last_event, session_id, upto)

    def _pending_approval(self, connection: Connection, record: SessionRecord) -> ApprovalRequest | None:
        if record.owner is None or self.journal.is_run_here(record):
            return None  # The session's own worker knows.
        return replay.open_approval(connection, record, timestamp())

    async def activity(self, session_id: str) -> tuple[bool, ApprovalRequest | None]:
        """Return whether any process runs a session, and the approval request of a run in another process, dead or
        alive. Raise NoSuchSession."""

        def look(connection: Connection) -> tuple[bool, ApprovalRequest | None]:
            record = queries.get(connection, session_id)
            return self._is_running(record), self._pending_approval(connection, record)

        return await self.journal.reading(look)

    async def open_questions(self, session_id: str) -> tuple[QuestionRequest, ...]:
        """Return the questions that a run in another process asks and that have no answer yet. Raise NoSuchSession."""

        def look(connection: Connection) -> tuple[QuestionRequest, ...]:
            record = queries.get(connection, session_id)
            return replay.open_questions(connection, record) if self._is_running(record) else ()

        return await self.journal.reading(look)

    def _is_running(self, record: SessionRecord) -> bool:
        return record.owner is not None and self.journal.is_running(record)

    async def is_interrupted(self, session_id: str) -> bool:
        """True if the newest run of a session has no end because its process died. Raise NoSuchSession."""
        record = await self.journal.find(session_id)
        return record.owner is not None and session_id in await self.journal.left_behind()


class _EncodedPage(Spelled, frozen=True):
    """A `MessagePage` whose messages were encoded one by one."""

    session_id: str
    messages: tuple[msgspec.Raw, ...]
    total: int
    start: int
    last_seq: int | daemon_types.Absent = daemon_types.ABSENT


class CatalogMethods:
    """Handlers of the methods on stored sessions."""

    def __init__(self, pool: SessionPool, catalog: SessionCatalog, is_recovered: asyncio.Event) -> None:
        self._pool = pool
        self._catalog = catalog
        self._is_recovered = is_recovered
        #: Listings of directories, the least recently used first.
        self._listings: dict[str, FileNames] = {}

    @property
    def table(self) -> Mapping[str, Handler]:
        """Handlers by method."""
        return {
            "session/list": self._list,
            "session/list-acp": self._list,
            "session/messages": self._messages,
            "session/delete": self._delete,
            "session/rename": self._rename,
            "session/git_branch": self._git_branch,
            "session/files": self._files,
            "session/image": self._image,
        }

    async def _list(self, connection: ClientConnection, asked: daemon_types.List) -> daemon_types.Sessions:
        with suppress(TimeoutError):  # Recovery shows which sessions wait for an approval.
            async with asyncio.timeout(_RECOVERY_S):
                await self._is_recovered.wait()
        entries = await self._catalog.listed(
            query=asked.query or "",
            cwd=asked.cwd,
            agent=asked.agent_alias,
            limit=asked.limit,
            only=connection.grant.sessions,
            details=asked.details,
            active=asked.active,
        )
        return daemon_types.Sessions(tuple(self._entry(entry, connection.grant) for entry in entries))

    def _entry(self, entry: CatalogEntry, grant: Grant) -> daemon_types.SessionEntry:
        record, session = entry.record, self._pool.session(entry.record.id)
        pending, busy = entry.pending, entry.is_running
        if session is not None and session.worker.busy:
            pending, busy = session.approvals.pending, True
        return daemon_types.SessionEntry(
            session_id=record.id,
            session_key=record.id,
            agent_alias=entry.agent,
            cwd=record.cwd,
            title=record.title,
            name=record.title,
            created_at=record.created,
            last_activity=record.updated,
            message_count=record.messages,
            state=status_of(pending, busy=busy),
            last_seq=entry.last_seq,
            parent_id=record.parent if record.parent and grant.sees(record.parent) else daemon_types.ABSENT,
            closed=entry.is_closed,
            **({} if entry.details is None else _detailed(entry.details, record, pending)),
        )

    async def _messages(self, connection: ClientConnection, asked: Messages) -> _EncodedPage:
        last_seq: int | daemon_types.Absent = daemon_types.ABSENT
        ended: Endings | None = None
        try:
            seq, epoch = await self._catalog.position(asked.session_id)
            await self._pool.refresh(asked.session_id, seq, epoch)
            async with self._pool.use(asked.session_id, looks=True) as session:
                before = session.before
                messages = list(session.history.transcript.messages)
                if asked.view == "past":
                    messages, last_seq = list(before.messages), before.seq
                    ended = await self._catalog.endings(asked.session_id)
                if asked.view == "full":
                    kept = await session.all_messages()
                    messages = [msgspec.structs.replace(message, shown_text=None) for message in kept]
        except (NoSuchAgent, DirectoryGone):  # Unusable, but readable.
            messages = await self._recorded(asked)
            if asked.view == "past":
                last_seq, ended = seq, await self._catalog.endings(asked.session_id)
        except NoSuchSession:
            messages = []
        stop = len(messages) if asked.before_index is None else min(asked.before_index, len(messages))
        start = 0 if asked.limit is None else max(0, stop - asked.limit)
        page = await _encoded(messages[start:stop], connection.spelling, ended)
        return _EncodedPage(asked.session_id, tuple(page), len(messages), start, last_seq)

    async def _recorded(self, asked: Messages) -> list[Message]:
        """Return the messages of a session that cannot be loaded."""
        kept = await self._catalog.messages(asked.session_id, every=asked.view == "full")
        return [msgspec.structs.replace(one, shown_text=None) for one in kept] if asked.view == "full" else kept

    async def _delete(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.Deleted:
        with suppress(NoSuchSession):  # Already deleted: nothing to do.
            await check_use(self._pool, connection, asked.session_id)
            await self._pool.let_go(asked.session_id)
            feed = connection.daemon.sessions.feed(asked.session_id)
            await feed.caught_up()
            await self._pool.let_go(asked.session_id)  # A client may have loaded it again meanwhile.
            feed.on_deleted(await self._catalog.delete(asked.session_id))
        connection.unfollow(asked.session_id)
        return daemon_types.Deleted(asked.session_id)

    async def _rename(self, connection: ClientConnection, asked: daemon_types.Rename) -> daemon_types.Renamed:
        await self._pool.check_not_closed(asked.session_id)
        await check_use(self._pool, connection, asked.session_id)
        await self._catalog.journal.rename(asked.session_id, asked.title)
        return daemon_types.Renamed(asked.session_id, (await self._catalog.journal.find(asked.session_id)).title)

    async def _git_branch(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.GitBranch:
        del connection
        record = await self._catalog.journal.find(asked.session_id)
        branch, commit = await asyncio.to_thread(checked_out, record.cwd)
        return daemon_types.GitBranch(asked.session_id, branch or msgspec.UNSET, commit or msgspec.UNSET)

    async def _files(self, connection: ClientConnection, asked: daemon_types.FindFiles) -> daemon_types.FoundFiles:
        await check_use(self._pool, connection, asked.session_id)
        cwd = (await self._catalog.journal.find(asked.session_id)).cwd
        names = self._listings[cwd] = self._listings.pop(cwd) if cwd in self._listings else FileNames(cwd)
        while len(self._listings) > _MAX_LISTINGS:
            del self._listings[next(iter(self._listings))]
        limit = min(_MAX_FILES, _MAX_FILES if asked.limit is None else asked.limit)
        return daemon_types.FoundFiles(asked.session_id, (*await asyncio.to_thread(names.find, asked.query, limit),))

    async def _image(self, connection: ClientConnection, asked: daemon_types.FindImage) -> daemon_types.FoundImage:
        del connection
        image = await self._catalog.image(asked)
        if image is None:
            raise UserError(f"session {asked.session_id!r} has no such image")
        return daemon_types.FoundImage(asked.session_id, image.mime_type, image.data)


def _detailed(details: SessionDetails, record: SessionRecord, pending: ApprovalRequest | None) -> dict[str, Any]:
    """Return the fields of an entry that only detailed lists have."""
    found: dict[str, Any] = {"cost_usd": record.totals.cost, "last_words": details.last_words}
    if details.branch:
        found["branch"] = details.branch
    if pending is not None:
        found["pending_approval"] = daemon_types.PendingApproval.of(pending, time.time())
    return found


async def _encoded(messages: Sequence[Message], spelling: Spelling, ended: Endings | None) -> list[msgspec.Raw]:
    """Return encoded messages as clients see them; with ``ended``, including details that late clients need. Yields to
    other tasks after each piece.
    """
    found: list[msgspec.Raw] = []
    size = 0
    for message in messages:
        entry = MessageEntry.of(show(message) if ended is None else past_message(message, ended))
        data = encode(spelled(spelling, entry))
        found.append(msgspec.Raw(data))
        size += len(data)
        if size >= _PIECE_BYTES:
            size = 0
            await asyncio.sleep(0)
    return found


#: Length of an abbreviated commit id.
_SHORT = 7
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MAX_PACKED_BYTES = 16 << 20
#: Placeholder in HEAD of a repository with reftables, which we cannot read.
_UNREADABLE = "refs/heads/.invalid"


class CheckedOut(NamedTuple):
    """A branch and a commit; each "" if there is none."""

    branch: str = ""
    commit: str = ""


def checked_out(directory: str) -> CheckedOut:
    """Return the branch and commit of the working tree around ``directory``; no commit before the first one.

    The repository may be hostile: only regular files are read, and only references inside it.
    """
    try:
        if (git := _git_directory(directory)) is None:
            return CheckedOut()
        head = _line(os.path.join(git, "HEAD"))
    except OSError:
        return CheckedOut()
    name = head.removeprefix("ref: ")
    if name == head:
        return CheckedOut(commit=head[:_SHORT] if _COMMIT.fullmatch(head) else "")
    if name == _UNREADABLE or not _is_reference(name):
        return CheckedOut()
    commit = _commit(git, name)
    return CheckedOut(name.removeprefix("refs/heads/"), commit[:_SHORT] if _COMMIT.fullmatch(commit) else "")


def _is_reference(name: str) -> bool:
    """True if git would accept the name of a reference, as far as that keeps it inside the repository."""
    parts = name.split("/")
    return (
        parts[0] == "refs"
        and len(parts) > 1
        and name.isprintable()
        and not any(not part or part.startswith(".") or ".." in part for part in parts)
    )


def _git_directory(directory: str) -> str | None:
    """Return the git directory of the working tree around ``directory``; None if there is none."""
    while not os.path.exists(git := os.path.join(directory, ".git")):
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above
    if os.path.isdir(git):
        return git
    return os.path.join(directory, _line(git).removeprefix("gitdir: "))  # A worktree or a submodule.


def _commit(git: str, name: str) -> str:
    """Return the commit of a reference, loose or packed; "" if there is none yet."""
    common = git
    with suppress(OSError):
        common = os.path.join(git, _line(os.path.join(git, "commondir")))  # Worktrees share their branches.
    for place in (git, common):
        with suppress(OSError):
            return _line(os.path.join(place, name))
    with suppress(OSError):
        packed = b"".join(read_chunks(os.path.join(common, "packed-refs"), max_bytes=_MAX_PACKED_BYTES))
        for line in packed.decode("utf-8", "replace").split("\n"):
            commit, _, named = line.partition(" ")
            if named == name:
                return commit
    return ""


def _line(path: str) -> str:
    """Return the first line of a regular file. Raise OSError, also for a pipe or a device, and never wait."""
    data = next(read_chunks(path), b"")
    return data[:4096].decode("utf-8", "replace").partition("\n")[0].strip()
