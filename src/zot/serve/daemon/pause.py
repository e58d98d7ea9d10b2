"""Sessions on their way to rest: a turn is over, or goes on only when a person has decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from zot.events import ApprovalRequest, Done
from zot.session.history import Batch

if TYPE_CHECKING:
    from zot.runtime.pool import Hub
    from zot.serve.host.respond import Respondent
    from zot.session.session import Session


class Pause:
    """Hears one run to its end, or to a question (`history.Subscriber`): who waits must not wait for a person."""

    can_approve = False
    full = False

    def __init__(self, session: Session, reached: Callable[[], object]) -> None:
        self._reached: Callable[[], object] | None = reached
        self.leave = session.subscribe(self)

    def deliver(self, batch: Batch) -> None:
        """Take what happened."""
        if any(isinstance(event, Done | ApprovalRequest) for event in batch.events):
            self.reach()

    def reach(self) -> None:
        """It is there, in whatever way. Any number of times."""
        reached, self._reached = self._reached, None
        self.leave()
        if reached is not None:
            reached()

    async def room(self) -> None:
        """There always is."""


def behind_turn(hub: Hub, session_id: str, call: Callable[[], None], *, in_run: bool) -> None:
    """Do something when the turn that runs in a session is over, or waits for a person; at once, if none does.

    ``in_run``: a turn was shown to begin, and not to end.
    """
    session, is_ended = hub.ending(session_id), hub.is_ended(session_id)
    runs = session is not None and session.has_begun and in_run
    # One that is ended before it has begun begins all the same, if it can, so that its end is heard.
    begins = session is not None and is_ended and session.busy and not session.has_begun
    if session is None or not (runs or begins) or (session.pending is not None and not is_ended):
        call()
        return
    loop = asyncio.get_running_loop()
    pause = Pause(session, lambda: loop.call_soon(call))
    if begins:
        hub.when_ended(session_id, pause.reach)


async def wind_down(
    sessions: Callable[[], Iterable[Session]], respondent: Respondent | None, *, within_s: float
) -> None:
    """Wait until what runs has come to its end, or goes on only when a person has decided; ``within_s`` at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as waits:
            waits.create_task(_rest_all(sessions))
            if respondent is not None:
                waits.create_task(respondent.finish())


async def _rest_all(sessions: Callable[[], Iterable[Session]]) -> None:
    """Wait until all sessions have done what they accepted, but for those that wait for a person by then."""
    while running := [one for one in sessions() if one.busy and one.pending is None]:
        async with asyncio.TaskGroup() as waits:
            for session in running:
                waits.create_task(_rest(session))


async def _rest(session: Session) -> None:
    paused = asyncio.Event()
    pause = Pause(session, paused.set)
    waits = [asyncio.ensure_future(session.finish()), asyncio.ensure_future(paused.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pause.leave()
        for wait in waits:
            wait.cancel()
