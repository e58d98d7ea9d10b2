"""Requests of the host protocol, answered in a process that lives on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from zot.errors import Stopping
from zot.serve.host.host_line import Line, Place
from zot.serve.host.request import FAILED, Answering, Reply
from zot.wire.host import TIMEOUT_MESSAGE, WAITED_MESSAGE, Request

if TYPE_CHECKING:
    from zot.runtime.idempotency import Once
    from zot.session.session import Session

log = logging.getLogger("zot")

#: Opens the session of a request that came at a time and must be answered by another.
OpeningBy: TypeAlias = "Callable[[Request, float, float], Awaitable[tuple[Session, Once]]]"

#: So many requests do something at the same time.
_AT_ONCE = 64
#: How long we wait to hear that an answer got out.
_HEARD_S = 10.0
#: How long everything may take when it is ended.
_CLOSE_S = 2.0
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
            _, late = await asyncio.wait(tasks, timeout=_CLOSE_S)
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
