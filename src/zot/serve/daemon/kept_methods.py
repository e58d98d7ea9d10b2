"""What the daemon does for methods about sessions that need not be loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from zot.encoding import encode
from zot.errors import DirectoryGone, NoSuchAgent, NoSuchSession
from zot.messages import Message, show
from zot.runtime.pool import Hub
from zot.serve.daemon.access import check_use
from zot.serve.daemon.catalog import Entry, Shelf
from zot.serve.daemon.checked_out import checked_out
from zot.serve.daemon.connection import Connection, Handler
from zot.session.transcripts import Endings, recalled
from zot.wire import daemon_types as said
from zot.wire.daemon_messages import MessageEntry, Messages
from zot.wire.spelling import Spelled, Spelling, spelled

#: How long a list waits for sessions to be seen to that a dead process left.
_MENDING_S = 5.0
#: So much is encoded before others have their turn.
_PIECE_BYTES = 256 << 10


class _EncodedPage(Spelled, frozen=True):
    """A `MessagePage` of messages that have been encoded before, each by itself."""

    session_id: str
    messages: tuple[msgspec.Raw, ...]
    total: int
    start: int
    last_seq: int | said.Absent = said.ABSENT


class KeptMethods:
    """Handlers by the name of their method."""

    def __init__(self, hub: Hub, shelf: Shelf, is_mended: asyncio.Event) -> None:
        self._hub = hub
        self._shelf = shelf
        self._is_mended = is_mended

    @property
    def table(self) -> Mapping[str, Handler]:
        """Every method, and what is done for it."""
        return {
            "session/list": self._list,
            "session/list-acp": self._list,
            "session/messages": self._messages,
            "session/delete": self._delete,
            "session/rename": self._rename,
            "session/git_branch": self._git_branch,
        }

    async def _list(self, connection: Connection, asked: said.List) -> said.Sessions:
        del connection
        with suppress(TimeoutError):  # Some may wait for a person, which is not known before.
            async with asyncio.timeout(_MENDING_S):
                await self._is_mended.wait()
        entries = await self._shelf.listed(
            query=asked.query or "", cwd=asked.cwd, agent=asked.agent_alias, limit=asked.limit
        )
        return said.Sessions(tuple(map(self._entry, entries)))

    def _entry(self, entry: Entry) -> said.SessionEntry:
        record, session = entry.record, self._hub.session(entry.record.id)
        state: said.SessionState = "idle"
        if session is not None and session.busy:
            state = "waiting_approval" if session.pending is not None else "running"
        elif entry.is_asked:
            state = "waiting_approval"
        elif entry.is_running:
            state = "running"
        return said.SessionEntry(
            session_id=record.id,
            session_key=record.id,
            agent_alias=entry.agent,
            cwd=record.cwd,
            title=record.title,
            name=record.title,
            created_at=record.created,
            last_activity=record.updated,
            message_count=record.messages,
            state=state,
            last_seq=entry.last_seq,
            parent_id=record.parent or said.ABSENT,
        )

    async def _messages(self, connection: Connection, asked: Messages) -> _EncodedPage:
        last_seq: int | said.Absent = said.ABSENT
        ended: Endings | None = None
        try:
            seq, epoch = await self._shelf.standing(asked.session_id)
            await self._hub.refresh(asked.session_id, seq, epoch)
            async with self._hub.use(asked.session_id, looks=True) as session:
                before = session.before
                messages = list(session.transcript.messages)
                if asked.view == "past":
                    messages, last_seq = list(before.messages), before.seq
                    ended = await self._shelf.endings(asked.session_id)
                if asked.view == "full":
                    kept = await session.all_messages()
                    messages = [msgspec.structs.replace(message, shown_text=None) for message in kept]
        except (NoSuchAgent, DirectoryGone):  # Nobody can use it, but it can be read.
            messages = await self._recorded(asked)
            if asked.view == "past":
                last_seq, ended = seq, await self._shelf.endings(asked.session_id)
        except NoSuchSession:
            messages = []
        stop = len(messages) if asked.before_index is None else min(asked.before_index, len(messages))
        start = 0 if asked.limit is None else max(0, stop - asked.limit)
        page = await _encoded(messages[start:stop], connection.spelling, ended)
        return _EncodedPage(asked.session_id, tuple(page), len(messages), start, last_seq)

    async def _recorded(self, asked: Messages) -> list[Message]:
        """Return the messages of a session that cannot be loaded."""
        kept = await self._shelf.messages(asked.session_id, every=asked.view == "full")
        return [msgspec.structs.replace(one, shown_text=None) for one in kept] if asked.view == "full" else kept

    async def _delete(self, connection: Connection, asked: said.OfSession) -> said.Deleted:
        with suppress(NoSuchSession):  # Then it is as it was wanted.
            await check_use(self._hub, connection, asked.session_id)
            await self._hub.let_go(asked.session_id)
            feed = connection.office.feed(asked.session_id)
            await feed.caught_up()
            await self._hub.let_go(asked.session_id)  # Somebody may have come meanwhile.
            feed.bury(await self._shelf.delete(asked.session_id))
        self._hub.unmark_closed(asked.session_id)
        connection.unfollow(asked.session_id)
        return said.Deleted(asked.session_id)

    async def _rename(self, connection: Connection, asked: said.Rename) -> said.Renamed:
        self._hub.check_not_closed(asked.session_id)
        await check_use(self._hub, connection, asked.session_id)
        await self._shelf.rename(asked.session_id, asked.title)
        return said.Renamed(asked.session_id, (await self._shelf.find(asked.session_id)).title)

    async def _git_branch(self, connection: Connection, asked: said.OfSession) -> said.GitBranch:
        del connection
        record = await self._shelf.find(asked.session_id)
        branch, commit = await asyncio.to_thread(checked_out, record.cwd)
        return said.GitBranch(asked.session_id, branch or msgspec.UNSET, commit or msgspec.UNSET)


async def _encoded(messages: Sequence[Message], spelling: Spelling, ended: Endings | None) -> list[msgspec.Raw]:
    """Return messages as clients see them, encoded; with all that those want to know who were not there, if it is given
    how turns ``ended``. If that takes a while, others go on meanwhile.
    """
    found: list[msgspec.Raw] = []
    size = 0
    for message in messages:
        entry = MessageEntry.of(show(message) if ended is None else recalled(message, ended))
        data = encode(spelled(spelling, entry))
        found.append(msgspec.Raw(data))
        size += len(data)
        if size >= _PIECE_BYTES:
            size = 0
            await asyncio.sleep(0)
    return found
