"""One client connection of the daemon: requests handled in order per session."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from zot.errors import (
    AgentError,
    NoSuchSession,
    QueueFull,
    RuntimeBusy,
    SessionBusy,
    Stopping,
    SystemFailed,
    TooManySessions,
    UserError,
)
from zot.serve.daemon.audit import Who
from zot.serve.daemon.backlog import Backlog, Wire
from zot.wire import jsonrpc
from zot.wire.daemon import (
    LOOKS,
    Dialect,
    dialect_of,
    encode_error_in,
    encode_result_in,
    find,
    read_params,
    spelling_of,
)
from zot.wire.daemon_greeting import Initialize, Initialized
from zot.wire.jsonrpc import Bad, Request, RpcError
from zot.wire.lines import TooLong
from zot.wire.spelling import Spelling, read

if TYPE_CHECKING:
    from zot.events import AgentEvent
    from zot.serve.daemon.feed import Feed, Follower


class Deferred:
    """An answer that comes later, from whoever `resolve`s it; it is sent in that moment, so that its place is exact."""

    def __init__(self) -> None:
        self._outcome: list[Any] = []
        self._call: Callable[[Any], None] | None = None

    def resolve(self, outcome: Any) -> None:
        """Give the answer, or the RpcError in its place. The first one counts."""
        if not self._outcome:
            self._outcome.append(outcome)
            if self._call is not None:
                self._call(outcome)

    def then(self, call: Callable[[Any], None]) -> None:
        """Let ``call`` have the answer when it is there."""
        self._call = call
        if self._outcome:
            call(self._outcome[0])


class Later:
    """An answer that takes its time; others are served meanwhile."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self.work = work


class Told:
    """An answer, and what is to be done right behind it."""

    def __init__(self, result: Any, then: Callable[[], object]) -> None:
        self.result = result
        self.then = then


log = logging.getLogger("zot")

_CODES: Mapping[type[AgentError], int] = {
    NoSuchSession: jsonrpc.SESSION_NOT_FOUND,
    TooManySessions: jsonrpc.SESSION_LIMIT,
    QueueFull: jsonrpc.SESSION_BUSY,
    RuntimeBusy: jsonrpc.SESSION_BUSY,
    SessionBusy: jsonrpc.SESSION_BUSY,
    Stopping: jsonrpc.STOPPING,
    UserError: jsonrpc.INVALID_PARAMS,
    AgentError: jsonrpc.INTERNAL_ERROR,
}
#: So many requests of one client may wait for their answers.
_MAX_UNANSWERED = 4096
#: And so many bytes of them.
_MAX_UNANSWERED_BYTES = 64 << 20
#: So many requests that only look are answered at once, and none while so much is unread.
_LOOKS_AT_ONCE = 4
_MUCH_BYTES = 1 << 20


class ClientWire(Wire, Protocol):
    """The way to one client, as its connection sees it."""

    def finish(self) -> None:
        """Write what is left, and end."""


class _Order:
    """Those of one client who want something of one session, one behind the other; how many there are."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


#: Does what a method says: returns the answer, or what gives it later. Raise AgentError.
Handler: TypeAlias = Callable[["Connection", Any], Awaitable[Any]]


class Office(Protocol):
    """What all connections share."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """What is done for each method."""

    def feed(self, session_id: str) -> Feed:
        """Return where a session's events go."""

    def welcome(self, connection: Connection, params: Initialize) -> Initialized:
        """Return the answer to `initialize`. Raise RpcError."""

    def note(self, connection: Connection, method: str, params: Any, problem: RpcError | None) -> None:
        """Write down who did what."""

    def left(self, connection: Connection) -> None:
        """A client has gone."""

    def cut_off(self) -> None:
        """A client was cut off that did not read."""

    def has_rules(self, alias: str) -> bool:
        """True if an agent has a policy of its own."""

    def behind_turn(self, session_id: str, call: Callable[[], None]) -> None:
        """Do something when the turn that runs in a session is over, or waits for a person; at once, if none does."""


class Connection:
    """A client: who it is, how it spells, and which sessions it follows."""

    def __init__(self, office: Office, wire: ClientWire, who: Who, *, label: str, is_local: bool = True) -> None:
        self.office = office
        self.wire = wire
        self._backlog = Backlog(wire, cut_off=office.cut_off)
        #: Who it is, for the audit log, and for people.
        self.who = who
        self.label = label
        #: What it is called where all are listed, and since when it is there.
        self.name = f"tui_{os.urandom(4).hex()}"
        self.since = time.time()
        self.came = time.monotonic()
        #: Whether it is on this machine, so that paths mean the same to both.
        self.is_local = is_local
        self.is_welcome = False
        self.spelling = Spelling.CAMEL
        self.dialect = Dialect.CAMEL
        self._followed: dict[str, Follower] = {}
        #: What is being done, and how long the request for it was.
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._unanswered_bytes = 0
        self._looking = asyncio.Semaphore(_LOOKS_AT_ONCE)
        #: One at a time begins what is asked of a session, in the order in which it was asked.
        self._order: dict[str, _Order] = {}
        self._is_ending = False
        self._is_closed = False

    # What the client says.

    def take(self, line: bytes | TooLong) -> None:
        """Do what one line says, and answer it."""
        if isinstance(line, TooLong):
            self.wire.send(jsonrpc.encode_error(jsonrpc.NULL, jsonrpc.frame_too_large(line.limit)))
            return
        match jsonrpc.decode(line):
            case Request() as request:
                self._serve(request, len(line))
            case Bad() as bad:
                self.wire.send(jsonrpc.encode_error(bad.id, bad))
            case _:
                pass  # We have asked nothing.

    def end_input(self) -> None:
        """Nothing more will come; what is owed is still written."""
        self._is_ending = True
        self._finish_if_even()

    def close(self) -> None:
        """The client has gone. What it began goes on."""
        self._is_closed = True
        for session_id in list(self._followed):
            self.unfollow(session_id)
        self.office.left(self)

    # What it follows.

    @property
    def followed(self) -> Collection[str]:
        """The sessions that it is told of."""
        return self._followed.keys()

    def follow(self, session_id: str, after: int | None = None, *, again: bool = False) -> None:
        """Tell it what happens in a session, from a number on; ``again``, also if it is being told already."""
        before = self._followed.get(session_id)
        if self._is_closed or (before is not None and not again):
            return
        feed = self.office.feed(session_id)
        if before is not None:
            feed.leave(before)
        self._followed[session_id] = feed.follow(
            self._backlog, self.dialect, after, before=before, caught_up=self._finish_if_even
        )

    def when_told(self, session_id: str, seq: int, call: Callable[[], None]) -> None:
        """Do something as soon as it has been told of a session up to ``seq``; at once if it does not follow it."""
        follower = self._followed.get(session_id)
        if follower is None:
            call()
        else:
            follower.when_seen(seq, call)

    def unfollow(self, session_id: str) -> bool:
        """Tell it nothing more of a session. False if it was not told."""
        follower = self._followed.pop(session_id, None)
        if follower is not None:
            self.office.feed(session_id).leave(follower)
            follower.give_up()
        return follower is not None

    def lament(
        self, session_id: str, reason: str, prompt_id: str = "", *, then: Callable[[], object] = lambda: None
    ) -> None:
        """Tell it, and nobody else, why a turn that it wanted will never be; ``then`` do what comes right behind."""
        from zot.events import Done, Error

        self._tell(session_id, prompt_id, [Error(reason), Done()], then)

    def take_back(self, session_id: str, prompt_id: str, *, then: Callable[[], object]) -> None:
        """Tell it, and nobody else, that a turn that it wanted was cancelled before it began; ``then`` go on."""
        from zot.events import Done, TurnEnd

        self._tell(session_id, prompt_id, [TurnEnd("aborted"), Done()], then)

    def _tell(self, session_id: str, prompt_id: str, events: Sequence[AgentEvent], then: Callable[[], object]) -> None:
        from zot.wire.updates import Updates

        line = Updates(session_id, self.dialect, prompt_id=prompt_id).lines(0, events)

        def tell() -> None:
            self.wire.send(line)
            then()

        def tell_behind() -> None:  # It may still be reading what it has missed of the turn that is over.
            self.when_told(session_id, self.office.feed(session_id).seq, tell)

        self.office.behind_turn(session_id, tell_behind)

    # How it is served.

    def _serve(self, request: Request, size: int) -> None:
        try:
            params = self._checked(request, size)
        except RpcError as problem:
            self._fail(request, None, problem)
            return
        if isinstance(params, Initialize):
            self._initialize(request, params)
            return
        work = self._look if request.method in LOOKS else self._perform
        task = asyncio.get_running_loop().create_task(work(request, params), name=f"zot {request.method}")
        self._tasks[task] = size
        self._unanswered_bytes += size
        task.add_done_callback(self._performed)

    def _checked(self, request: Request, size: int) -> Any:
        """Return what is asked for. Raise RpcError if it cannot be."""
        if len(self._tasks) >= _MAX_UNANSWERED:
            raise RpcError(jsonrpc.SESSION_BUSY, f"{_MAX_UNANSWERED} requests are unanswered; wait for some")
        if self._unanswered_bytes + size > _MAX_UNANSWERED_BYTES:
            raise RpcError(jsonrpc.SESSION_BUSY, f"{self._unanswered_bytes} bytes of requests are unanswered; wait")
        method = find(request.method, initialized=self.is_welcome, local=self.is_local)
        return read_params(method, request.params, self.spelling)

    def _initialize(self, request: Request, params: Initialize) -> None:
        try:
            result = self.office.welcome(self, params)
        except RpcError as problem:
            self._fail(request, None, problem)
            return
        self.spelling = spelling_of(request.params)
        before, self.dialect = self.dialect, dialect_of(self.spelling, result.features)
        self.is_welcome = True
        self.office.note(self, request.method, None, None)
        self._answer(request, result)
        if self.dialect is not before:
            for session_id, follower in list(self._followed.items()):
                self.follow(session_id, follower.cursor, again=True)

    async def _look(self, request: Request, params: Any) -> None:
        """Answer a request that changes nothing when the client reads: its answer may be many times as long.

        It waits before it gets its place in the order, so that nothing that does change something waits with it.
        """
        async with self._looking:
            if self.wire.unread > _MUCH_BYTES:
                await self.wire.room()
            if not self._is_closed:
                await self._perform(request, params)

    async def _perform(self, request: Request, params: Any) -> None:
        """Do what is asked, and answer it whatever happens."""
        handler = self.office.handlers[request.method]
        try:
            async with self._turn(getattr(params, "session_id", None)):
                result = await handler(self, params)
            self.office.note(self, request.method, params, None)
            if isinstance(result, Deferred):
                await self._answer_later(request, result)
                return
            if isinstance(result, Later):
                result = await result.work
        except AgentError as problem:
            self._fail(request, params, as_rpc_error(problem))
        except OSError as problem:
            log.info("%s failed", request.method, exc_info=problem)
            self._fail(request, params, as_rpc_error(SystemFailed.of(problem)))
        except Exception:  # The outermost boundary: what we did not foresee costs this request, not the connection.
            log.exception("unexpected error in %s", request.method)
            self._fail(request, params, RpcError(jsonrpc.INTERNAL_ERROR, "internal error; the log has the details"))
        else:
            told = result if isinstance(result, Told) else None
            self._answer(request, result if told is None else told.result)
            if told is not None:
                told.then()

    async def _answer_later(self, request: Request, deferred: Deferred) -> None:
        """Answer when the time has come, and then at once."""
        answered = asyncio.Event()

        def answer(outcome: Any) -> None:
            if isinstance(outcome, RpcError):
                self._refuse(request, outcome)
            else:
                self._answer(request, outcome)
            answered.set()

        deferred.then(answer)
        await answered.wait()

    @asynccontextmanager
    async def _turn(self, session_id: str | None) -> AsyncIterator[None]:
        """Have one's turn among those who want something of a session."""
        if not session_id:
            yield
            return
        order = self._order.setdefault(session_id, _Order())
        order.wanted += 1
        try:
            async with order.lock:
                yield
        finally:
            order.wanted -= 1
            if not order.wanted:
                del self._order[session_id]

    @property
    def unanswered(self) -> Collection[asyncio.Task[None]]:
        """What it has asked for and was not answered yet."""
        return self._tasks.keys()

    def _performed(self, task: asyncio.Task[None]) -> None:
        self._unanswered_bytes -= self._tasks.pop(task)
        self._finish_if_even()

    def _finish_if_even(self) -> None:
        """End, if nothing more will come and nothing is owed: no answer, and nothing that was missed."""
        if self._is_ending and not self._tasks and all(one.is_live for one in self._followed.values()):
            self.wire.finish()

    def _answer(self, request: Request, result: Any) -> None:
        if request.id is not None and result is not None:
            self.wire.send(encode_result_in(self.spelling, request.id, result))

    def _fail(self, request: Request, params: Any, problem: RpcError) -> None:
        self.office.note(self, request.method, params, problem)
        self._refuse(request, problem)
        if request.id is None and request.method == "session/prompt" and self.is_welcome:
            session_id, prompt_id = _prompted(request, params)
            if session_id:  # Nothing else would end its wait.
                self.lament(session_id, problem.message, prompt_id)

    def _refuse(self, request: Request, problem: RpcError) -> None:
        if request.id is not None:
            self.wire.send(encode_error_in(self.spelling, request.id, problem))


def _prompted(request: Request, params: Any) -> tuple[str, str]:
    """Return which session a prompt is for, and its id; "" for what cannot be told, as its parameters are wrong."""
    from zot.wire.daemon_types import OfSession, Prompt

    if isinstance(params, Prompt):
        return params.session_id, params.prompt_id or ""
    try:
        return read(OfSession, request.params).session_id, ""
    except RpcError:
        return "", ""


def as_rpc_error(problem: AgentError) -> RpcError:
    """Return an error as clients are told it."""
    if isinstance(problem, RpcError):
        return problem
    code = next(_CODES[kind] for kind in type(problem).__mro__ if kind in _CODES)
    data = {"ahead": problem.ahead} if isinstance(problem, Stopping) and problem.ahead else None
    return RpcError(code, str(problem), data)
