"""Questions to a person: asked once, answered once, or not in time. What is decided is on record before it counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, cast, get_args

import msgspec

from zot.agent.hooks import Answer, Approver, Question
from zot.agent.parking import Parked, too_late
from zot.agent.run import Run
from zot.errors import UserError
from zot.events import ApprovalAnswer, ApprovalRequest
from zot.messages import timestamp
from zot.store import Row

Decision: TypeAlias = Literal["allow_once", "allow_always", "reject"]
#: What a question can come to that no person has decided.
Omission: TypeAlias = Literal["expired", "unanswerable", "aborted"]

_NOBODY: Final = "not run: the policy of this session wants a person's approval, and there is nobody to ask"
#: So many answers are remembered, for those who come too late.
_REMEMBERED: Final = 100


class LeftParked(Exception):
    """Nobody will hear the answer in this process: the question is left to another one."""


class _Open(msgspec.Struct):
    """A question that waits. ``question`` is None if what the person was shown would not be what is asked now.

    ``outcome`` has what a person decided or why nobody did, and None when it is left to another process.
    """

    run: Run
    request: ApprovalRequest
    question: Question | None
    left_s: float
    refusal: str
    outcome: asyncio.Future[Decision | Omission | None]
    is_taken: bool = False


class Questions:
    """The question of a session that waits for an answer; there is at most one. The first answer counts."""

    def __init__(self, approver: Approver, *, clock: Callable[[], float] = time.time) -> None:
        self._approver = approver
        self._clock = clock
        self._asked = 0
        self._open: _Open | None = None
        self._answers: dict[str, ApprovalAnswer] = {}

    @property
    def pending(self) -> ApprovalRequest | None:
        """The request that waits for an answer."""
        return self._open.request if self._open is not None and not self._open.outcome.done() else None

    async def ask(self, run: Run, question: Question, *, number: int, can_ask: bool) -> Answer:
        """Ask a person about a call and return what came of it.

        ``number`` is the run's: with it, an answer to a question of an earlier life of the session answers no other.
        """
        if not can_ask:
            return Answer(question, _NOBODY)
        self._asked += 1
        timeout_s = self._approver.timeout_s
        deadline = timestamp(self._clock() + timeout_s)
        request_id = f"approval_{number}_{self._asked}"
        request = ApprovalRequest(request_id, question.call.name, question.args, question.summary, deadline)
        self._open = _opened(run, request, question, timeout_s, f"not run: nobody approved it within {timeout_s:g} s")
        try:
            run.asked(request)
            return Answer(question, self._refusal(await self._outcome(self._open), self._open.refusal))
        finally:
            self._open = None

    def reopen(self, run: Run, parked: Parked, newest: Sequence[Row], *, left_s: float) -> None:
        """Let a question wait again that was asked in an earlier life of ``run``, whose rows are ``newest``."""
        for row in newest:
            if isinstance(row, ApprovalRequest):
                self._asked = max(self._asked, _number(row.id))
            elif isinstance(row, ApprovalAnswer):
                self._remember(row)
        question = self._approver.judge(parked.call, parked.request.args)
        is_same = isinstance(question, Question) and question.summary == parked.request.summary
        self._open = _opened(
            run,
            parked.request,
            question if isinstance(question, Question) and is_same else None,
            left_s,
            too_late(parked.request),
        )
        if parked.answer is not None:
            self._open.outcome.set_result(parked.answer.decision)

    async def resume(self, parked: Parked) -> Answer | None:
        """Return what came of a question that was reopened; None if what was allowed is not what would run now."""
        reopened = self._open
        assert reopened is not None
        try:
            decision = await self._outcome(reopened)
        finally:
            self._open = None
        refusal = self._refusal(decision, reopened.refusal)
        if reopened.question is None and refusal is None:
            return None
        return Answer(reopened.question or Question(parked.call, parked.request.args, ""), refusal)

    def answer(self, request_id: str, decision: str, by: str = "") -> None:
        """Take a person's decision. Raise UserError if nobody waits for it, or it is none; StoreFailed."""
        if decision not in get_args(Decision):
            raise UserError(f"{decision!r} is not a decision; it is one of {', '.join(get_args(Decision))}")
        waiting = self._open
        if waiting is None or waiting.request.id != request_id or waiting.outcome.done() or waiting.is_taken:
            raise UserError(f"no approval request {request_id!r} is waiting: {self._told(request_id)}")
        answer = ApprovalAnswer(request_id, cast(Decision, decision), by)
        waiting.is_taken = True
        try:
            allowed = None
            if decision == "allow_always" and waiting.question is not None:
                allowed = self._approver.remember(waiting.question)
            waiting.run.decided(answer, *([allowed] if allowed is not None else []))
        except BaseException:
            waiting.is_taken = False
            raise
        self._remember(answer)
        waiting.outcome.set_result(answer.decision)

    def give_up(self, why: Omission) -> None:
        """Nobody can answer any more, or nobody needs the answer."""
        if self.pending is not None and self._open is not None:
            self._open.outcome.set_result(why)

    def park(self) -> None:
        """Leave the question to another process: whoever waits here for what comes of it gets LeftParked."""
        if self.pending is not None and self._open is not None:
            self._open.outcome.set_result(None)

    async def _outcome(self, waiting: _Open) -> Decision | Omission:
        """Wait for an answer, or the deadline. What no person decided is recorded here."""
        if not waiting.outcome.done():
            await asyncio.wait({waiting.outcome}, timeout=waiting.left_s)
        if not waiting.outcome.done():
            waiting.outcome.set_result("expired")
        decision = waiting.outcome.result()
        if decision is None:
            raise LeftParked
        if waiting.request.id not in self._answers:
            answer = ApprovalAnswer(waiting.request.id, decision)
            self._remember(answer)
            waiting.run.decided(answer)
        return decision

    def _remember(self, answer: ApprovalAnswer) -> None:
        self._answers[answer.id] = answer
        while len(self._answers) > _REMEMBERED:
            del self._answers[next(iter(self._answers))]

    def _told(self, request_id: str) -> str:
        """Return what is known of a question that does not wait."""
        answer = self._answers.get(request_id)
        match answer.decision if answer is not None else None:
            case None:
                return "it was answered, expired or never made"
            case "expired":
                return "nobody answered it in time"
            case "unanswerable":
                return "there was nobody left who could answer it"
            case "aborted":
                return "its run was aborted"
            case decision:
                return f"the answer was {decision}{f', by {answer.by}' if answer is not None and answer.by else ''}"

    def _refusal(self, decision: Decision | Omission, expired: str) -> str | None:
        match decision:
            case "allow_once" | "allow_always":
                return None
            case "reject":
                return "not run: the user refused this call"
            case "expired":
                return expired
            case "unanswerable":
                return _NOBODY
            case "aborted":
                return "not run: the run was aborted"


def _opened(run: Run, request: ApprovalRequest, question: Question | None, left_s: float, refusal: str) -> _Open:
    return _Open(run, request, question, left_s, refusal, asyncio.get_running_loop().create_future())


def _number(request_id: str) -> int:
    last = request_id.rpartition("_")[2]
    return int(last) if last.isdecimal() else 0
