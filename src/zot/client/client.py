"""Client: a connection to the daemon that reconnects and resumes."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import msgspec

from zot.client.endpoint import LOOK_S, NOBODY, Patience, dial, whose
from zot.client.session import SETTLE_S, ClientSession
from zot.config.paths import find_socket
from zot.encoding import thread_safe_type
from zot.errors import AgentError, ConfigError, ConnectionLost, ExtraMissing, InternalError
from zot.version import __version__
from zot.wire.daemon_client import Answer, DaemonPeer, UpdateListener
from zot.wire.daemon_types import AgentEntry, Agents, Attached, Opened, SessionEntry, Sessions, Status

#: Defaults: how long to retry a broken connection, and how long an answer may take.
RECONNECT_S = 30.0
ANSWER_S = 30.0
#: Pause before a reconnect: first, and at most.
_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 2.0
#: With this many undelivered events, the client stops reading from the daemon.
_MAX_UNREAD = 10_000
_READ_BYTES = 1 << 18

T = TypeVar("T")
log = logging.getLogger("zot")


class DaemonTransport(Protocol):
    """One connection. Raises OSError when it breaks."""

    async def send(self, data: bytes) -> None:
        """Write lines."""

    async def receive(self) -> bytes:
        """Return the bytes received; b"" at the end."""

    def close(self) -> None:
        """Close the connection at once."""


class LocalLine:
    """A connection to a local socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._reader = reader
        self._writer = writer
        self._path = path

    @staticmethod
    async def open(path: str, within_s: float, *, wait_s: float = 0.0) -> LocalLine:
        """Connect; wait for a daemon that is starting, or that starts within ``wait_s``. Raise OSError."""
        patience = Patience(path, wait_s=wait_s)
        while True:
            try:
                connection = await asyncio.to_thread(dial, path, within_s)
                break
            except NOBODY:
                if patience.is_over:
                    raise
            except PermissionError as problem:
                problem.strerror = whose(path) or problem.strerror
                raise
            await asyncio.sleep(LOOK_S)
        connection.setblocking(False)
        return LocalLine(*await asyncio.open_unix_connection(sock=connection), path)

    async def send(self, data: bytes) -> None:
        """Write lines."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            self._check_ours()
            raise

    async def receive(self) -> bytes:
        """Return the bytes received; b"" at the end."""
        try:
            data = await self._reader.read(_READ_BYTES)
        except ConnectionResetError:
            self._check_ours()
            raise
        if not data:
            self._check_ours()
        return data

    def _check_ours(self) -> None:
        """Raise ConnectionResetError with the reason if the socket is another user's."""
        if why := whose(self._path):
            raise ConnectionResetError(why)

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


Opening: TypeAlias = Callable[[], Awaitable[DaemonTransport]]


class _PendingAnswer:
    """The answer to a call, once it arrives."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def resolve(self, answer: Answer) -> None:
        """Set the answer, unless its caller has stopped waiting."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Client:
    """A connection to the daemon. Use it in ``async with Client.connect() as client``.

    When the connection breaks, the client reconnects and resumes: followers of a session get every event exactly once.
    If that fails for ``reconnect_s``, all pending calls raise ConnectionLost. The daemon must answer within
    ``answer_s``, except to calls that wait for a model. The client looks for a prompt that was in flight when the
    connection broke in the session, and raises PromptLost if the session is idle and shows no trace of it for
    ``settle_s``, twice.
    """

    def __init__(
        self,
        opening: Opening,
        *,
        reconnect_s: float = RECONNECT_S,
        answer_s: float = ANSWER_S,
        settle_s: float = SETTLE_S,
        questions: bool = False,
    ) -> None:
        self._opening = opening
        self._reconnect_s = reconnect_s
        self._answer_s = answer_s
        self._settle_s = settle_s
        self._peer = DaemonPeer(name="zot", version=__version__, questions=questions)
        self._owner: asyncio.Task[None] | None = None
        self._problem: AgentError | None = None
        self._refusal: AgentError | None = None
        #: Set once the daemon has answered `initialize` for the first time, or the client has given up.
        self._settled = asyncio.Event()
        #: Deadline of the current attempts to reconnect; None while connected.
        self._patient_until: float | None = None
        self._to_send = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._listeners: set[UpdateListener] = set()

    @classmethod
    def connect(
        cls,
        *,
        socket: str | None = None,
        url: str | None = None,
        token: str | None = None,
        config_dir: str | None = None,
        reconnect_s: float = RECONNECT_S,
        answer_s: float = ANSWER_S,
        settle_s: float = SETTLE_S,
        wait_s: float = 0.0,
        questions: bool = False,
        env: Mapping[str, str] = os.environ,
    ) -> Client:
        """Return a client of the daemon at ``socket``, at ``url`` (a WebSocket), or at the default endpoint.

        ``wait_s`` is how long a local daemon that was just started may take to listen. With ``questions``, this client
        answers the questions of tools (`ClientSession.answer`).
        Raise ConfigError if there is no endpoint to try.
        """
        if url is not None and socket is not None:
            raise ConfigError("give a socket or a url, not both")

        async def open_web() -> DaemonTransport:
            assert url is not None
            try:
                from zot.client.web_line import WebLine  # Imported lazily: an extra.
            except ImportError:
                raise ExtraMissing("a WebSocket needs the package websockets", "web") from None
            return await WebLine.open(url, token, answer_s)

        async def open_local() -> DaemonTransport:
            nonlocal wait_s
            first_s, wait_s = wait_s, 0.0
            return await LocalLine.open(path, answer_s, wait_s=first_s)

        path = "" if url is not None else find_socket(env, socket=socket, config_dir=config_dir)
        opening = open_local if url is None else open_web
        return cls(opening, reconnect_s=reconnect_s, answer_s=answer_s, settle_s=settle_s, questions=questions)

    async def __aenter__(self) -> Self:
        """Connect and call `initialize`. Raise ConnectionLost if no daemon is there or starting."""
        try:
            line = await self._opening()
        except OSError as problem:
            where = f" at {problem.filename}" if problem.filename else ""
            if isinstance(problem, PermissionError):
                raise ConnectionLost(f"the daemon{where} cannot be used: {problem.strerror}") from problem
            if isinstance(problem, FileNotFoundError | ConnectionRefusedError) and where:
                raise ConnectionLost(f"No daemon is running{where}. Start one with: zot daemon") from problem
            raise ConnectionLost(f"cannot connect to the daemon{where}: {problem.strerror or problem}") from problem
        self._peer.refused, self._peer.wake = self._refuse, self._to_send.set
        self._owner = asyncio.create_task(self._keep(line), name="zot client")
        try:
            await self._settled.wait()
            self.check()
        except BaseException:  # `__aexit__` is not called if `__aenter__` fails.
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. Pending calls raise ConnectionLost; turns continue in the daemon. Idempotent."""
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait({self._owner})
        self._give_up(ConnectionLost("this client has been closed"))

    # Calls.

    async def call(self, method: str, params: Mapping[str, Any] | None = None, *, within_s: float | None = None) -> Any:
        """Call any method and return its result as decoded JSON. Raise RpcError, ConnectionLost, TimeoutError."""
        return await self.ask(method, dict(params or {}), Any, within_s=within_s or self._answer_s)

    async def sessions(self, query: str = "", *, limit: int | None = None) -> tuple[SessionEntry, ...]:
        """Return the sessions, the latest first; with ``query``, those whose messages contain these words."""
        params = {"query": query or None, "limit": limit}
        return (await self.ask("session/list", params, Sessions)).sessions

    async def agents(self) -> tuple[AgentEntry, ...]:
        """Return the configured agents."""
        return (await self.ask("agents/list", {}, Agents)).agents

    async def status(self) -> Status:
        """Return the daemon's version, process, endpoint and loaded sessions."""
        return await self.ask("status", {}, Status)

    async def session(
        self, session_id: str | None = None, agent: str = "default", cwd: str | None = None
    ) -> ClientSession:
        """Return the session with this id; if there is none, create it with this agent and ``cwd``. Raise RpcError."""
        params = {"agentAlias": agent, "sessionId": session_id or _new_id(), "cwd": cwd}
        # Repeatable: with an id, the daemon creates the session only once.
        opened = await self.ask("session/new", params, Opened, is_repeatable=True)
        return await self.attach(opened.session_id)

    async def attach(self, session_id: str) -> ClientSession:
        """Return an existing session, whatever its agent. A closed one can only be read. Raise RpcError."""
        pending = self._pending()
        number = self._peer.attach(session_id, None, pending.resolve)
        attached = await self._decoded(number, pending, Attached, self._answer_s)
        return ClientSession(self, attached, settle_s=self._settle_s)

    # For `ClientSession`.

    @property
    def is_connected(self) -> bool:
        """True while there is a connection; otherwise calls wait for the next one."""
        return self._peer.greeting is not None

    @property
    def peer(self) -> DaemonPeer:
        """The protocol state: pending calls and attached sessions."""
        return self._peer

    async def ask(
        self,
        method: str,
        params: Any,
        kind: type[T],
        *,
        within_s: float | None = -1.0,
        is_repeatable: bool | None = None,
    ) -> T:
        """Call a method and return its result as ``kind``. ``within_s`` None means no time limit."""
        limit = self._answer_s if within_s == -1.0 else within_s
        pending = self._pending()
        number = self._peer.ask(method, params, pending.resolve, is_repeatable=is_repeatable)
        return await self._decoded(number, pending, kind, limit)

    def check(self) -> None:
        """Raise if the client is closed, has given up, or was never connected."""
        if self._problem is not None:
            raise self._problem
        if self._owner is None:
            raise ConfigError("the Client is not connected: use it in `async with`")

    def hear(self, session_id: str, listener: UpdateListener) -> None:
        """Subscribe to a session. While too much is unread, the client stops reading from the daemon."""
        self._listeners.add(listener)
        self._peer.listen(session_id, listener)

    def leave(self, session_id: str, listener: UpdateListener) -> None:
        """End a subscription."""
        self._listeners.discard(listener)
        self._peer.leave(session_id, listener)
        self.make_room()

    def make_room(self) -> None:
        """Continue reading from the daemon if every listener has room again."""
        if not self._room.is_set() and all(len(listener.unread) < _MAX_UNREAD for listener in self._listeners):
            self._room.set()

    # The connection.

    def _pending(self) -> _PendingAnswer:
        self.check()
        return _PendingAnswer()

    async def _decoded(self, number: int, pending: _PendingAnswer, kind: type[T], within_s: float | None) -> T:
        """Wait for the answer to the call ``number``; return its result as ``kind``, or raise its error."""
        try:
            async with asyncio.timeout(within_s):
                answer = await pending.answer
        finally:
            self._peer.forget(number)
        if isinstance(answer, AgentError):
            raise answer
        return msgspec.json.decode(answer, type=thread_safe_type(kind))

    async def _keep(self, line: DaemonTransport) -> None:
        """Run one connection after the other until reconnecting fails."""
        try:
            while True:
                why = await self._converse(line)
                self._peer.broken()
                if not self._settled.is_set():
                    raise self._refusal or ConnectionLost(f"the daemon did not answer initialize: {why}")
                line = await self._reconnected(why)
        except AgentError as problem:
            self._give_up(problem)
        except Exception as problem:  # The outermost boundary: otherwise callers would wait for ever.
            log.exception("unexpected error in a client of the daemon")
            self._give_up(InternalError(f"the daemon sent an unexpected message ({type(problem).__name__})"))

    async def _converse(self, line: DaemonTransport) -> str:
        """Read and write until the connection breaks; return why it did."""
        self._peer.connected()
        why = "the daemon closed the connection"
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write(line), name="zot client writing")
                await self._read(line)
                writing.cancel()
        except* OSError as problems:
            why = str(problems.exceptions[0]) or "no answer in time"
        finally:
            line.close()
        return why

    async def _read(self, line: DaemonTransport) -> None:
        while self._refusal is None:
            async with asyncio.timeout(self._answer_s if self._peer.greeting is None else None):
                data = await line.receive()
            if not data:
                return
            self._peer.feed(data)
            if self._peer.greeting is not None:
                self._patient_until = None
                self._settled.set()
            if any(len(listener.unread) >= _MAX_UNREAD for listener in self._listeners):
                self._room.clear()
            await self._room.wait()

    async def _write(self, line: DaemonTransport) -> None:
        while True:
            self._to_send.clear()
            if data := self._peer.taken():
                await line.send(data)
            else:
                await self._to_send.wait()

    async def _reconnected(self, why: str) -> DaemonTransport:
        """Return a new connection. Raise ConnectionLost after ``reconnect_s`` without one."""
        pause_s = _FIRST_PAUSE_S
        self._patient_until = self._patient_until or time.monotonic() + self._reconnect_s
        while self._refusal is None:
            left_s = self._patient_until - time.monotonic()
            if left_s <= 0:
                raise ConnectionLost(f"the connection to the daemon is lost: {why}")
            await asyncio.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
            try:
                return await self._opening()
            except OSError as problem:
                why, pause_s = str(problem), min(_LAST_PAUSE_S, 2 * pause_s)
        raise self._refusal

    def _refuse(self, problem: AgentError) -> None:
        if not isinstance(problem, ConnectionLost):
            self._refusal = problem

    def _give_up(self, problem: AgentError) -> None:
        self._problem = self._problem or problem
        self._peer.give_up(problem)
        self._room.set()
        self._settled.set()


def _new_id() -> str:
    """Return an id for a new session. Chosen here, so that `session/new` can be repeated after a reconnect."""
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}-{os.urandom(4).hex()}"
