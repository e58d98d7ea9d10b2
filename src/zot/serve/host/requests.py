"""One host request: opened, run once per idempotency key, and answered in order of arrival within its session."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import msgspec

from zot.encoding import thread_safe_type
from zot.errors import (
    AgentError,
    ConfigError,
    DaemonStopping,
    InternalError,
    NoAnswer,
    PromptTooLong,
    RunCancelled,
    SessionBusy,
    StoreFailed,
    explained,
)
from zot.events import notice_lines
from zot.journal.session_store import SessionStore
from zot.run_summary import CUT_OFF, RunSummary
from zot.runtime.idempotency import IdempotentRequest, IdempotentRun, StoredAnswer, answer_of
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.session.history import Batch, Subscriber
from zot.wire.host import (
    ANSWER_TTL_S,
    BAD_INPUT,
    FAILED,
    NOT_SET_UP,
    TIMEOUT_MESSAGE,
    WAITED_MESSAGE,
    Request,
    Response,
    Usage,
    code_of,
)

if TYPE_CHECKING:
    from zot.config.config import Config
    from zot.serve.host.single import HostProcess
    from zot.serve.host.watchdog import Slot
    from zot.session.session import Session

log = logging.getLogger("zot")

#: Limits for recording the delivery and for winding down. The caller waits for this process to end.
_RECORD_S = 3.0
_CLOSE_S = 1.0

#: Opens the session of a request.
OpenForHost: TypeAlias = "Callable[[IdempotentRequest], Awaitable[Session]]"

#: Number of requests that do work concurrently.
_AT_ONCE = 64
#: How long to wait for the confirmation that an answer was delivered.
_CONFIRM_S = 10.0
#: Limit for ending all requests at once.
_CLOSE_ALL_S = 2.0
#: Messages for requests that get no answer, and for those that the next daemon can answer.
_STOPPING_MESSAGE = "the daemon is stopping"
_NEXT_MESSAGE = "the daemon is stopping; send the request to the next one with the same key, and it continues there"


def idempotent(request: Request, came: float, deadline: float, ttl_s: float | None = None) -> IdempotentRequest:
    """Return a request that came at ``came`` on the clock of `time.monotonic`, to be answered by ``deadline``.

    ``ttl_s`` is how long a delivered answer is repeated for the same key; None for the usual time.
    """
    assert request.session_id is not None
    assert request.prompt is not None
    return IdempotentRequest(
        request.session_id,
        request.ids.request_id,
        request.prompt,
        request.agent_name,
        request.key,
        ANSWER_TTL_S if ttl_s is None else ttl_s,
        came,
        deadline,
    )


class RequestTurn:
    """A request's place in the queue. Its owner calls `leave` when the request has run or never will."""

    def __init__(self, slots: asyncio.Semaphore | None = None, before: RequestTurn | None = None) -> None:
        #: Held only while a request does work, not while it waits.
        self.slots = slots or asyncio.Semaphore()
        self._before = before
        self._left = asyncio.Event()

    async def reached(self) -> None:
        """Wait until all requests before this one have left."""
        while self._before is not None:
            await self._before._left.wait()
            # It may have left without being reached: then others are still before it.
            self._before = self._before._before

    @property
    def ahead(self) -> int:
        """Number of requests before this one."""
        number, before = 0, self._before
        while before is not None:
            number, before = number + (not before.has_left), before._before
        return number

    def leave(self) -> None:
        """Give way to the next request. Safe to call repeatedly."""
        self._left.set()

    @property
    def has_left(self) -> bool:
        return self._left.is_set()


class RequestQueue:
    """Queues of requests, one per session. A repetition of a queued request takes the place right after it: it gets the
    same answer and need not wait for later requests."""

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._last: dict[str, RequestTurn] = {}
        self._same: dict[tuple[str | None, ...], RequestTurn] = {}

    def join(self, request: Request) -> RequestTurn:
        """Enqueue a new request and return its place."""
        session = request.session_id or ""
        same = (session, request.key, request.prompt, request.agent_name)
        last = self._last.get(session)
        before = self._same.get(same, last) if request.key is not None else last
        place = RequestTurn(self._slots, before)
        if before is last:
            self._last[session] = place
        if request.key is not None:
            self._same[same] = place
        self._drop_left()
        return place

    def beside(self) -> RequestTurn:
        """Return a place outside of the queue."""
        return RequestTurn(self._slots)

    def _drop_left(self) -> None:
        """Drop places that have been left: sessions come and go."""
        self._last = {session: place for session, place in self._last.items() if not place.has_left}
        self._same = {same: place for same, place in self._same.items() if not place.has_left}


class HostReply(msgspec.Struct, frozen=True):
    """A response with its exit code."""

    response: Response
    code: int = 0


class RequestRun(Subscriber):
    """Answer one request as a subscriber of its session.

    Waits for earlier requests in ``place`` and for other users of the session; the caller enforces the deadline.
    ``has_requests_ahead`` says that earlier requests to a previous daemon may still be sent again.
    """

    def __init__(
        self,
        request: Request,
        asked: IdempotentRequest,
        opening: OpenForHost,
        listener: Subscriber | None = None,
        place: RequestTurn | None = None,
        *,
        has_requests_ahead: bool = False,
    ) -> None:
        self._request = request
        self._asked = asked
        self._opening = opening
        self._listener = listener
        self._place = place or RequestTurn()
        self._has_requests_ahead = has_requests_ahead
        self._outcome = RunSummary()
        self._session: Session | None = None
        self._once: IdempotentRun | None = None
        #: True while it waits for other requests. Read from any thread.
        self.waits = False
        #: True once the run may have had effects.
        self.has_begun = False
        self._is_running = False
        self._is_cancelled = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[HostReply] | None = None

    def usage(self) -> Usage:
        """Return the tokens used so far. Safe in any thread."""
        used = self._outcome.usage
        return Usage.of(used.input + used.cache_read + used.cache_write, used.output)

    async def answer(self) -> HostReply:
        """Return the answer; failures are answers, too."""
        if self._is_cancelled:
            return self._failure(RunCancelled("the request was cancelled"))
        self._task = asyncio.create_task(self._attempt(), name="zot request")
        await asyncio.wait({self._task})
        if self._once is not None:
            self._once.leave()
        if self._task.cancelled():
            return self._failure(RunCancelled("the request was cancelled"))
        return self._task.result()

    def cancel(self) -> None:
        """Cancel the request, in the loop's thread. Its answer is then a failure."""
        self._is_cancelled = True
        if self._is_running and self._session is not None:
            self._session.abort(queue=True)
        elif self._task is not None:
            self._task.cancel()

    def kill(self) -> None:
        """Kill the processes of its tools, from any thread."""
        if self._session is not None:
            self._session.tools.kill()

    def expire(self) -> None:
        """Cancel the request from any thread; kill its tools' processes at once, even if the loop hangs."""
        self._loop.call_soon_threadsafe(self.cancel)
        self.kill()

    async def delivered(self) -> None:
        """Record that the answer was delivered."""
        if self._once is not None:
            try:
                await asyncio.wait_for(self._once.delivered(), _RECORD_S)
            except TimeoutError:
                log.warning("recording the delivery of an answer took longer than %g s; given up", _RECORD_S)
            except StoreFailed as problem:
                log.warning("cannot record the delivery of an answer: %s", problem)

    async def close(self) -> None:
        """Release the session and end everything it left running."""
        if self._session is not None:
            try:
                await asyncio.wait_for(self._session.close(), _CLOSE_S)
            except TimeoutError:
                log.warning("gave up waiting for a request's session to close")

    # Subscriber.

    def deliver(self, batch: Batch) -> None:
        self._outcome.take(batch.events)
        sys.stderr.write(notice_lines(batch.events))

    # The run.

    async def _attempt(self) -> HostReply:
        try:
            self.waits = True
            await self._place.reached()
            async with self._place.slots:
                self.waits = False
                self._session = await self._opening(self._asked)
                self._once = _once(self._session, self._asked)
            self._session.history.subscribe(self)
            if self._listener is not None:
                self._session.history.subscribe(self._listener)
            self._session.agent.check_fit(self._request.prompt or "")
            answer, replayed = await self._run(self._session, self._once)
        except Exception as problem:  # The outermost boundary: every request gets an answer.
            return self._failure(explained(problem, log, "a request"))
        usage = Usage.of(answer.prompt_tokens, answer.completion_tokens)
        return HostReply(self._request.ids.success(answer.text, usage, replayed=replayed))

    async def _run(self, session: Session, once: IdempotentRun) -> tuple[StoredAnswer, bool]:
        """Return the answer, and whether it was stored by an earlier request."""
        assert self._request.prompt is not None
        while True:
            self.waits = True
            if (kept := await once.turn(gives_way=self._has_requests_ahead)) is not None:
                return kept, True
            async with self._place.slots:
                self.waits, self._is_running, self.has_begun = False, True, True
                job = session.repeat(self._request.prompt, once, channel=self._request.channel_id or "")
                await session.worker.finish()
                self._is_running = False
            if job.stored_answer is not None:
                answer = msgspec.json.decode(job.stored_answer, type=thread_safe_type(StoredAnswer))
                await self._store(once, answer)  # The process that ran it may have died before storing it.
                return answer, True
            match job.error:
                case SessionBusy() if not self._is_cancelled:
                    pass  # Another process acquired the session first: wait again.
                case None:
                    return await self._conclude(once, aborted=job.aborted), False
                case problem:
                    raise problem

    async def _conclude(self, once: IdempotentRun, *, aborted: bool) -> StoredAnswer:
        """Return the answer of a finished run after storing it. Raise RunCancelled, NoAnswer."""
        if aborted or self._is_cancelled:
            raise RunCancelled("the request was cancelled")
        answer = answer_of(self._outcome, self._request.prompt or "")
        if answer is None and self._outcome.stop == "length":
            raise NoAnswer(CUT_OFF)
        if answer is None:
            raise NoAnswer(self._outcome.held_back or "the model ended without saying anything")
        await self._store(once, answer)
        return answer

    async def _store(self, once: IdempotentRun, answer: StoredAnswer) -> None:
        try:
            await once.keep(answer)
        except StoreFailed as problem:  # Deliver the answer all the same.
            log.warning("cannot store the answer, so a repetition would run again: %s", problem)

    def _failure(self, problem: AgentError) -> HostReply:
        response = self._request.ids.failure(code_of(problem), str(problem), self.usage())
        return HostReply(response, _exit_code(problem))


def _once(session: Session, asked: IdempotentRequest) -> IdempotentRun:
    record = session.store
    assert isinstance(record, SessionStore)  # A host's session is always recorded.
    return IdempotentRun(record, asked)


def _exit_code(problem: AgentError) -> int:
    match problem:
        case PromptTooLong():
            return BAD_INPUT
        case ConfigError():
            return NOT_SET_UP
        case StoreFailed() | InternalError():
            return FAILED
        case _:
            return 0


def answer_single(
    host: HostProcess, request: Request, config: Config, slot: Slot, *, has_requests_ahead: bool
) -> NoReturn:
    """Answer the only request of a process, or let the watchdog do it, and exit."""
    resources = SharedResources(own_process=True)

    async def opening(asked: IdempotentRequest) -> Session:
        return await open_session(OpenRequest.for_host(config, asked), resources)

    async def answer() -> NoReturn:
        asked = idempotent(request, host.began, slot.deadline, host.settings.ttl_s)
        slot.run = run = RequestRun(request, asked, opening, has_requests_ahead=has_requests_ahead)
        reply = await run.answer()
        if not slot.take():
            await asyncio.Event().wait()  # The watchdog has answered, and ends the process.
        code = host.answer(slot, reply.response, reply.code)
        if code != FAILED:
            await run.delivered()
        await run.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(resources.close(), _CLOSE_S)
        host.leave(code)

    asyncio.run(answer())


class RequestAnswered:
    """An answer to deliver. The caller reports once whether it was delivered."""

    def __init__(self, reply: HostReply, conclude: Callable[[bool], None]) -> None:
        self.reply = reply
        self._conclude = conclude

    def delivered(self, got_out: bool = True) -> None:
        """Report whether the answer was delivered."""
        self._conclude(got_out)


class _Pending:
    """A request without a confirmed delivery."""

    def __init__(self, request: Request, answering: RequestRun, place: RequestTurn) -> None:
        self.request = request
        self.answering = answering
        self.place = place
        #: DaemonStopping if the next daemon is to answer.
        self.reply: asyncio.Future[HostReply | DaemonStopping] = asyncio.get_running_loop().create_future()
        self.delivery: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Cancel the request; a pending answer counts as undelivered.

        The next daemon can repeat it without running it twice if it has a key or has not begun.
        """
        self.set_delivered(False)
        if not self.reply.done():
            is_repeatable = self.request.key is not None or not self.answering.has_begun
            self.answering.cancel()
            self.answering.kill()
            refusal = DaemonStopping(_NEXT_MESSAGE, ahead=self.place.ahead)
            self.reply.set_result(refusal if is_repeatable else _stopping(self.request, self.answering))

    def set_delivered(self, got_out: bool) -> None:
        """Set whether the answer was delivered. The first call counts."""
        if not self.delivery.done():
            self.delivery.set_result(got_out)


class RequestServer:
    """Answer requests, each once and by its deadline; requests of one session run one after the other."""

    def __init__(self, opening: OpenForHost) -> None:
        self._opening = opening
        self._queue = RequestQueue(_AT_ONCE)
        self._tasks: dict[asyncio.Task[None], _Pending] = {}
        #: Number of callers waiting for an answer; the event is set while there are none.
        self._callers = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._is_closed = False

    async def answer(
        self, request: Request, *, age_s: float = 0.0, has_requests_ahead: bool = False
    ) -> RequestAnswered:
        """Return the answer to a request that arrived ``age_s`` ago, by its deadline; failures are answers, too.

        Cancelling the caller cancels the request. Raise DaemonStopping if the next daemon should be asked.
        ``has_requests_ahead`` says that this daemon is the next one and earlier requests may arrive later: the request
        then skips this process's queue and only takes its place in the queue shared by all processes.
        """
        if self._is_closed:
            raise DaemonStopping(_NEXT_MESSAGE)
        came = time.monotonic() - age_s
        deadline = came + request.timeout_s
        place = self._queue.beside() if has_requests_ahead else self._queue.join(request)
        asked = idempotent(request, came, deadline)
        answering = RequestRun(request, asked, self._opening, None, place, has_requests_ahead=has_requests_ahead)
        pending = _Pending(request, answering, place)
        task = asyncio.get_running_loop().create_task(self._follow(pending), name="zot respond")
        self._tasks[task] = pending
        task.add_done_callback(self._tasks.pop)
        self._callers += 1
        self._all_answered.clear()
        try:
            reply = await self._reply(pending, deadline)
        finally:
            self._callers -= 1
            if not self._callers:
                self._all_answered.set()
        if isinstance(reply, DaemonStopping):
            raise reply
        return RequestAnswered(reply, pending.set_delivered)

    async def finish(self) -> None:
        """Wait until all callers have their answers."""
        await self._all_answered.wait()

    async def close(self) -> None:
        """Cancel all requests at once: callers get an answer that says so; unconfirmed answers count as undelivered."""
        self._is_closed = True
        for pending in self._tasks.values():
            pending.end()
        tasks = list(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_CLOSE_ALL_S)
            for task in late:
                log.warning("gave up waiting for a request to end")
                task.cancel()
        await self._all_answered.wait()

    async def _reply(self, pending: _Pending, deadline: float) -> HostReply | DaemonStopping:
        """Return the answer, a failure at the deadline, or DaemonStopping if the next daemon is to answer."""
        answering = pending.answering
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await asyncio.shield(pending.reply)
        except TimeoutError:
            waited = answering.waits
            answering.cancel()
            answering.kill()
            message = TIMEOUT_MESSAGE + (WAITED_MESSAGE if waited else "")
            pending.set_delivered(False)
            return HostReply(pending.request.ids.failure("TIMEOUT", message, answering.usage()))
        except asyncio.CancelledError:
            answering.cancel()
            answering.kill()
            pending.set_delivered(False)
            raise

    async def _follow(self, pending: _Pending) -> None:
        """Await a request's answer and its delivery, then close its session."""
        answering = pending.answering
        try:
            reply = await answering.answer()
            pending.place.leave()
            if not pending.reply.done():
                pending.reply.set_result(reply)
            try:
                async with asyncio.timeout(_CONFIRM_S):
                    if await pending.delivery:
                        await answering.delivered()
            except TimeoutError:
                pass  # It counts as undelivered.
            await answering.close()
        finally:
            pending.place.leave()


def _stopping(request: Request, answering: RequestRun) -> HostReply:
    return HostReply(request.ids.failure("INTERNAL", _STOPPING_MESSAGE, answering.usage()), FAILED)
