"""Questions by the way to sessions of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zot.events import Reconfigured
from zot.runtime.pool import Hub
from zot.serve.daemon.access import used
from zot.serve.daemon.answering import Later
from zot.serve.daemon.connection import Connection, Handler
from zot.session.abortable import Abortable
from zot.wire import daemon_aside as said
from zot.wire.daemon_types import Used

if TYPE_CHECKING:
    from zot.session.session import Session


class Asides:
    """Those that are being answered. ``opening`` opens a session that has the past of another, and no tools."""

    def __init__(self, hub: Hub, opening: Callable[[Session], Session]) -> None:
        self._hub = hub
        self._opening = opening
        self._open: dict[tuple[str, str], Abortable] = {}
        self._unnamed = Abortable(_ABORTED)

    @property
    def table(self) -> Mapping[str, Handler]:
        """Every method, and what is done for it."""
        return {"session/aside": self._aside}

    def abort(self, session_id: str, name: str) -> bool:
        """End one by its name. False if there is none."""
        asked = self._open.get((session_id, name))
        if asked is not None:
            asked.abort()
        return asked is not None

    def stop(self) -> None:
        """End all of them."""
        for asked in (self._unnamed, *self._open.values()):
            asked.abort()

    async def _aside(self, connection: Connection, asked: said.Ask) -> Later:
        return Later(self._answer(connection, asked))

    async def _answer(self, connection: Connection, asked: said.Ask) -> said.Answered:
        from zot.session.side_question import ask

        place = asked.session_id, asked.prompt_id or ""
        waits = self._open.setdefault(place, Abortable(_ABORTED)) if asked.prompt_id else self._unnamed
        try:
            async with used(self._hub, connection, asked.session_id) as session:
                self._hub.check_open()
                answer = await waits.run(ask(session, lambda: self._opening(session), asked.question))
        finally:
            if not waits.is_waiting:
                self._open.pop(place, None)
            connection.office.feed(asked.session_id).mention(Reconfigured())  # It has used something.
        return said.Answered(asked.session_id, answer.text, Used.of(answer.usage))


_ABORTED = "the answer by the way was aborted"
