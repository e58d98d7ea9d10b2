"""One host request: opened, run once per key and answered, in submission order per session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from zot.encoding import learned
from zot.errors import (
    AgentError,
    AlreadyAnswered,
    ConfigError,
    NoAnswer,
    PromptTooLong,
    RunCancelled,
    SessionBusy,
    Stopping,
    StoreFailed,
    SystemFailed,
    Unforeseen,
)
from zot.events import AgentEvent
from zot.run_summary import Outcome
from zot.runtime.idempotency import Answer, Once, answer_of
from zot.serve.notices import show_notices
from zot.wire.host import TIMEOUT_MESSAGE, WAITED_MESSAGE, Request, Response, Usage, code_of

if TYPE_CHECKING:
    from zot.runtime.idempotency import Once
    from zot.session.history import Batch
    from zot.session.session import Session


class Place:
    """A request's place. Whoever has it calls `leave` when the request has run, or never will."""

    def __init__(self, slots: asyncio.Semaphore | None = None, before: Place | None = None) -> None:
        #: Held only while a request does something, and not while it waits.
        self.slots = slots or asyncio.Semaphore()
        self._before = before
        self._left = asyncio.Event()

    async def reached(self) -> None:
        """Wait until all those before us have left."""
        while self._before is not None:
            await self._before._left.wait()
            # It may have left without having been reached: then there are others before it.
            self._before = self._before._before

    @property
    def ahead(self) -> int:
        """How many are before us."""
        number, before = 0, self._before
        while before is not None:
            number, before = number + (not before.has_left), before._before
        return number

    def leave(self) -> None:
        """Let the next one have its turn. Any number of times."""
        self._left.set()

    @property
    def has_left(self) -> bool:
        return self._left.is_set()


class Line:
    """All places. A request that is the same as one that has a place comes right behind that one: it wants its answer,
    and need not wait for what was asked since."""

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._last: dict[str, Place] = {}
        self._same: dict[tuple[str | None, ...], Place] = {}

    def join(self, request: Request) -> Place:
        """Return the place of a request that has just come."""
        session = request.session_id or ""
        same = (session, request.key, request.prompt, request.agent_name)
        last = self._last.get(session)
        before = self._same.get(same, last) if request.key is not None else last
        place = Place(self._slots, before)
        if before is last:
            self._last[session] = place
        if request.key is not None:
            self._same[same] = place
        self._forget()
        return place

    def beside(self) -> Place:
        """Return a place that is before and behind nobody."""
        return Place(self._slots)

    def _forget(self) -> None:
        """Keep only those that have not left: sessions come and go."""
        self._last = {session: place for session, place in self._last.items() if not place.has_left}
        self._same = {same: place for same, place in self._same.items() if not place.has_left}


log = logging.getLogger("zot")

#: What the exit code says when a request cannot be run, when nothing could be, and when we failed.
BAD_INPUT = 2
NOT_SET_UP = 3
FAILED = 4
#: How long it may take to put on record that the answer is out, and to wind down. Whoever asked waits for our end.
_RECORD_S = 3.0
_CLOSE_S = 1.0

Opening: TypeAlias = "Callable[[Request], Awaitable[tuple[Session, Once]]]"


class Reply(msgspec.Struct, frozen=True):
    """An answer, and what the exit code would say."""

    response: Response
    code: int = 0


class Listener(Protocol):
    """Somebody who wants to know what happens on the way to an answer."""

    def hear(self, events: Sequence[AgentEvent]) -> None:
        """Take what happened."""

    @property
    def full(self) -> bool:
        """True while it cannot take more."""

    async def room(self) -> None:
        """Wait until it can."""


class Nobody:
    """Nobody wants to know."""

    full = False

    def hear(self, events: Sequence[AgentEvent]) -> None:
        return

    async def room(self) -> None:
        return


class Answering:
    """Answers one request. A `Subscriber` of its session.

    A session that others use is waited for, and so are those who came before, in ``place``: whoever guards the deadline
    ends that. ``behind`` says that there are some who may not have come again after a daemon ended.
    """

    can_approve = False

    def __init__(
        self,
        request: Request,
        opening: Opening,
        listener: Listener | None = None,
        place: Place | None = None,
        *,
        behind: bool = False,
    ) -> None:
        self._request = request
        self._opening = opening
        self._listener = listener or Nobody()
        self._place = place or Place()
        self._is_behind = behind
        self._outcome = Outcome()
        self._session: Session | None = None
        self._once: Once | None = None
        #: True while it waits for others. Read from any thread.
        self.waits = False
        #: True once something may have been said or done for it.
        self.has_begun = False
        self._is_running = False
        self._is_cancelled = False
        self._task: asyncio.Task[Reply] | None = None

    def usage(self) -> Usage:
        """Return what has been used so far. From any thread."""
        used = self._outcome.usage
        return Usage.of(used.input + used.cache_read + used.cache_write, used.output)

    async def answer(self) -> Reply:
        """Return the answer, whatever happens."""
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
        """End it, in the thread of the loop. Its answer says so."""
        self._is_cancelled = True
        if self._is_running and self._session is not None:
            self._session.abort(queue=True)
        elif self._task is not None:
            self._task.cancel()

    def kill(self) -> None:
        """Kill what its tools have running, from any thread: it is over, or the process is."""
        if self._session is not None:
            self._session.kill()

    async def delivered(self) -> None:
        """Put on record that the answer got out."""
        if self._once is not None:
            try:
                await asyncio.wait_for(self._once.delivered(), _RECORD_S)
            except TimeoutError:
                log.warning("that the answer got out is not on record: that took longer than %g s", _RECORD_S)
            except StoreFailed as problem:
                log.warning("that the answer got out is not on record: %s", problem)

    async def close(self) -> None:
        """Let go of the session and end what it left running."""
        if self._session is not None:
            try:
                await asyncio.wait_for(self._session.close(), _CLOSE_S)
            except TimeoutError:
                log.warning("left before everything was wound down")

    # What a subscriber does.

    def deliver(self, batch: Batch) -> None:
        self._outcome.take(batch.events)
        show_notices(batch.events)
        self._listener.hear(batch.events)

    @property
    def full(self) -> bool:
        return self._listener.full

    async def room(self) -> None:
        await self._listener.room()

    # How it is answered.

    async def _attempt(self) -> Reply:
        try:
            self.waits = True
            await self._place.reached()
            async with self._place.slots:
                self.waits = False
                self._session, self._once = await self._opening(self._request)
            self._session.subscribe(self)
            self._session.check_fit(self._request.prompt or "")
            answer, replayed = await self._run(self._session, self._once)
        except AgentError as problem:
            return self._failure(problem)
        except OSError as problem:
            log.info("a request failed", exc_info=problem)
            return self._failure(SystemFailed.of(problem))
        except Exception as problem:  # the outermost boundary: an answer there must be
            log.exception("unexpected error in a request")
            return self._failure(Unforeseen(f"internal error ({type(problem).__name__}); the log has the details"))
        usage = Usage.of(answer.prompt_tokens, answer.completion_tokens)
        return Reply(self._request.ids.success(answer.text, usage, replayed=replayed))

    async def _run(self, session: Session, once: Once) -> tuple[Answer, bool]:
        """Return the answer, and whether it had been given before."""
        assert self._request.prompt is not None
        while True:
            self.waits = True
            if (kept := await once.turn(behind=self._is_behind)) is not None:
                return kept, True
            async with self._place.slots:
                self.waits, self._is_running, self.has_begun = False, True, True
                job = session.request(self._request.prompt, once.words, channel=self._request.channel_id or "")
                await session.finish()
                self._is_running = False
            match job.error:
                case AlreadyAnswered(answer=data):
                    answer = msgspec.json.decode(data, type=learned(Answer))
                    await self._keep(once, answer)  # Whoever ran it may have died before that.
                    return answer, True
                case SessionBusy() if not self._is_cancelled:
                    pass  # Somebody was faster.
                case None:
                    return await self._conclude(once, aborted=job.aborted), False
                case problem:
                    raise problem

    async def _conclude(self, once: Once, *, aborted: bool) -> Answer:
        """Return what a run came to, once it is on record. Raise RunCancelled, NoAnswer."""
        if aborted or self._is_cancelled:
            raise RunCancelled("the request was cancelled")
        answer = answer_of(self._outcome, self._request.prompt or "")
        if answer is None and self._outcome.stop == "length":
            raise NoAnswer("the answer was cut off at the model's length limit")
        if answer is None:
            raise NoAnswer(self._outcome.held_back or "the model ended without saying anything")
        await self._keep(once, answer)
        return answer

    async def _keep(self, once: Once, answer: Answer) -> None:
        try:
            await once.keep(answer)
        except StoreFailed as problem:  # There is an answer, and it is better than none.
            log.warning("the answer is not kept, so the same request would run again: %s", problem)

    def _failure(self, problem: AgentError) -> Reply:
        response = self._request.ids.failure(code_of(problem), str(problem), self.usage())
        return Reply(response, _exit_code(problem))


def _exit_code(problem: AgentError) -> int:
    match problem:
        case PromptTooLong():
            return BAD_INPUT
        case ConfigError():
            return NOT_SET_UP
        case StoreFailed() | Unforeseen():
            return FAILED
        case _:
            return 0


#: Opens the session of a request that came at a time and must be answered by another.
OpeningBy: TypeAlias = "Callable[[Request, float, float], Awaitable[tuple[Session, Once]]]"

#: So many requests do something at the same time.
_AT_ONCE = 64
#: How long we wait to hear that an answer got out.
_HEARD_S = 10.0
#: How long everything may take when it is ended.
_respond_CLOSE_S = 2.0
#: What those are told whose answer will not come, and those who can have it from somebody else.
_STOPPING_MESSAGE = "the daemon is stopping"
_NEXT_MESSAGE = "the daemon is stopping; ask the next one the same, with the same key, and the request goes on there"


class Answered:
    """An answer that is on its way. Whoever gives it says if it got out, once."""

    def __init__(self, reply: Reply, conclude: Callable[[bool], None]) -> None:
        self.reply = reply
        self._conclude = conclude

    def delivered(self, got_out: bool = True) -> None:
        """Say that the answer got out, or that it did not."""
        self._conclude(got_out)


class _Pending:
    """A request on its way: to its answer, and from there to whoever waits for it."""

    def __init__(self, request: Request, answering: Answering, place: Place) -> None:
        self.request = request
        self.answering = answering
        self.place = place
        #: A refusal if somebody else is to answer.
        self.reply: asyncio.Future[Reply | Stopping] = asyncio.get_running_loop().create_future()
        self.got_out: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """End what runs for it; its answer, if it has one, did not get out.

        Somebody else can go on with it, as after a crash, if that is no second time: it has a key, or was not begun.
        """
        self.heard(False)
        if not self.reply.done():
            goes_on = self.request.key is not None or not self.answering.has_begun
            self.answering.cancel()
            self.answering.kill()
            next_one = Stopping(_NEXT_MESSAGE, ahead=self.place.ahead)
            self.reply.set_result(next_one if goes_on else _stopping(self.request, self.answering))

    def heard(self, got_out: bool) -> None:
        """Take whether the answer got out. The first word counts."""
        if not self.got_out.done():
            self.got_out.set_result(got_out)


class Respondent:
    """Answers requests, each once and in time; those of one session one after the other."""

    def __init__(self, opening: OpeningBy) -> None:
        self._opening = opening
        self._line = Line(_AT_ONCE)
        self._tasks: dict[asyncio.Task[None], _Pending] = {}
        #: How many wait for an answer; set while nobody does.
        self._callers = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._is_closed = False

    async def answer(self, request: Request, *, age_s: float = 0.0, behind: bool = False) -> Answered:
        """Return the answer to a request that was made ``age_s`` ago, whatever happens, by its deadline.

        If nobody waits for it any more, because the caller was cancelled, what runs for it is ended. Raise Stopping if
        the same is to be asked of the next daemon. ``behind`` says that this one is the next, and that others who were
        before it may come after it: its place is then only where those of all processes are.
        """
        if self._is_closed:
            raise Stopping(_NEXT_MESSAGE)
        came = time.monotonic() - age_s
        deadline = came + request.timeout_s
        place = self._line.join(request) if not behind else self._line.beside()
        answering = Answering(request, lambda one: self._opening(one, came, deadline), None, place, behind=behind)
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
        if isinstance(reply, Stopping):
            raise reply
        return Answered(reply, pending.heard)

    async def finish(self) -> None:
        """Wait until everybody who waits for an answer has one."""
        await self._all_answered.wait()

    async def close(self) -> None:
        """End everything at once: whoever waits is told so, and what was answered and not heard of did not get out."""
        self._is_closed = True
        for pending in self._tasks.values():
            pending.end()
        tasks = list(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_respond_CLOSE_S)
            for task in late:
                log.warning("a request was left before everything was wound down")
                task.cancel()
        await self._all_answered.wait()

    async def _reply(self, pending: _Pending, deadline: float) -> Reply | Stopping:
        """Return the answer, or at the deadline that there is none; a refusal if somebody else is to answer."""
        answering = pending.answering
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await asyncio.shield(pending.reply)
        except TimeoutError:
            waited = answering.waits
            answering.cancel()
            answering.kill()
            message = TIMEOUT_MESSAGE + (WAITED_MESSAGE if waited else "")
            pending.heard(False)
            return Reply(pending.request.ids.failure("TIMEOUT", message, answering.usage()))
        except asyncio.CancelledError:
            answering.cancel()
            answering.kill()
            pending.heard(False)
            raise

    async def _follow(self, pending: _Pending) -> None:
        """See a request to its answer, and to its end behind that."""
        answering = pending.answering
        try:
            given = await answering.answer()
            pending.place.leave()
            if not pending.reply.done():
                pending.reply.set_result(given)
            try:
                async with asyncio.timeout(_HEARD_S):
                    if await pending.got_out:
                        await answering.delivered()
            except TimeoutError:
                pass  # Then it counts as one that did not get out.
            await answering.close()
        finally:
            pending.place.leave()


def _stopping(request: Request, answering: Answering) -> Reply:
    return Reply(request.ids.failure("INTERNAL", _STOPPING_MESSAGE, answering.usage()), FAILED)
