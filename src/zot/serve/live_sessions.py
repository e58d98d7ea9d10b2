"""Panels and notices of a worker's sessions, written for the clients at gateways (`fleet.live`)."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from zot.errors import StoreFailed
from zot.events import AgentEvent, ExtNotify, ExtWaiting, PanelOpened, Reconfigured
from zot.fleet import live
from zot.fleet.live import Notice, Shown
from zot.journal.session_store import SessionStore
from zot.runtime.pool import Channel
from zot.session.history import Batch

if TYPE_CHECKING:
    from zot.journal.postgres.journal import PostgresJournal
    from zot.session.session import Session

#: Changes closer to each other than this are written together.
_APART_S = 0.03
#: Limits of what a session shows: notices, how long each is kept for gateways, and the characters of a panel.
_MAX_NOTICES, _NOTICE_S = 32, 5.0
_MAX_PANEL = 128 << 10


class _Live:
    """One session: its panels, and its newest notices with the time of each."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.panels = session.agent.extensions.panels
        self.notices: deque[tuple[float, Notice]] = deque(maxlen=_MAX_NOTICES)
        self.is_written = False


class LiveSessions:
    """Writes what sessions show, coalesced: redraws cost one row each 30 ms, and no row of the journal."""

    def __init__(self, journal: PostgresJournal) -> None:
        self._journal = journal
        self._worker = os.urandom(8).hex()
        self._sessions: dict[str, _Live] = {}
        self._changed: set[str] = set()
        #: Rows of sessions that were unloaded.
        self._left: set[int] = set()
        self._noticed = 0
        self._wake = asyncio.Event()

    @property
    def showing(self) -> list[int]:
        """The sessions, by number, whose extensions show something here."""
        return [one.number for one in self._sessions.values() if one.is_written]

    def opened(self, session_id: str, session: Session) -> None:
        """Show a session that was loaded."""
        if isinstance(session.store, SessionStore):
            self._sessions[session_id] = _Live(session, session.store.number)

    def closed(self, session_id: str) -> None:
        """Show nothing of a session any more: it was unloaded."""
        one = self._sessions.pop(session_id, None)
        if one is not None and one.is_written:
            self._left.add(one.number)
            self._wake.set()

    def note(self, session_id: str, events: Sequence[AgentEvent]) -> None:
        """Take note of events that are not recorded."""
        if (one := self._sessions.get(session_id)) is not None:
            for event in events:
                if isinstance(event, ExtNotify | ExtWaiting | Reconfigured):
                    self._noticed += 1
                    notice = Notice(self._noticed, one.session.store.last_seq, event)
                    one.notices.append((time.monotonic(), notice))
            self._changed.add(session_id)
            self._wake.set()

    async def run(self, displaced: Callable[[str], None]) -> None:
        """Write until cancelled. ``displaced`` is called with a session that another worker runs now."""
        renewed = time.monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._journal.lease_s / 3):
                    await self._wake.wait()
                    await asyncio.sleep(_APART_S)
            self._wake.clear()
            with suppress(StoreFailed):  # The next round may succeed.
                await self._write()
                if time.monotonic() - renewed >= self._journal.lease_s / 3:
                    renewed = time.monotonic()
                    await self._renew(displaced)

    async def _write(self) -> None:
        changed, self._changed = self._changed, set()
        left, self._left = self._left, set()
        shown = dict.fromkeys(left, Shown())
        written = {one: self._sessions[one] for one in changed if one in self._sessions}
        shown |= {one.number: found for one in written.values() if (found := _shown(one)) != Shown() or one.is_written}
        for one in written.values():
            one.is_written = shown.get(one.number, Shown()) != Shown()
        if shown:
            try:
                await self._journal.writing(live.show, self._worker, shown, self._journal.lease_s)
            except BaseException:
                self._changed |= written.keys()
                self._left |= left
                raise

    async def _renew(self, displaced: Callable[[str], None]) -> None:
        if not (showing := {one.number: session_id for session_id, one in self._sessions.items() if one.is_written}):
            return
        newest = await self._journal.writing(live.renew, self._worker, [*showing], self._journal.lease_s)
        for number, session_id in showing.items():
            if (one := self._sessions.get(session_id)) is None:
                continue
            if newest.get(number, -1) > one.session.store.last_seq or number not in newest:
                displaced(session_id)
            if one.notices:  # They may be old by now.
                self._changed.add(session_id)

    async def close(self) -> None:
        """Delete all rows."""
        for session_id in [*self._sessions]:
            self.closed(session_id)
        with suppress(StoreFailed):
            await self._write()


def _shown(one: _Live) -> Shown:
    before = time.monotonic() - _NOTICE_S
    while one.notices and one.notices[0][0] < before:
        one.notices.popleft()
    panels = tuple(_bounded(panel) for panel in one.panels.shown if isinstance(panel, PanelOpened))
    return Shown(panels, tuple(notice for _, notice in one.notices))


def _bounded(panel: PanelOpened) -> PanelOpened:
    """Return a panel with as many lines as fit."""
    sizes = accumulate(map(len, panel.lines))
    kept = sum(size <= _MAX_PANEL for size in sizes)
    return panel if kept == len(panel.lines) else msgspec.structs.replace(panel, lines=panel.lines[:kept])


class ClientsElsewhere(Channel):
    """The clients of a worker's session: they follow it at gateways, and can answer there."""

    can_approve = True
    is_followed = False

    def __init__(self, session_id: str, shown: LiveSessions) -> None:
        self._session_id = session_id
        self._shown = shown
        #: Whether one of them answers questions of tools.
        self.answers = False

    @property
    def can_answer(self) -> bool:
        """True if a client answers questions."""
        return self.answers

    def opened(self, session: Session) -> None:
        """Show the session."""
        self._shown.opened(self._session_id, session)

    def on_foreign_rows(self, upto: int) -> None:
        """Do nothing: gateways read them."""

    def closed(self) -> None:
        """Show it no more."""
        self._shown.closed(self._session_id)

    def deliver(self, batch: Batch) -> None:
        """Show unrecorded events: gateways read the others from the journal."""
        if not batch.seq:
            self._shown.note(self._session_id, batch.events)
