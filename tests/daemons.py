"""A daemon in the test's own event loop, on a real socket, and clients that talk to it line by line."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, chdir
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeAlias

from harness import at_home
from zot.config.configured_agents import AgentConfigs
from zot.config.paths import DaemonPaths
from zot.journal import replay
from zot.journal.journal import Journal
from zot.journal.opening import open_journal
from zot.journal.recorded_sessions import SessionJournal
from zot.runtime.shared import SharedResources
from zot.serve.daemon.audit import Audit
from zot.serve.daemon.claim import Claim, claim_endpoint
from zot.serve.daemon.daemon import Daemon, DaemonParts
from zot.serve.daemon.logs import LogFile
from zot.serve.daemon.sockets import listen
from zot.serve.workspaces import Workspaces
from zot.wire import jsonrpc
from zot.wire.daemon import METHODS, Method

Frame: TypeAlias = dict[str, Any]

#: How long anything may take before a test fails. Never how long it does take.
PATIENCE_S = 60.0
#: Errors that every method may return.
EVERYWHERE = {
    jsonrpc.INVALID_REQUEST,
    jsonrpc.INVALID_PARAMS,
    jsonrpc.INTERNAL_ERROR,
    jsonrpc.STOPPING,
    jsonrpc.NOT_INITIALIZED,
    jsonrpc.METHOD_NOT_FOUND,
    jsonrpc.NOT_OWNED,
}
_MAX_LINE = 1 << 26


class Running:
    """A running daemon and its parts."""

    def __init__(
        self, daemon: Daemon, journal: SessionJournal, claim: Claim, stop_listening: Callable[[], None]
    ) -> None:
        self.daemon = daemon
        self.journal = journal
        self.path = claim.path
        self._claim = claim
        self._stop_listening = stop_listening
        self._callers: list[Caller] = []

    async def caller(self, **asked: Any) -> Caller:
        """Return an initialized client with the requested features."""
        caller = await self.stranger()
        answer = await caller.ask("initialize", **(asked or {"protocolVersion": 1}))
        assert "result" in answer
        return caller

    async def stranger(self, limit: int = _MAX_LINE) -> Caller:
        """Return a connected client that has not initialized yet."""
        caller = Caller(*await asyncio.open_unix_connection(self.path, limit=limit))
        self._callers.append(caller)
        return caller

    async def events(self, session_id: str) -> list[tuple[int, Frame]]:
        """Return the recorded events with their sequence numbers."""
        found = await self.journal.reading(replay.events_after, session_id, 0, 1 << 20)
        from zot.encoding import encode

        return [(seq, json.loads(encode(event))) for seq, event in found]

    async def close(self, *, grace_s: float | None = None) -> None:
        for caller in self._callers:
            await caller.close()
        self._stop_listening()
        self._callers.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self.daemon.close(grace_s=grace_s)
        self._claim.release()


@asynccontextmanager
async def running(
    home: Path,
    *,
    ephemeral: bool = False,
    journal_at: Path | None = None,
    mends: bool = True,
    store: str = "",
    **flags: Any,
) -> AsyncIterator[Running]:
    """Run a daemon with its files in ``home`` and the options of its command line.

    With a ``store``, the address of a database, it is a gateway.
    """
    place = DaemonPaths(str(home / "d.sock"), str(home), str(home), str((journal_at or home) / "journal.db"))
    journal: SessionJournal
    if store:
        journal, flags = await open_journal(store), {**flags, "journal": store}
    else:
        journal = await Journal.open(str(place.journal))
    resources = SharedResources(serves_many=True)
    audit = Audit(LogFile(str(home / "audit.log")), soon=asyncio.get_running_loop().call_soon)
    given = {"provider": "lab", **flags}
    parts = DaemonParts(
        place, AgentConfigs.load(str(home)), journal=journal, resources=resources, audit=audit, flags=given
    )
    if store:
        parts.worker_pool, parts.workspaces = "default", Workspaces(parts, checks_out=False)
    daemon = Daemon(parts, ephemeral=ephemeral)
    watching = asyncio.create_task(daemon.sessions.watch.run()) if store else None
    claim = claim_endpoint(place.socket)
    service = Running(daemon, journal, claim, await listen(daemon, claim.listener))
    if mends:
        await daemon.recover()
    complaints: list[str] = []
    handler = _Complaints(complaints)
    logging.getLogger("zot").addHandler(handler)
    try:
        with chdir(home), at_home(home / "user"):
            yield service
    finally:
        await service.close(grace_s=0)  # A test's leftover runs are not awaited.
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
        logging.getLogger("zot").removeHandler(handler)
        audit.close()
        await resources.close()
        await journal.close()
    assert complaints == []


class _Complaints(logging.Handler):
    """Collects the daemon's internal errors: there must be none."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        self._complaints.append(self.format(record))


class Asked:
    """The open requests of a client: an error must be one that its method declares, or a common one."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def note(self, request: Frame) -> None:
        """Remember a request; the last one with an id counts."""
        method = METHODS.get(str(request.get("method")))
        if method is not None:
            self._methods[repr(request.get("id"))] = method

    def check(self, frame: Frame) -> None:
        """Fail on an undeclared error."""
        method = self._methods.get(repr(frame.get("id")))
        if method is not None and "error" in frame:
            assert frame["error"]["code"] in {*method.errors, *EVERYWHERE}, f"{method.name} may not answer {frame}"


class Caller:
    """A client that records the messages it receives, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heard: list[Frame] = []
        #: A reference that keeps the object alive.
        self.keeps: list[object] = []
        #: Answers that were read on the way to another one.
        self._early: list[Frame] = []
        self._numbers = count(1)
        self._asked = Asked()

    def write(self, *lines: Frame | bytes) -> None:
        """Send lines in one write."""
        for line in lines:
            if isinstance(line, dict):
                self._asked.note(line)
        coded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        self.writer.write(b"".join(line + b"\n" for line in coded))

    def call(self, method: str, **params: Any) -> int:
        """Send a request; return its id."""
        number = next(self._numbers)
        self.write(request(method, number, params))
        return number

    def tell(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.write({"jsonrpc": "2.0", "method": method, "params": params})

    async def read(self) -> Frame:
        """Return the next line. Raise EOFError at the end."""
        async with asyncio.timeout(PATIENCE_S):
            line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        frame: Frame = json.loads(line)
        assert frame["jsonrpc"] == "2.0"
        self.heard.append(frame)
        self._asked.check(frame)
        return frame

    async def answer(self, number: Any) -> Frame:
        """Return the answer to a request: read already on the way to another one, or read now."""
        for frame in self._early:
            if frame["id"] == number:
                self._early.remove(frame)
                return frame
        while True:
            frame = await self.read()
            if "method" not in frame:
                if frame["id"] == number:
                    return frame
                self._early.append(frame)

    async def ask(self, method: str, **params: Any) -> Frame:
        """Send a request and return the answer; earlier messages are in ``heard``."""
        return await self.answer(self.call(method, **params))

    async def get(self, method: str, **params: Any) -> Frame:
        """Send a request and return the result."""
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        result: Frame = answer["result"]
        return result

    async def error(self, method: str, **params: Any) -> tuple[int, str]:
        """Send a request and return the code and the message of the error."""
        answer = await self.ask(method, **params)
        assert "error" in answer, answer
        return answer["error"]["code"], answer["error"]["message"]

    async def until(self, **wanted: Any) -> Frame:
        """Read up to an update with these values and return it."""
        while True:
            frame = await self.read()
            if "method" not in frame:
                self._early.append(frame)
            params = frame.get("params", {})
            if all(params.get(key) == value for key, value in wanted.items()):
                return dict(params)

    async def rest(self) -> list[Frame]:
        """Read to the end of the connection."""
        begin = len(self.heard)
        try:
            while True:
                await self.read()
        except EOFError:
            return self.heard[begin:]

    def updates(self, session_id: str | None = None) -> list[Frame]:
        """Return the updates received so far, of all sessions or of one."""
        found = [frame["params"] for frame in self.heard if frame.get("method") == "session/update"]
        return [one for one in found if session_id in (None, one.get("sessionId"), one.get("session_id"))]

    async def close(self) -> None:
        """Disconnect without a goodbye."""
        self.writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def request(method: str, number: Any, params: Mapping[str, Any]) -> Frame:
    """Return an encoded request."""
    return {"jsonrpc": "2.0", "method": method, "params": dict(params), "id": number}


def order(frames: list[Frame]) -> list[Any]:
    """Return a summary of received messages: the types of updates and the ids of answers."""
    return [frame["params"]["type"] if "method" in frame else frame["id"] for frame in frames]
