"""Questions to a person: asked once, answered once, or not in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias, cast, get_args

from zot.agent.hooks import Approver, Question
from zot.agent.run import Run
from zot.errors import UserError
from zot.events import ApprovalRequest
from zot.messages import timestamp

Decision: TypeAlias = Literal["allow_once", "allow_always", "reject"]

_NOBODY: Final = "not run: the policy of this session wants a person's approval, and there is nobody to ask"


class Questions:
    """The question of a session that waits for an answer; there is at most one. The first answer counts."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._asked = 0
        #: The request, and what was decided about it; None when nobody can decide any more.
        self._waiting: tuple[str, asyncio.Future[Decision | None]] | None = None

    async def ask(self, run: Run, question: Question, approver: Approver, *, number: int, can_ask: bool) -> str | None:
        """Ask a person about a call and return why it must not run, None to let it.

        ``number`` is the run's: with it, an answer to a question of an earlier life of the session answers no other.
        """
        if not can_ask:
            return _NOBODY
        self._asked += 1
        request_id = f"approval_{number}_{self._asked}"
        answer: asyncio.Future[Decision | None] = asyncio.get_running_loop().create_future()
        self._waiting = (request_id, answer)
        try:
            deadline = timestamp(self._clock() + approver.timeout_s)
            run.asked(ApprovalRequest(request_id, question.call.name, question.args, question.summary, deadline))
            async with asyncio.timeout(approver.timeout_s):
                decision = await answer
        except TimeoutError:
            return f"not run: nobody approved it within {approver.timeout_s:g} s"
        finally:
            self._waiting = None
        return _refusal(decision, question, approver)

    def answer(self, request_id: str, decision: str) -> None:
        """Take a person's decision. Raise UserError if nobody waits for it, or it is none."""
        if decision not in get_args(Decision):
            raise UserError(f"{decision!r} is not a decision; it is one of {', '.join(get_args(Decision))}")
        if self._waiting is None or self._waiting[0] != request_id or self._waiting[1].done():
            raise UserError(f"no approval request {request_id!r} is waiting: it was answered, expired or never made")
        self._waiting[1].set_result(cast(Decision, decision))

    def give_up(self) -> None:
        """Nobody can answer any more, or nobody needs the answer."""
        if self._waiting is not None and not self._waiting[1].done():
            self._waiting[1].set_result(None)


def _refusal(decision: Decision | None, question: Question, approver: Approver) -> str | None:
    match decision:
        case None:
            return _NOBODY
        case "reject":
            return "not run: the user refused this call"
        case "allow_once":
            return None
        case "allow_always":
            approver.remember(question)
            return None
