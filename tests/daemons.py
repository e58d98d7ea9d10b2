"""Daemons for tests of their clients: one in this process, whose connections can be cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from zot.agents import Agents
from zot.client import Client
from zot.endpoint import Place, locate
from zot.establishment import Establishment
from zot.events import AgentEvent
from zot.journal.journal import Journal
from zot.premises import Premises
from zot.serve.audit import Audit
from zot.serve.claim import claim_endpoint
from zot.serve.daemon import Daemon, listen
from zot.serve.log_file import LogFile
from zot.serve.shelf import RecordedPast


class InProcess:
    """A daemon with lab, in this event loop."""

    def __init__(self, home: Path, **flags: Any) -> None:
        self.home = home
        self._flags = {"provider": "lab", **flags}
        self.place: Place = locate({"ZOT_HOME": str(home)})
        self.daemon: Daemon

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        agents = Agents.load(str(self.home))
        self._claim = claim_endpoint(self.place.socket)
        self._journal = await Journal.open(self.home / "journal.db")
        self._premises = Premises(own_process=False)
        self._audit = Audit(LogFile(os.path.join(self.place.logs, "audit.log")), soon=lambda call: call())
        flags = {"journal": str(self.home / "journal.db"), **self._flags}
        parts = Establishment(
            self.place, agents, journal=self._journal, premises=self._premises, audit=self._audit, flags=flags
        )
        self.daemon = Daemon(parts)
        self._stop_listening = await listen(self.daemon, self._claim.listener)
        await self.daemon.mend()

    async def stop(self, *, grace_s: float = 0.0) -> None:
        """Stop it, as a signal would."""
        self.daemon.stop(grace_s=grace_s)
        self._stop_listening()
        await self.daemon.close()
        await self._premises.close()
        await self._journal.close()
        self._audit.close()
        self._claim.release()

    def client(self, **more: Any) -> Client:
        return Client.connect(socket=self.place.socket, **more)

    def cut(self) -> None:
        """Break every connection."""
        for connection in self.daemon.connections:
            connection.wire.cut("the test wants it")

    async def recorded(self, session_id: str) -> list[tuple[int, AgentEvent]]:
        """Return every event that is on record, with its number."""
        return [*await RecordedPast(self._journal, session_id).events_after(0, 1_000_000)]
