"""One client connection of the daemon: requests handled in order per session."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from zot.errors import (
    AgentError,
    DaemonStopping,
    NoSuchSession,
    QueueFull,
    RuntimeBusy,
    SessionBusy,
    TooManySessions,
    UserError,
    explained,
)
from zot.events import AgentEvent, Done, Error, TurnEnd
from zot.serve.daemon.audit import Identity
from zot.serve.daemon.backlog import Backlog, Wire
from zot.wire import jsonrpc
from zot.wire.daemon import (
    OPERATOR,
    QUESTIONS,
    READ_ONLY,
    Dialect,
    Grant,
    Initialize,
    check_sessions,
    dialect_of,
    encode_error_in,
    encode_result_in,
    find,
    read_params,
    spelling_of,
)
from zot.wire.jsonrpc import Bad, RpcError, RpcRequest
from zot.wire.lines import TooLong
from zot.wire.spelling import Spelled, Spelling, read, spelled

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon
    from zot.serve.daemon.feed import Follower

log = logging.getLogger("zot")

_CODES: Mapping[type[AgentError], int] = {
    NoSuchSession: jsonrpc.SESSION_NOT_FOUND,
    TooManySessions: jsonrpc.SESSION_LIMIT,
    QueueFull: jsonrpc.SESSION_BUSY,
    RuntimeBusy: jsonrpc.SESSION_BUSY,
    SessionBusy: jsonrpc.SESSION_BUSY,
    DaemonStopping: jsonrpc.STOPPING,
    UserError: jsonrpc.INVALID_PARAMS,
    AgentError: jsonrpc.INTERNAL_ERROR,
}
#: Limit of a client's unanswered requests.
_MAX_UNANSWERED = 4096
#: Limit of their size.
_MAX_UNANSWERED_BYTES = 64 << 20
#: Read-only requests answered concurrently, and the unread bytes that pause them.
_READS_AT_ONCE = 4
_MAX_UNREAD_BYTES = 1 << 20

#: Executes a method: returns the result, or a `Deferred`, `SlowAnswer` or `AnswerThen`. Raises AgentError.
Handler: TypeAlias = Callable[["ClientConnection", Any], Awaitable[Any]]


class Deferred:
    """Answer that is given later by `resolve` and sent at that very moment, so its place in the stream is exact."""

    def __init__(self) -> None:
        self._outcome: list[Any] = []
        self._call: Callable[[Any], None] | None = None

    def resolve(self, outcome: Any) -> None:
        """Set the answer, or an RpcError instead. The first call counts."""
        if not self._outcome:
            self._outcome.append(outcome)
            if self._call is not None:
                self._call(outcome)

    def then(self, call: Callable[[Any], None]) -> None:
        """Set the callback that receives the answer, now or later."""
        self._call = call
        if self._outcome:
            call(self._outcome[0])


class SlowAnswer:
    """Answer to await without blocking the client's other requests on the session."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self.work = work


class AnswerThen:
    """Answer with a callback to run right after sending it."""

    def __init__(self, result: Any, then: Callable[[], object]) -> None:
        self.result = result
        self.then = then


class _Order:
    """Lock and user count that serialize one client's requests on one session."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


class ClientConnection:
    """One client: its identity, its spelling of names, and the sessions it follows."""

    def __init__(self, daemon: Daemon, wire: Wire, who: Identity, *, label: str, grant: Grant = OPERATOR) -> None:
        self.daemon = daemon
        self.wire = wire
        self._backlog = Backlog(wire, daemon.metrics)
        #: Identity for the audit log, and for people.
        self.who = who
        self.label = label
        #: Name in lists of clients, and the time of its connection.
        self.name = f"tui_{os.urandom(4).hex()}"
        self.since = time.time()
        self.came = time.monotonic()
        #: What it may do.
        self.grant = grant
        #: Whether it runs on this machine, so that paths mean the same to both.
        self.is_local = grant.may("operate")
        self.is_initialized = False
        self.spelling = Spelling.CAMEL
        self.dialect = Dialect.CAMEL
        self._answers_questions = False
        self._followed: dict[str, Follower] = {}
        #: Running requests, with their sizes.
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._unanswered_bytes = 0
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        #: Requests on one session begin one at a time, in order of arrival.
        self._order: dict[str, _Order] = {}
        self._is_ending = False
        self._is_closed = False

    # Requests from the client.

    def take(self, line: bytes | TooLong) -> None:
        """Execute the request in one line and answer it."""
        if self._is_closed:
            return
        if isinstance(line, TooLong):
            self.wire.send(jsonrpc.encode_error(jsonrpc.NULL, jsonrpc.frame_too_large(line.limit)))
            return
        match jsonrpc.decode(line):
            case RpcRequest() as request:
                self._serve(request, len(line))
            case Bad() as bad:
                self.wire.send(jsonrpc.encode_error(bad.id, bad))
            case _:
                pass  # A response: the daemon sends no requests.

    def end_input(self) -> None:
        """Handle the end of the client's input; pending answers are still written."""
        self._is_ending = True
        self._finish_if_idle()

    def close(self) -> None:
        """Drop the client. Its runs continue. Safe to call repeatedly."""
        self._is_closed = True
        for session_id in list(self._followed):
            self.unfollow(session_id)
        self.daemon.left(self)

    # Subscriptions.

    @property
    def followed(self) -> Collection[str]:
        """Ids of the sessions it follows."""
        return self._followed.keys()

    def follow(self, session_id: str, after: int | None = None, *, again: bool = False) -> None:
        """Send a session's updates after number ``after``; ``again`` restarts an existing subscription.

        Without the role `view`, a client gets the answers to its requests only.
        """
        before = self._followed.get(session_id)
        if (
            self._is_closed
            or not (self.grant.may("view") and self.grant.sees(session_id))
            or (before is not None and not again)
        ):
            return
        feed = self.daemon.sessions.feed(session_id)
        if before is not None:
            feed.leave(before)
        self._followed[session_id] = feed.follow(
            self._backlog,
            self.dialect,
            after,
            before=before,
            caught_up=self._finish_if_idle,
            answers=self._answers_questions and self.grant.may("approve"),
        )

    def when_sent(self, session_id: str, seq: int, call: Callable[[], None]) -> None:
        """Call as soon as the client has a session's updates up to ``seq``; at once if it does not follow it."""
        follower = self._followed.get(session_id)
        if follower is None:
            call()
        else:
            follower.when_seen(seq, call)

    def unfollow(self, session_id: str) -> bool:
        """End a subscription. False if there was none."""
        follower = self._followed.pop(session_id, None)
        if follower is not None:
            self.daemon.sessions.feed(session_id).leave(follower)
            follower.give_up()
        return follower is not None

    def notify(self, method: str, params: Spelled) -> None:
        """Send a notification."""
        self._backlog.send(jsonrpc.encode_notification(method, spelled(self.spelling, params)))

    def send_turn_failed(
        self, session_id: str, reason: str, prompt_id: str = "", *, then: Callable[[], object] = lambda: None
    ) -> None:
        """Send an error turn to this client only: its prompt will never run. Then call ``then``."""
        self._send_turn(session_id, prompt_id, [Error(reason), Done()], then)

    def send_turn_aborted(self, session_id: str, prompt_id: str, *, then: Callable[[], object]) -> None:
        """Send an aborted turn to this client only: its prompt was cancelled before it began. Then call ``then``."""
        self._send_turn(session_id, prompt_id, [TurnEnd("aborted"), Done()], then)

    def _send_turn(
        self, session_id: str, prompt_id: str, events: Sequence[AgentEvent], then: Callable[[], object]
    ) -> None:
        line = self.daemon.sessions.feed(session_id).encoded(events, self.dialect, prompt_id)

        def send() -> None:
            self.wire.send(line)
            then()

        def send_after_replay() -> None:  # The client may still be replaying the turn that is over.
            self.when_sent(session_id, self.daemon.sessions.feed(session_id).seq, send)

        # With `events`, these do not name the prompt: during another turn they would seem to end that one.
        names_no_prompt = self.dialect is Dialect.EVENTS
        self.daemon.sessions.after_turn(session_id, send_after_replay, through_approvals=names_no_prompt)
        if names_no_prompt:
            then()  # The answer names the prompt, and needs not wait.

    # Execution.

    def _serve(self, request: RpcRequest, size: int) -> None:
        try:
            params = self._checked(request, size)
        except RpcError as problem:
            self._fail(request, None, problem)
            return
        if isinstance(params, Initialize):
            self._initialize(request, params)
            return
        work = self._perform_read if request.method in READ_ONLY else self._perform
        task = asyncio.get_running_loop().create_task(work(request, params), name=f"zot {request.method}")
        self._tasks[task] = size
        self._unanswered_bytes += size
        task.add_done_callback(self._performed)

    def _checked(self, request: RpcRequest, size: int) -> Any:
        """Return the decoded parameters. Raise RpcError if they are invalid or too many requests are unanswered."""
        if len(self._tasks) >= _MAX_UNANSWERED:
            raise RpcError(jsonrpc.SESSION_BUSY, f"{_MAX_UNANSWERED} requests are unanswered; wait for some")
        if self._unanswered_bytes + size > _MAX_UNANSWERED_BYTES:
            raise RpcError(jsonrpc.SESSION_BUSY, f"{self._unanswered_bytes} bytes of requests are unanswered; wait")
        method = find(request.method, initialized=self.is_initialized, grant=self.grant)
        params = read_params(method, request.params, self.spelling)
        check_sessions(self.grant, method, params)
        return params

    def _initialize(self, request: RpcRequest, params: Initialize) -> None:
        try:
            result = self.daemon.initialize(self, params)
        except RpcError as problem:
            self._fail(request, None, problem)
            return
        self.spelling = spelling_of(request.params)
        before, self.dialect = self.dialect, dialect_of(self.spelling, result.features)
        self._answers_questions = QUESTIONS in result.features and self.dialect is Dialect.EVENTS
        self.is_initialized = True
        self.daemon.note(self, request.method, None, None)
        self._answer(request, result)
        if self.dialect is not before:
            for session_id, follower in list(self._followed.items()):
                self.follow(session_id, follower.cursor, again=True)

    async def _perform_read(self, request: RpcRequest, params: Any) -> None:
        """Answer a read-only request once the client reads: the answer may be much longer than the request.

        Waits before it takes its place in the order, so no changing request waits with it.
        """
        async with self._reads:
            if self.wire.unread > _MAX_UNREAD_BYTES:
                await self.wire.room()
            if not self._is_closed:
                await self._perform(request, params)

    async def _perform(self, request: RpcRequest, params: Any) -> None:
        """Execute a request and answer it, whether it succeeds or fails."""
        handler = self.daemon.sessions.handlers[request.method]
        try:
            async with self._turn(getattr(params, "session_id", None)):
                result = await handler(self, params)
            self.daemon.note(self, request.method, params, None)
            if isinstance(result, Deferred):
                await self._answer_later(request, result)
                return
            if isinstance(result, SlowAnswer):
                result = await result.work
        except Exception as problem:  # The outermost boundary: an error fails this request, not the connection.
            self._fail(request, params, as_rpc_error(explained(problem, log, request.method)))
        else:
            if isinstance(result, AnswerThen):
                self._answer(request, result.result)
                result.then()
            else:
                self._answer(request, result)

    async def _answer_later(self, request: RpcRequest, deferred: Deferred) -> None:
        """Answer when ``deferred`` is resolved, in that very moment."""
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
        """Hold the lock that orders this client's requests on a session."""
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
        """Tasks of the requests without an answer."""
        return self._tasks.keys()

    def _performed(self, task: asyncio.Task[None]) -> None:
        self._unanswered_bytes -= self._tasks.pop(task)
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        """Close if the input has ended, every request is answered and no replay is running."""
        if self._is_ending and not self._tasks and all(one.is_live for one in self._followed.values()):
            self.wire.finish()

    def _answer(self, request: RpcRequest, result: Any) -> None:
        if request.id is not None and result is not None:
            self.wire.send(encode_result_in(self.spelling, request.id, result))

    def _fail(self, request: RpcRequest, params: Any, problem: RpcError) -> None:
        self.daemon.note(self, request.method, params, problem)
        self._refuse(request, problem)
        if request.id is None and request.method == "session/prompt" and self.is_initialized:
            session_id, prompt_id = _prompted(request, params)
            if session_id:  # No other message would end the client's wait.
                self.send_turn_failed(session_id, problem.message, prompt_id)

    def _refuse(self, request: RpcRequest, problem: RpcError) -> None:
        if request.id is not None:
            self.wire.send(encode_error_in(self.spelling, request.id, problem))


def _prompted(request: RpcRequest, params: Any) -> tuple[str, str]:
    """Return the session id and the prompt id of a prompt; "" for an id that bad parameters hide."""
    from zot.wire.daemon_types import OfSession, Prompt  # Imported lazily: `initialize` is answered before.

    if isinstance(params, Prompt):
        return params.session_id, params.prompt_id or ""
    try:
        return read(OfSession, request.params).session_id, ""
    except RpcError:
        return "", ""


def as_rpc_error(problem: AgentError) -> RpcError:
    """Return the JSON-RPC error for a failure."""
    if isinstance(problem, RpcError):
        return problem
    code = next(_CODES[kind] for kind in type(problem).__mro__ if kind in _CODES)
    data = {"ahead": problem.ahead} if isinstance(problem, DaemonStopping) and problem.ahead else None
    return RpcError(code, str(problem), data)
