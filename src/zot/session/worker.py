"""The session's worker: runs queued jobs one at a time, in order, and asks for approvals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from zot.agent.approvals import Parked, Questions
from zot.agent.compaction import compact
from zot.agent.hooks import Answer, Jobs, Question
from zot.agent.loop import Agent
from zot.agent.run import Run
from zot.errors import AgentError, ContextExhausted, ContextTooLong, RunCancelled, RuntimeClosed, StoreFailed
from zot.events import AgentEvent, ApprovalRequest, Done, Error, TurnEnd
from zot.session.history import History
from zot.session.queue import Errand, Job, Waiting, explained
from zot.session.recovery import TakenUp, catch_up, mend, take_up
from zot.store import Row, Store


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


log = logging.getLogger("zot")

Clock: TypeAlias = Callable[[], str]

#: How long an abort lets a session try to become its store's writer.
_ENTER_S = 1.0


class Worker:
    """Owns the runs of one session: begins each, waits for it, says how it ended, and begins the next."""

    def __init__(
        self, agent: Agent, history: History, store: Store, *, jobs: Jobs, key: str, now: Clock, newest: Sequence[Row]
    ) -> None:
        """``newest`` has what is known of the newest run."""
        self._agent = agent
        self._history = history
        self._store = store
        self._jobs = jobs
        self._key = key
        self._now = now
        self._newest: Sequence[Row] | None = newest
        #: Says whether it is too late for an answer, once there always is somebody to ask.
        self._clock: Callable[[], float] | None = None
        self._entering: asyncio.Timeout | None = None
        self._run: Run | None = None
        self._store_failure: StoreFailed | None = None
        self._waiting = Waiting()
        self._running: Job | None = None
        self._driver = Driver(agent, history, self._steer)
        #: Whether what waits for a person is left to another process.
        self._leaving = False
        self._working: asyncio.Task[None] | None = None
        #: Why the running job is on its way to its end, if somebody wanted that.
        self._ended_by: AgentError | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """True from the moment a prompt or compact is accepted until the last `done` is out."""
        return self._running is not None and not (self._running.is_quiet and self._waiting.is_quiet)

    @property
    def has_begun(self) -> bool:
        """True while a prompt or compact runs whose end will be heard, because its beginning was."""
        return self._run is not None and self.busy

    @property
    def pending(self) -> ApprovalRequest | None:
        """What a person must decide before the running job goes on."""
        return self._driver.pending

    @property
    def is_idle(self) -> bool:
        """True if it does nothing at all, not even what nobody is told of."""
        return self._running is None and self._working is None

    @property
    def begins_later(self) -> bool:
        """True if a job that is accepted now must first become the store's writer; otherwise it begins at once."""
        return self._store.shared and self._running is None

    @property
    def aborting(self) -> bool:
        """True while the running job is on its way to its end because somebody wanted it to."""
        return self._running is not None and not self._running.is_quiet and self._ended_by is not None

    @property
    def waiting(self) -> int:
        """How many jobs wait behind the running one."""
        return len(self._waiting)

    def accept(self, job: Job) -> Job:
        """Do ``job``, after those that came before. Raise QueueFull if too many wait, RuntimeClosed after `close`."""
        if self._closed:
            raise RuntimeClosed("this session is closed")
        if self._running is not None:
            self._waiting.add(job)
        elif job.edit is not None and not self._store.shared:
            self._history.replace(job.edit(self._history.transcript))
            job.start()
        else:
            self._take(job)
            self._working = asyncio.get_running_loop().create_task(self._work(), name="zot session")
        return job

    def steer(self, job: Job) -> None:
        """Say something to the running prompt before its next model call; when idle, it is a prompt like any other.

        Raise RunCancelled if that prompt is being aborted.
        """
        if self._closed or self._running is None or self._running.is_compact or self._running.is_quiet:
            self.accept(job)
        elif self._ended_by is not None and self._store_failure is None:
            raise _steers_nothing()
        else:
            self._waiting.add_steer(job)

    def abort(self, *, queue: bool = False, why: AgentError | None = None) -> None:
        """End the running job, whatever it does, and drop what was to steer it; ``queue`` drops those that wait, too.

        ``why`` is what is heard of one that has not begun by then.
        """
        if queue:
            self.drop_waiting(RunCancelled("dropped by an abort"))
        self._waiting.drop_steers(_steers_nothing())
        self._stop(why or _unwanted())

    def _stop(self, why: AgentError) -> None:
        """Let the running job end, whatever it does."""
        if self._running is not None and self._running.is_quiet:  # Then what waits behind it is meant.
            self._waiting.forestall()
        # Once is enough: a second cancellation would interrupt the clean-up after the first.
        if self._running is not None and self._ended_by is None:
            self._ended_by = why
            self._driver.abort()
            if self._entering is not None:
                self._entering.reschedule(asyncio.get_running_loop().time() + _ENTER_S)

    def cancel(self, job: Job) -> None:
        """End ``job``: abort it if it runs, and what was to steer it; drop it if it waits; else leave it be."""
        if job is self._running:
            self.abort()
        elif self._waiting.remove(job):
            job.drop(RunCancelled("cancelled before it began"))

    def take_back(self, prompt_id: str) -> None:
        """Drop what waits, or is to steer, by this name. Raise UserError if nothing does any more."""
        self._waiting.take_out(prompt_id).drop(RunCancelled("it was taken back before it was said"))

    def approve(self, request_id: str, decision: str, by: str) -> None:
        """Answer a question about a tool call. Raise UserError if nobody waits for it, or it is no decision."""
        self._driver.approve(request_id, decision, by)

    def approver_left(self) -> None:
        """Hear that a subscriber can no longer approve. A question that nobody else can answer is over."""
        self._driver.approver_left()

    def model_changed(self) -> None:
        """Record what the session works with from here on, if a run is going on; else the next one does."""
        if self._store.shared and self._running is not None and self._run is not None:
            self._history.amend([self._agent.configured()])

    async def keep_choice(self) -> None:
        """Record what the session works with now, unless a run does it."""
        if self._running is None and self._store.shared:
            errand = Errand(self._history.settled)  # Whatever has its turn has that recorded before.
            self.accept(Job(None, (), started=lambda: None, dropped=errand.drop, errand=errand.run, passes=True))
            await asyncio.wait({errand.over})

    async def finish(self) -> None:
        """Wait until everything that was accepted has been done."""
        while self._working is not None:
            await asyncio.wait({self._working})

    async def mend(self) -> None:
        """End the run that a dead process left without an end, if there is one and nobody else runs the session."""
        newest, self._newest = self._newest, None
        if newest is not None and self._history.must_recover and self._running is None:
            await mend(self._history, self._store, newest, now=self._now)

    async def take_up(self, clock: Callable[[], float]) -> None:
        """The same, but a run that waits for a person goes on here. From now on there always is somebody to ask."""
        self._driver.always_asks, self._clock = True, clock
        newest, self._newest = self._newest, None
        if newest is None:
            await self.keep_choice()  # What others have left since is seen to on the way.
            return
        if not self._history.must_recover or self._running is not None:
            return
        taken = await take_up(self._history, self._store, newest, now=self._now, clock=clock)
        if taken is None:
            return
        try:
            self._amend_configured()
            self._go_on(taken)
        except BaseException:
            self._store.end(parked=True)
            raise
        self._working = asyncio.get_running_loop().create_task(self._work(), name="zot session")

    async def close(self, *, parks: bool = False, why: AgentError | None = None) -> None:
        """Abort what runs, drop what waits, and take nothing more. Any number of times.

        With ``parks``, what waits for a person is not aborted: another process can take it up.
        """
        self._closed = True
        why = why or RunCancelled("the session was closed")
        self.drop_waiting(why)
        if parks and self._store.shared and self.pending is not None:
            self._leaving = True
            self._driver.park()
        else:
            self.abort(why=why)
        await self.finish()

    def store_failed(self, problem: StoreFailed) -> None:
        """What was said has not been recorded, and was not shown: the run cannot go on."""
        self._store_failure = problem
        self._stop(_unwanted())

    def drop_waiting(self, why: AgentError) -> None:
        """Drop everything that has not begun."""
        self._waiting.drop(why)

    def drop_prompts(self, why: AgentError) -> None:
        """Drop every prompt and compact that has not begun. What is only recorded is still done."""
        self._waiting.drop_prompts(why)

    # How jobs are done.

    def _take(self, job: Job) -> None:
        """A job's turn has come. What nobody else can write to begins at once, so that it is acknowledged at once."""
        self._running, self._run, self._store_failure = job, None, None
        self._ended_by = _unwanted() if job.is_unwanted else None
        if not self._store.shared:
            self._begin(job)

    def _begin(self, job: Job) -> Run:
        """Start a job: acknowledged and visible at once, so that an abort right behind it finds something to end."""
        self._history.begin_run()
        run = self._run = self._new_run()
        job.start()
        body: Coroutine[Any, Any, Question | None]
        if job.text is None:
            body = compact(self._agent, run)
        else:
            try:
                if (words := job.words(self._history.transcript.messages)) is None:
                    run.resume()
                else:
                    run.prompt(words, job.images, channel=job.channel, prompt_id=job.prompt_id)
                body = self._agent.run(run, self._steer)
            except StoreFailed as problem:
                body = _fail(problem)
        self._driver.begin(body)
        if self._ended_by is not None:
            self._driver.abort()
        return run

    def _new_run(self) -> Run:
        return Run(self._history, owners=(self._key, f"{self._key}/{self._history.run}"), now=self._now)

    async def _work(self) -> None:
        """Own the runs: begin each, wait for it, say how it ended, start the next."""
        try:
            while self._running is not None:
                if self._run is not None or await self._enter(self._running):
                    await self._finish(self._running)
                following = self._waiting.next()
                if following is None:
                    return
                self._take(following)
        finally:
            self._running = self._working = None

    async def _enter(self, job: Job) -> bool:
        """Become the only writer and begin ``job``. False if that cannot be; whoever wanted it has been told."""
        try:
            async with asyncio.timeout(_ENTER_S if self._ended_by else None) as self._entering:
                others = await self._store.begin()
                taken = await catch_up(self._history, self._store, others, now=self._now, clock=self._clock)
                self._amend_configured()
                if others:
                    self._history.overheard(others[-1][0])
        except TimeoutError:
            job.drop(self._ended_by or _unwanted())
        except Exception as problem:  # Whoever wanted it must hear that it will not be, whatever the reason.
            job.drop(explained(problem))
        else:
            return taken is None or self._give_way(job, taken)
        finally:
            self._entering = None
        self._store.end()
        return False

    def _give_way(self, job: Job, taken: TakenUp) -> bool:
        """Let a run that waits for a person go on, and ``job`` behind it. False if ``job`` has been aborted: then
        nothing goes on."""
        if self._ended_by is not None:
            job.drop(self._ended_by)
            self._store.end(parked=True)
            return False
        if job.passes:
            job.drop(RunCancelled("a run goes on"))
        else:
            self._waiting.put_back(job)
        self._go_on(taken)
        return True

    def _go_on(self, taken: TakenUp) -> None:
        run = self._new_run()
        self._driver.take_up(run, taken)
        self._running, self._run, self._ended_by = Job.going_on(), run, None

    def _amend_configured(self) -> None:
        configured = self._agent.configured()
        if configured != self._history.configured:
            self._history.amend([configured])

    async def _finish(self, job: Job) -> None:
        """Do what a job wants, to its end, and let others write again."""
        try:
            if job.errand is not None:
                await job.errand()
            elif job.edit is None:
                await self._end(self._run or self._begin(job))
            else:
                self._history.replace(job.edit(self._history.transcript))
                await self._history.settled()
                job.start()
        except Exception as problem:  # What was not foreseen costs this job, not those behind it.
            job.drop(explained(problem))
        finally:
            self._store.end(parked=self._leaving)
            job.forget()

    async def _end(self, run: Run) -> None:
        """Wait for a run and say how it ended."""
        job = self._running
        assert job is not None
        problem = await self._driver.outcome(run)
        if self._leaving:
            job.park()
            return
        if self._ended_by is not None:
            await self._end_jobs(run)
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
            ended = [*self._turn_lost(failure), Error(str(failure)), Done()]
            self._history.announce(ended, prompt_id=job.prompt_id)

    def _turn_lost(self, failure: StoreFailed) -> list[AgentEvent]:
        """Return the end of the turn that was shown to begin, if there is one."""
        return [TurnEnd("error", str(failure))] if self._history.in_turn else []

    async def _end_jobs(self, run: Run) -> None:
        """End what the tools of an aborted run left running. Its end must be heard even if that does not work."""
        try:
            await self._jobs.end(run.owners[-1])
        except OSError:
            log.exception("what an aborted run left running could not be ended")

    def _conclude(self, job: Job, run: Run, problem: BaseException | None) -> None:
        """Say how a run ended."""
        # An abort may come after the last turn and before `done`: what the run left running has then been ended.
        is_unwanted = self._ended_by is not None
        came_late = is_unwanted and not job.is_compact
        if isinstance(problem, asyncio.CancelledError) or came_late or (problem is not None and is_unwanted):
            job.aborted = True
            run.aborted()
        elif problem is not None:
            job.error = explained(problem)
            run.failed(job.error)
            if isinstance(problem, ContextExhausted | ContextTooLong):
                self._agent.take_back(run, job.text if job.yields else None)
        run.done()

    def _steer(self, run: Run) -> bool:
        """Say what the user wanted said meanwhile. True if there was something."""
        spoke = False
        while (job := self._waiting.next_steer()) is not None:
            job.start()
            run.prompt(job.text or "", job.images)
            spoke = True
        return spoke


def _unwanted() -> RunCancelled:
    return RunCancelled("aborted before it began")


def _steers_nothing() -> RunCancelled:
    return RunCancelled("not delivered: the prompt it was to steer was aborted")


async def _fail(problem: AgentError) -> None:
    raise problem
