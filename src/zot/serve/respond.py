"""Requests of the host protocol, answered in a process that lives on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from zot.serve.host import Answering, Reply
from zot.serve.host_line import Line
from zot.wire.host import TIMEOUT_MESSAGE, WAITED_MESSAGE, Request

if TYPE_CHECKING:
    from zot.answers import Once
    from zot.session import Session

#: Opens the session of a request that came at a time and must be answered by another.
OpeningBy: TypeAlias = "Callable[[Request, float, float], Awaitable[tuple[Session, Once]]]"

#: So many requests do something at the same time.
_AT_ONCE = 64
#: How long we wait to hear that an answer got out.
_HEARD_S = 10.0


class Answered:
    """An answer that is on its way. Whoever gives it says if it got out, once."""

    def __init__(self, reply: Reply, conclude: Callable[[bool], None]) -> None:
        self.reply = reply
        self._conclude = conclude

    def delivered(self, got_out: bool = True) -> None:
        """Say that the answer got out, or that it did not."""
        self._conclude(got_out)


class Respondent:
    """Answers requests, each once and in time; those of one session one after the other."""

    def __init__(self, opening: OpeningBy) -> None:
        self._opening = opening
        self._line = Line(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request, *, age_s: float = 0.0) -> Answered:
        """Return the answer to a request that was made ``age_s`` ago, whatever happens, by its deadline.

        If nobody waits for it any more, because the caller was cancelled, what runs for it is ended.
        """
        came = time.monotonic() - age_s
        deadline = came + request.timeout_s
        place = self._line.join(request)
        answering = Answering(request, lambda one: self._opening(one, came, deadline), None, place)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        got_out: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(
            self._follow(answering, place.leave, reply, got_out), name="zot respond"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                given = await asyncio.shield(reply)
        except TimeoutError:
            waited = answering.waits
            answering.cancel()
            answering.kill()
            message = TIMEOUT_MESSAGE + (WAITED_MESSAGE if waited else "")
            given = Reply(request.ids.failure("TIMEOUT", message, answering.usage()))
            _settle(got_out, False)
        except asyncio.CancelledError:
            answering.cancel()
            answering.kill()
            _settle(got_out, False)
            raise
        return Answered(given, lambda out: _settle(got_out, out))

    async def close(self) -> None:
        """Wait until everything that was begun is over."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _follow(
        self,
        answering: Answering,
        leave: Callable[[], None],
        reply: asyncio.Future[Reply],
        got_out: asyncio.Future[bool],
    ) -> None:
        """See a request to its answer, and to its end behind that."""
        try:
            given = await answering.answer()
            leave()
            if not reply.done():
                reply.set_result(given)
            try:
                async with asyncio.timeout(_HEARD_S):
                    if await got_out:
                        await answering.delivered()
            except TimeoutError:
                pass  # Then it counts as one that did not get out.
            await answering.close()
        finally:
            leave()


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
