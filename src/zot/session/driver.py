"""Who brings a run to its end: lets the agent work, and a person decide where it cannot go on without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from zot.agent.approvals import Questions
from zot.agent.hooks import Answer, Question
from zot.agent.loop import Agent
from zot.agent.parking import Parked
from zot.agent.run import Run
from zot.events import ApprovalRequest
from zot.session.history import History
from zot.session.recovery import TakenUp


class Driver:
    """Drives one run at a time. Once one is over, the next can begin."""

    def __init__(self, agent: Agent, history: History, steer: Callable[[Run], bool]) -> None:
        self._agent = agent
        self._history = history
        self._steer = steer
        self._questions = Questions(agent.approver)
        self._task: asyncio.Task[Question | None] | None = None
        self._aborting = False
        #: Where the run goes on that another process began.
        self._parked: Parked | None = None
        #: Whether there always is somebody to ask, sooner or later.
        self.always_asks = False

    @property
    def pending(self) -> ApprovalRequest | None:
        """What a person must decide before the run goes on."""
        return self._questions.pending

    def begin(self, body: Coroutine[Any, Any, Question | None]) -> None:
        """Let a run begin with ``body``, so that an abort right behind it finds something to end."""
        self._aborting = False
        self._task = asyncio.get_running_loop().create_task(body, name="zot run")

    def take_up(self, run: Run, taken: TakenUp) -> None:
        """Let a run wait that another process began, for the same answer until the same deadline."""
        self._aborting, self._task, self._parked = False, None, taken.parked
        run.go_on(taken.parked.step)
        self._questions.reopen(run, taken.parked, taken.rows, left_s=taken.left_s)

    def abort(self) -> None:
        """End the run, whatever it is doing. To be called once: a second time would interrupt the clean-up."""
        self._aborting = True
        if self._task is not None:
            self._task.cancel()
        self._questions.give_up("aborted")

    def park(self) -> None:
        """Leave a run that waits for a person to another process: nothing more is said of it here."""
        self._questions.park()

    def approve(self, request_id: str, decision: str, by: str) -> None:
        """Answer a question. Raise UserError if nobody waits for it, or it is no decision."""
        self._questions.answer(request_id, decision, by)

    def approver_left(self) -> None:
        """A subscriber can no longer approve. A question that nobody else can answer is over."""
        if not self.can_ask():
            self._questions.give_up("unanswerable")

    def can_ask(self) -> bool:
        """True if there is somebody to ask."""
        return self.always_asks or any(subscriber.can_approve for subscriber in self._history.subscribers)

    async def outcome(self, run: Run) -> BaseException | None:
        """Wait until a run is over, asking a person where it cannot go on without; return what ended it early."""
        parked, self._parked = self._parked, None
        asking: Awaitable[Answer | None] | None = None if parked is None else self._questions.resume(parked)
        while True:
            if asking is not None:
                problem = await self._hear(run, asking)
                if problem is not None:
                    return problem
                self._task = asyncio.get_running_loop().create_task(self._agent.run(run, self._steer), name="zot run")
            task = self._task
            assert task is not None
            await asyncio.wait({task})
            if task.cancelled():
                return asyncio.CancelledError()
            question = None if (problem := task.exception()) is not None else task.result()
            if question is None:
                return problem
            can_ask = self.can_ask() and not self._aborting
            asking = self._questions.ask(run, question, number=self._history.run, can_ask=can_ask)

    async def _hear(self, run: Run, asking: Awaitable[Answer | None]) -> BaseException | None:
        """Let a person decide about a call, and remember what came of it; return what ended the run meanwhile."""
        try:
            answer = await asking
        except Exception as failure:
            # Whatever it is, it ends this run and not the session's worker.
            return failure
        if answer is not None:
            run.answers[answer.question.call.id] = answer
        return asyncio.CancelledError() if self._aborting else None
