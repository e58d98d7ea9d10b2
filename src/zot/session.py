"""One live conversation: prompts in, events out, one run at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from zot.agent.compaction import compact
from zot.agent.hooks import Answer, Jobs, NoJobs, Question
from zot.agent.loop import Agent
from zot.agent.questions import Questions
from zot.agent.run import Run
from zot.agent.transcript import Transcript, repaired
from zot.errors import AgentError, QueueFull, RuntimeBusy, RuntimeClosed, StoreFailed, UserError
from zot.events import Done, Error
from zot.history import History, Subscriber
from zot.job import Job, checked_prompt
from zot.messages import Counters, ImageBlock, Message, timestamp
from zot.store import MemoryStore, Spliced, Store

log = logging.getLogger("zot")

#: How many prompts may wait behind the running one.
MAX_QUEUE = 32


class State(msgspec.Struct, frozen=True):
    """A snapshot of a session."""

    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters


class Session:
    """A conversation with an agent. Everything that happens is stored, then shown to all subscribers."""

    def __init__(
        self,
        agent: Agent,
        store: Store | None = None,
        *,
        jobs: Jobs | None = None,
        key: str = "session",
        now: Callable[[], str] = timestamp,
    ) -> None:
        self.agent = agent
        self._jobs = jobs or NoJobs()
        self._key = key
        self._history = History(
            store if store is not None else MemoryStore(),
            charge=agent.charge,
            observe=agent.extensions.observe,
            on_failure=self._on_store_failure,
        )
        self._now = now
        self._store_failure: StoreFailed | None = None
        self._waiting: deque[Job] = deque()
        self._steering: deque[Job] = deque()
        self._running: Job | None = None
        self._task: asyncio.Task[Question | None] | None = None
        self._questions = Questions()
        self._worker: asyncio.Task[None] | None = None
        self._aborting = False
        self._closed = False

    # What callers may ask.

    @property
    def busy(self) -> bool:
        """True from the moment a prompt or compact is accepted until the last `done` is out."""
        return self._running is not None

    @property
    def transcript(self) -> Transcript:
        """The conversation so far."""
        return self._history.transcript

    @property
    def totals(self) -> Counters:
        """What it has used so far."""
        return self._history.totals

    def state(self) -> State:
        """Return a snapshot."""
        model = self.agent.model
        return State(self.agent.provider.name, model.id, self.agent.cwd, len(self.transcript), self.busy, self.totals)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Let ``subscriber`` hear everything from now on; call what is returned to stop."""
        return self._history.subscribe(subscriber)

    def prompt(
        self,
        text: str,
        images: Sequence[ImageBlock] = (),
        *,
        started: Callable[[], None] = lambda: None,
        dropped: Callable[[str], None] = lambda reason: None,
    ) -> Job:
        """Run a prompt, after those that came before. Raise UserError if it cannot be accepted.

        ``started`` is called right before its first event, ``dropped`` with the reason if it will never run.
        """
        return self._accept(Job(*checked_prompt(text, images), started=started, dropped=dropped))

    def steer(
        self,
        text: str,
        images: Sequence[ImageBlock] = (),
        *,
        started: Callable[[], None] = lambda: None,
        dropped: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Say something to the running prompt before its next model call; when idle, the same as `prompt`.

        If the run ends before it can be said, it becomes a prompt of its own, ahead of the others.
        """
        job = Job(*checked_prompt(text, images), started=started, dropped=dropped)
        if self._closed or self._running is None or self._running.is_compact:
            self._accept(job)
        else:
            self._check_room()
            self._steering.append(job)

    def compact(
        self,
        *,
        started: Callable[[], None] = lambda: None,
        dropped: Callable[[str], None] = lambda reason: None,
    ) -> Job:
        """Summarise the conversation, after the prompts that came before."""
        return self._accept(Job(None, (), started=started, dropped=dropped))

    def abort(self, *, queue: bool = False) -> None:
        """End the running prompt or compact, whatever it is doing; ``queue`` drops those that wait, too."""
        if queue:
            self._drop_waiting("dropped by an abort")
        # Once is enough: a second cancellation would interrupt the clean-up after the first.
        if self._task is not None and not self._aborting:
            self._aborting = True
            self._task.cancel()
            self._questions.give_up()

    @property
    def aborting(self) -> bool:
        """True while the running job is on its way to its end because somebody wanted it to."""
        return self.busy and self._aborting

    @property
    def waiting(self) -> int:
        """How many jobs wait behind the running one."""
        return len(self._waiting)

    def cancel(self, job: Job) -> None:
        """End ``job``: abort it if it runs, and what was to steer it; drop it if it waits; else leave it be."""
        if job is self._running:
            _drop(self._steering, "what it was to steer was cancelled")
            self.abort()
        elif job in self._waiting:
            self._waiting.remove(job)
            job.drop("cancelled before it began")

    def approve(self, request_id: str, decision: str) -> None:
        """Answer a question about a tool call. Raise UserError if nobody waits for it, or it is no decision."""
        self._questions.answer(request_id, decision)

    def approver_left(self) -> None:
        """Hear that a subscriber can no longer approve. A question that nobody else can answer is over."""
        if not self._can_ask():
            self._questions.give_up()

    def clear(self) -> None:
        """Forget the conversation; what it cost stays counted. Raise UserError while busy."""
        self.replace_messages([])

    def replace_messages(self, messages: Sequence[Message]) -> None:
        """Make ``messages`` the conversation, repaired where a provider would refuse it. Raise UserError while busy."""
        if not all(isinstance(message, Message) for message in messages):
            raise UserError("messages must be a list of Message")
        if self.busy:
            raise RuntimeBusy("the conversation cannot be changed while a prompt or compact is running; abort it first")
        self._history.say([], Spliced(0, len(self.transcript), tuple(repaired(messages))))

    def use_model(self, model_id: str) -> None:
        """Use another model of the same provider from the next model call on. Raise UserError if there is none."""
        self.agent.use_model(model_id)

    async def finish(self) -> None:
        """Wait until everything that was accepted has run."""
        while self._worker is not None:
            await asyncio.wait({self._worker})

    async def close(self) -> None:
        """Abort what runs, end what it started, drop what waits, and let go of the provider. Any number of times."""
        self._closed = True
        self._drop_waiting("the session was closed")
        self.abort()
        await self.finish()
        await self._jobs.close()
        await self.agent.provider.close()

    # How jobs run.

    def _accept(self, job: Job) -> Job:
        if self._closed:
            raise RuntimeClosed("this session is closed")
        if self._running is not None:
            self._check_room()
            self._waiting.append(job)
        else:
            run = self._begin(job)
            self._worker = asyncio.get_running_loop().create_task(self._work(run), name="zot session")
        return job

    def _check_room(self) -> None:
        if len(self._waiting) + len(self._steering) >= MAX_QUEUE:
            raise QueueFull(f"{MAX_QUEUE} prompts are waiting already; wait for one to end")

    def _begin(self, job: Job) -> Run:
        """Start a job: acknowledged and visible at once, so that an abort right behind it finds something to end."""
        self._running, self._aborting, self._store_failure = job, False, None
        self._history.run += 1
        run = Run(self._history, owners=(self._key, f"{self._key}/{self._history.run}"), now=self._now)
        job.started()
        body: Coroutine[Any, Any, Question | None]
        if job.text is None:
            body = compact(self.agent, run)
        else:
            try:
                run.prompt(job.text, job.images)
                body = self.agent.run(run, self._steer)
            except StoreFailed as problem:
                body = _fail(problem)
        self._task = asyncio.get_running_loop().create_task(body, name="zot run")
        return run

    async def _work(self, run: Run) -> None:
        """Own the runs: wait for each, say how it ended, start the next."""
        try:
            while True:
                await self._end(run)
                self._waiting.extendleft(reversed(self._steering))
                self._steering.clear()
                if not self._waiting:
                    return
                run = self._begin(self._waiting.popleft())
        finally:
            self._running = self._worker = None

    async def _end(self, run: Run) -> None:
        """Wait for a run and say how it ended."""
        problem = await self._outcome(run)
        if self._aborting:
            await self._end_jobs(run)
        job = self._running
        assert job is not None
        try:
            if self._store_failure is None:
                self._conclude(job, run, problem)
            # The next run must not begin, nor this one seem over, before its end is on record.
            await self._history.settled()
            failure = self._store_failure
        except StoreFailed as problem:
            failure = problem
        if failure is not None:
            # That it is over cannot be recorded, but whoever waits for the end must hear it.
            job.error = failure
            self._history.announce([Error(str(failure)), Done()])

    async def _end_jobs(self, run: Run) -> None:
        """End what the tools of an aborted run left running. Its end must be heard even if that does not work."""
        try:
            await self._jobs.end(run.owners[-1])
        except OSError:
            log.exception("what an aborted run left running could not be ended")

    async def _outcome(self, run: Run) -> BaseException | None:
        """Wait until a run is over, asking a person where it cannot go on without; return what ended it early."""
        while True:
            task = self._task
            assert task is not None
            await asyncio.wait({task})
            if task.cancelled():
                return asyncio.CancelledError()
            question = None if (problem := task.exception()) is not None else task.result()
            if question is None:
                return problem
            try:
                await self._ask(run, question)
            except Exception as failure:
                # Whatever it is, it ends this run and not the session's worker.
                return failure
            if self._aborting:
                return asyncio.CancelledError()
            self._task = asyncio.get_running_loop().create_task(self.agent.run(run, self._steer), name="zot run")

    async def _ask(self, run: Run, question: Question) -> None:
        """Let a person decide about a call, if there is one who can, and remember the answer."""
        can_ask = self._can_ask() and not self._aborting
        refusal = await self._questions.ask(run, question, self.agent.approver, can_ask=can_ask)
        run.answers[question.call.id] = Answer(question, refusal)

    def _can_ask(self) -> bool:
        return any(subscriber.can_approve for subscriber in self._history.subscribers)

    def _conclude(self, job: Job, run: Run, problem: BaseException | None) -> None:
        """Say how a run ended."""
        # An abort may come after the last turn and before `done`: what the run left running has then been ended.
        came_late = self._aborting and not job.is_compact
        if isinstance(problem, asyncio.CancelledError) or came_late or (problem is not None and self._aborting):
            job.aborted = True
            run.aborted()
        elif problem is not None:
            job.error = _explained(problem)
            run.failed(job.error)
        run.done()

    def _steer(self, run: Run) -> bool:
        """Say what the user wanted said meanwhile. True if there was something."""
        spoke = bool(self._steering)
        while self._steering:
            job = self._steering.popleft()
            job.started()
            assert job.text is not None
            run.prompt(job.text, job.images)
        return spoke

    def _on_store_failure(self, problem: StoreFailed) -> None:
        """What was said has not been recorded, and was not shown: the run cannot go on."""
        self._store_failure = problem
        self.abort()

    def _drop_waiting(self, reason: str) -> None:
        _drop(self._steering, reason)
        _drop(self._waiting, reason)


def _drop(jobs: deque[Job], reason: str) -> None:
    while jobs:
        jobs.popleft().drop(reason)


async def _fail(problem: AgentError) -> None:
    raise problem


def _explained(problem: BaseException) -> AgentError:
    """Return the error the user may see. What we did not foresee is logged here and hidden there."""
    if isinstance(problem, AgentError):
        return problem
    log.error("unexpected error in a run", exc_info=problem)
    return AgentError(f"internal error ({type(problem).__name__}); the log has the details")
