"""Runs that another process makes in a session that is open here, delivered to local subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from zot.errors import AgentError, UserError
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    ConversationReplaced,
    Done,
    ExtNotify,
    ExtWaiting,
    PanelClosed,
    PanelOpened,
    PanelRendered,
)
from zot.session.history import Batch
from zot.session.session import Session
from zot.store import Change, Row, Spliced

log = logging.getLogger("zot")

#: How often we look, and after how many looks without anything new somebody may have died.
_LOOK_S = 0.5
_PATIENT_LOOKS = 6
_AT_ONCE = 5000
#: What concerns nobody but who sits at the other process.
_THEIRS = ApprovalRequest | ApprovalAnswer | ExtWaiting | PanelOpened | PanelRendered | PanelClosed


class Overhearing:
    """Looks for rows of others while nothing runs here, and gives their events to ``tell``."""

    def __init__(self, session: Session, tell: Callable[[Batch], None], begun: Sequence[tuple[int, Row]] = ()) -> None:
        """``begun`` has what is known of a run that goes on already: it is told first."""
        self._session = session
        self._tell = tell
        #: Up to which row of others all was told.
        self._told = session.last_seq
        #: True while somebody else is at work, as far as we know.
        self.is_elsewhere = False
        self._asks = False
        self._quiet = 0
        self._learning = False
        session.overhear(self._missed)
        if begun:
            self._told = begun[-1][0]
            self._hear([row for _, row in begun])
        self._task = asyncio.create_task(self._look_on(), name="zot overhearing")

    async def stop(self) -> None:
        """Look no more."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def abort(self) -> None:
        """End what somebody else began and cannot end any more. Raise UserError if they can."""
        await self._look(impatient=True)
        if self.is_elsewhere:
            raise UserError("another process is at work in this session; abort it there")

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except AgentError as problem:  # It may be there again the next time.
                log.debug("what others record cannot be read: %s", problem)

    async def _look(self, *, impatient: bool = False) -> None:
        """Tell what is new. An end is told when the session has learnt of it, so that it can be gone on with."""
        if self._session.busy:
            return
        told = self._told = max(self._told, self._session.last_seq)
        rows = await self._session.record.read(told, _AT_ONCE)
        self._quiet = 0 if rows else self._quiet + 1
        over = any(isinstance(row, Done | Spliced) for _, row in rows)
        dead = self.is_elsewhere and (impatient or (self._quiet >= _PATIENT_LOOKS and not self._asks))
        if over or dead:
            await self._learn()
            if over and rows[-1][0] > self._session.last_seq:
                return  # They have not let go yet.
            rows = await self._session.record.read(told, _AT_ONCE)
        if rows and not self._session.busy:
            self._told = max(self._told, rows[-1][0])
            self._hear([row for _, row in rows])

    async def _learn(self) -> None:
        """Let the session know what others wrote, and end what they left without an end, unless they are at work."""
        self._learning, self._quiet = True, 0
        try:
            await self._session.keep_choice()
        finally:
            self._learning = False

    def _hear(self, rows: Sequence[Row]) -> None:
        events = [event for row in rows if (event := _event(row)) is not None]
        heard = [event for event in events if not isinstance(event, _THEIRS)]
        if not heard and any(isinstance(row, Spliced) for row in rows):
            heard = [ConversationReplaced(len(self._session.transcript))]
        elif heard and not isinstance(heard[-1], ConversationReplaced) and not self.is_elsewhere:
            self._say("another process is at work in this session; this is what it does")
        self._asks = any(isinstance(event, ApprovalRequest) for event in events[-1:]) or (self._asks and not heard)
        if self._asks:
            self._say("it waits there for somebody to decide about a call")
        if heard:
            self.is_elsewhere = not isinstance(heard[-1], Done | ConversationReplaced)
            self._tell(Batch(0, 0, heard))

    def _missed(self, upto: int) -> None:
        """A run begins here, and there was more than we have told."""
        if upto > self._told and not self._learning:
            self._told = upto
            self._say("another process has just said something in this session; open it again to see that, too")

    def _say(self, message: str) -> None:
        notice: list[AgentEvent] = [ExtNotify("zot", "info", message)]
        self._tell(Batch(0, 0, notice))


def _event(row: Row) -> AgentEvent | None:
    """Return what those who follow hear of a row; None if nothing. That all was forgotten is no event on record."""
    if isinstance(row, Spliced) and row.is_clearing:
        return ConversationReplaced(0)
    return None if isinstance(row, Change) else row


async def left_open(session: Session) -> Sequence[tuple[int, Row]]:
    """Return what is on record of the run that another process has begun in a session and not ended, if one has."""
    if session.busy:
        return ()
    rows = await session.record.newest()
    events = [row for _, row in rows if not isinstance(row, Change)]
    return () if not events or any(isinstance(event, Done) for event in events) else rows
