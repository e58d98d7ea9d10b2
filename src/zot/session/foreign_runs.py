"""Runs that another process makes in a session open here, delivered to local subscribers."""

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
    QuestionAnswer,
    QuestionRequest,
)
from zot.session.history import Batch
from zot.session.recovery import WaitingRuns
from zot.session.session import Session
from zot.store import Change, MessagesReplaced, Row

log = logging.getLogger("zot")

#: Poll interval, and the number of polls without new rows after which the other process may be dead.
_LOOK_S = 0.5
_PATIENT_POLLS = 6
_MAX_ROWS = 5000
#: Events that concern only the clients of the other process.
_FOREIGN_ONLY = (
    ApprovalRequest
    | ApprovalAnswer
    | QuestionRequest
    | QuestionAnswer
    | ExtWaiting
    | PanelOpened
    | PanelRendered
    | PanelClosed
)


class ForeignRuns:
    """Poll for rows of other processes while nothing runs here, and pass their events to ``deliver``."""

    def __init__(
        self, session: Session, deliver: Callable[[Batch], None], begun: Sequence[tuple[int, Row]] = ()
    ) -> None:
        """``begun`` holds the recorded rows of a run already in progress: they are delivered first."""
        self._session = session
        self._deliver = deliver
        #: The newest foreign row that was delivered.
        self._delivered = session.store.last_seq
        #: True while another process runs the session, as far as we know.
        self.is_elsewhere = False
        self._waits_for_approval = False
        self._idle_polls = 0
        self._is_loading = False
        session.history.on_foreign_rows = self._on_rows
        if begun:
            self._delivered = begun[-1][0]
            self._deliver_rows([row for _, row in begun])
        self._task = asyncio.create_task(self._poll_forever(), name="zot foreign runs")

    async def stop(self) -> None:
        """Stop polling."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def abort(self) -> None:
        """End a run whose process died. Raise UserError if that process still runs it."""
        await self._poll(impatient=True)
        if self.is_elsewhere:
            raise UserError("another process is running this session; abort it there")

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._poll()
            except AgentError as problem:  # The next poll may succeed.
                log.debug("foreign rows cannot be read: %s", problem)

    async def _poll(self, *, impatient: bool = False) -> None:
        """Deliver new rows. The end of a run is delivered only after the session has loaded it, so that a prompt may
        follow."""
        if self._session.worker.busy:
            return
        delivered = self._delivered = max(self._delivered, self._session.store.last_seq)
        rows = await self._session.store.read(delivered, _MAX_ROWS)
        self._idle_polls = 0 if rows else self._idle_polls + 1
        over = any(isinstance(row, Done | MessagesReplaced) for _, row in rows)
        dead = self.is_elsewhere and (
            impatient or (self._idle_polls >= _PATIENT_POLLS and not self._waits_for_approval)
        )
        if over or dead:
            await self._load()
            if over and rows[-1][0] > self._session.store.last_seq:
                return  # The other process still holds the lease.
            rows = await self._session.store.read(delivered, _MAX_ROWS)
        if rows and not self._session.worker.busy:
            self._delivered = max(self._delivered, rows[-1][0])
            self._deliver_rows([row for _, row in rows])

    async def _load(self) -> None:
        """Load foreign rows into the session and end a run that a dead process left open."""
        self._is_loading, self._idle_polls = True, 0
        try:
            await self._session.worker.recover(WaitingRuns.END)
        finally:
            self._is_loading = False

    def _deliver_rows(self, rows: Sequence[Row]) -> None:
        events = [event for row in rows if (event := _event(row)) is not None]
        visible = [event for event in events if not isinstance(event, _FOREIGN_ONLY)]
        if not visible and any(isinstance(row, MessagesReplaced) for row in rows):
            visible = [ConversationReplaced(len(self._session.history.transcript))]
        elif visible and not isinstance(visible[-1], ConversationReplaced) and not self.is_elsewhere:
            self._notify("another process is running this session; this is what it does")
        self._waits_for_approval = any(isinstance(event, ApprovalRequest) for event in events[-1:]) or (
            self._waits_for_approval and not visible
        )
        if self._waits_for_approval:
            self._notify("it waits there for a person to approve a call")
        if visible:
            self.is_elsewhere = not isinstance(visible[-1], Done | ConversationReplaced)
            self._deliver(Batch(0, 0, visible))

    def _on_rows(self, upto: int) -> None:
        """Report rows up to ``upto`` that were not delivered before a run began here."""
        if upto > self._delivered and not self._is_loading:
            self._delivered = upto
            self._notify("another process has added to this session; open it again to see it")

    def _notify(self, message: str) -> None:
        notice: list[AgentEvent] = [ExtNotify("zot", "info", message)]
        self._deliver(Batch(0, 0, notice))


def _event(row: Row) -> AgentEvent | None:
    """Return the event that subscribers get for a row, if any. Clearing a conversation records no event of its own."""
    if isinstance(row, MessagesReplaced) and row.is_clearing:
        return ConversationReplaced(0)
    return None if isinstance(row, Change) else row


async def open_foreign_run(session: Session) -> Sequence[tuple[int, Row]]:
    """Return the rows of a run that another process began and has not ended; empty if there is none."""
    if session.worker.busy:
        return ()
    rows = await session.store.newest()
    events = [row for _, row in rows if not isinstance(row, Change)]
    return () if not events or any(isinstance(event, Done) for event in events) else rows
