"""One request of the host protocol, from its session to its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from zot.errors import (
    AgentError,
    AlreadyAnswered,
    ConfigError,
    NoAnswer,
    PromptTooLong,
    RunCancelled,
    SessionBusy,
    StoreFailed,
    SystemFailed,
    Unforeseen,
)
from zot.events import AgentEvent
from zot.learned import learned
from zot.run_summary import Outcome
from zot.runtime.idempotency import Answer, Once, answer_of
from zot.serve.host.host_line import Place
from zot.serve.notices import show_notices
from zot.wire.host import Request, Response, Usage, code_of

if TYPE_CHECKING:
    from zot.session.history import Batch
    from zot.session.session import Session

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
