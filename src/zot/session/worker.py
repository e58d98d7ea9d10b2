"""The session's worker: runs queued jobs one at a time, in order, and requests approvals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeAlias

from zot.agent.approvals import Parked, PendingApprovals
from zot.agent.compaction import compact
from zot.agent.hooks import ApprovalQuestion, ApprovalVerdict, BackgroundProcesses
from zot.agent.loop import Agent
from zot.agent.run import Run
from zot.errors import AgentError, ContextExhausted, ContextTooLong, RunCancelled, RuntimeClosed, StoreFailed
from zot.events import AgentEvent, ApprovalRequest, Done, Error, TurnEnd
from zot.session.history import History
from zot.session.queue import ExclusiveTask, Job, JobQueue, explained
from zot.session.recovery import ResumableRun, end_open_run, load_foreign_rows, resume_or_end
from zot.store import Row, Store

log = logging.getLogger("zot")

Clock: TypeAlias = Callable[[], str]

#: How long an aborted job may keep trying to acquire the lease.
_ACQUIRE_S = 1.0


class ApprovalDriver:
    """Drives one run at a time: its task, and the approvals it waits for."""

    def __init__(self, agent: Agent, history: History, steer: Callable[[Run], bool]) -> None:
        self._agent = agent
        self._history = history
        self._steer = steer
        self._questions = PendingApprovals(agent.approver)
        self._task: asyncio.Task[ApprovalQuestion | None] | None = None
        self._aborting = False
        #: The state of a run that another process began.
        self._parked: Parked | None = None
        #: Whether to request approvals even while no subscriber can answer them.
        self.always_asks = False

    @property
    def pending(self) -> ApprovalRequest | None:
        """The approval request that the run waits for."""
        return self._questions.pending

    @property
    def prompted_by(self) -> Collection[str]:
        """Names of the tokens whose clients prompted or steered the run that waits."""
        return self._questions.prompted_by

    def begin(self, body: Coroutine[Any, Any, ApprovalQuestion | None]) -> None:
        """Start a run's task at once, so that an abort right after has something to cancel."""
        self._aborting = False
        self._task = asyncio.get_running_loop().create_task(body, name="zot run")

    def take_up(self, run: Run, taken: ResumableRun) -> None:
        """Reopen the approval request of a run that another process began, with its deadline."""
        self._aborting, self._task, self._parked = False, None, taken.parked
        run.go_on(taken.parked.step)
        self._questions.reopen(run, taken.parked, taken.rows, left_s=taken.left_s)

    def abort(self) -> None:
        """End the run at any point. Call it once: a second cancellation would interrupt the clean-up."""
        self._aborting = True
        if self._task is not None:
            self._task.cancel()
        self._questions.give_up("aborted")

    def park(self) -> None:
        """Leave a run that waits for an approval to another process, without further events here."""
        self._questions.park()

    def approve(self, request_id: str, decision: str, by: str) -> None:
        """Answer an approval request. Raise UserError if it is not open, or the decision is unknown."""
        self._questions.answer(request_id, decision, by)

    def approver_left(self) -> None:
        """Close the pending approval request if no remaining subscriber can answer it."""
        if not self.can_ask():
            self._questions.give_up("unanswerable")

    def can_ask(self) -> bool:
        """True if approvals can be requested."""
        return self.always_asks or any(subscriber.can_approve for subscriber in self._history.subscribers)

    async def outcome(self, run: Run) -> BaseException | None:
        """Wait for the end of a run, requesting approvals as needed; return the exception that ended it early, if
        any."""
        parked, self._parked = self._parked, None
        asking: Awaitable[ApprovalVerdict | None] | None = None if parked is None else self._questions.resume(parked)
        while True:
            if asking is not None:
                problem = await self._await_answer(run, asking)
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

    async def _await_answer(self, run: Run, asking: Awaitable[ApprovalVerdict | None]) -> BaseException | None:
        """Await an approval and give it to the run; return the exception that ended the run meanwhile, if any."""
        try:
            answer = await asking
        except Exception as failure:
            # Any failure ends this run, not the session's worker.
            return failure
        if answer is not None:
            run.answers[answer.question.call.id] = answer
        return asyncio.CancelledError() if self._aborting else None


class Worker:
    """Runs one session's jobs: starts each, waits for it, records its end, and takes the next."""

    def __init__(
        self,
        agent: Agent,
        history: History,
        store: Store,
        *,
        jobs: BackgroundProcesses,
        key: str,
        now: Clock,
        newest: Sequence[Row],
    ) -> None:
        """``newest`` has the rows of the newest run."""
        self._agent = agent
        self._history = history
        self._store = store
        self._jobs = jobs
        self._key = key
        self._now = now
        self._newest: Sequence[Row] | None = newest
        #: Compared to approval deadlines; None until runs may be taken up here.
        self._clock: Callable[[], float] | None = None
        self._acquiring: asyncio.Timeout | None = None
        self._run: Run | None = None
        self._store_failure: StoreFailed | None = None
        self._waiting = JobQueue()
        self._running: Job | None = None
        self._driver = ApprovalDriver(agent, history, self._steer)
        #: Whether a run that waits for an approval is being left to another process.
        self._is_parking = False
        self._working: asyncio.Task[None] | None = None
        #: The reason for ending the running job, once it is being aborted.
        self._ended_by: AgentError | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """True from the moment a prompt or compaction is accepted until the last `done` is delivered."""
        return self._running is not None and not (self._running.is_quiet and self._waiting.is_quiet)

    @property
    def has_begun(self) -> bool:
        """True while a prompt or compaction runs that has emitted its first event, so that its `done` will follow."""
        return self._run is not None and self.busy

    @property
    def pending(self) -> ApprovalRequest | None:
        """The approval request that the running job waits for."""
        return self._driver.pending

    @property
    def prompted_by(self) -> Collection[str]:
        """Names of the tokens whose clients prompted or steered the run that waits for an approval."""
        return self._driver.prompted_by

    @property
    def is_idle(self) -> bool:
        """True if no job of any kind runs or waits."""
        return self._running is None and self._working is None

    @property
    def begins_later(self) -> bool:
        """True if a job accepted now must first acquire the lease; otherwise it starts at once."""
        return self._store.shared and self._running is None

    @property
    def aborting(self) -> bool:
        """True while an aborted job is ending."""
        return self._running is not None and not self._running.is_quiet and self._ended_by is not None

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for the running one."""
        return len(self._waiting)

    def accept(self, job: Job) -> Job:
        """Start ``job``, or enqueue it. Raise QueueFull if too many wait, RuntimeClosed after `close`."""
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
        """Add a message to the running prompt before its next model call; when idle, enqueue it as a prompt.

        During a compact it waits for the end, and an abort of the compact drops it. Raise RunCancelled if the running
        prompt or compact is being aborted.
        """
        if self._closed or self._running is None or self._running.is_quiet:
            self.accept(job)
        elif self._ended_by is not None and self._store_failure is None:
            raise _steer_aborted()
        else:
            self._waiting.add_steer(job)

    def abort(self, *, queue: bool = False, why: AgentError | None = None) -> None:
        """End the running job at any point and drop its steering messages; ``queue`` drops the waiting jobs, too.

        ``why`` is the reason given if the job has not begun yet.
        """
        if queue:
            self.drop_waiting(RunCancelled("dropped by an abort"))
        self._waiting.drop_steers(_steer_aborted())
        self._stop(why or _aborted_early())

    def _stop(self, why: AgentError) -> None:
        """End the running job at any point."""
        if self._running is not None and self._running.is_quiet:  # An abort means the next run, not an edit or errand.
            self._waiting.forestall()
        # Once is enough: a second cancellation would interrupt the clean-up after the first.
        if self._running is not None and self._ended_by is None:
            self._ended_by = why
            self._driver.abort()
            if self._acquiring is not None:
                self._acquiring.reschedule(asyncio.get_running_loop().time() + _ACQUIRE_S)

    def cancel(self, job: Job) -> None:
        """End ``job``: abort it if it runs, drop it if it waits, ignore it if it is over."""
        if job is self._running:
            self.abort()
        elif self._waiting.remove(job):
            job.drop(RunCancelled("cancelled before it began"))

    def take_back(self, prompt_id: str) -> None:
        """Withdraw the waiting job or steering message with this id. Raise UserError if there is none."""
        self._waiting.take_out(prompt_id).drop(RunCancelled("it was taken back before it was said"))

    def approve(self, request_id: str, decision: str, by: str) -> None:
        """Answer an approval request. Raise UserError if it is not open, or the decision is unknown."""
        self._driver.approve(request_id, decision, by)

    def approver_left(self) -> None:
        """Close the pending approval request if no remaining subscriber can answer it."""
        self._driver.approver_left()

    def model_changed(self) -> None:
        """Record changed settings in the current run; otherwise the next run records them."""
        if self._store.shared and self._running is not None and self._run is not None:
            self._history.amend([self._agent.configured()])

    async def keep_choice(self) -> None:
        """Record the current settings, unless a run does."""
        if self._running is None and self._store.shared:
            errand = ExclusiveTask(self._history.settled)  # Every job records changed settings before it starts.
            self.accept(Job(None, (), started=lambda: None, dropped=errand.drop, errand=errand.run, passes=True))
            await asyncio.wait({errand.over})

    async def finish(self) -> None:
        """Wait until the queue is empty and nothing runs."""
        while self._working is not None:
            await asyncio.wait({self._working})

    async def mend(self) -> None:
        """End a run that a dead process left open, unless another process runs the session."""
        newest, self._newest = self._newest, None
        if newest is not None and self._history.must_recover and self._running is None:
            await end_open_run(self._history, self._store, newest, now=self._now)

    async def take_up(self, clock: Callable[[], float]) -> None:
        """Recover like `mend`, but resume a run that waits for an approval. From now on approvals are always
        requested."""
        self._driver.always_asks, self._clock = True, clock
        newest, self._newest = self._newest, None
        if newest is None:
            await self.keep_choice()  # Acquiring the lease recovers runs left since.
            return
        if not self._history.must_recover or self._running is not None:
            return
        taken = await resume_or_end(self._history, self._store, newest, now=self._now, clock=clock)
        if taken is None:
            return
        try:
            self._amend_configured()
            self._resume(taken)
        except BaseException:
            self._store.end(parked=True)
            raise
        self._working = asyncio.get_running_loop().create_task(self._work(), name="zot session")

    async def close(self, *, parks: bool = False, why: AgentError | None = None) -> None:
        """Abort the run, drop the queue, and accept nothing more. Idempotent.

        With ``parks``, a run that waits for an approval is left for another process to take up.
        """
        self._closed = True
        why = why or RunCancelled("the session was closed")
        self.drop_waiting(why)
        if parks and self._store.shared and self.pending is not None:
            self._is_parking = True
            self._driver.park()
        else:
            self.abort(why=why)
        await self.finish()

    def store_failed(self, problem: StoreFailed) -> None:
        """End the run: its rows were neither stored nor delivered."""
        self._store_failure = problem
        self._stop(_aborted_early())

    def drop_waiting(self, why: AgentError) -> None:
        """Drop every job that has not begun."""
        self._waiting.drop(why)

    def drop_prompts(self, why: AgentError) -> None:
        """Drop every prompt and compaction that has not begun, but no edit or errand."""
        self._waiting.drop_prompts(why)

    def _take(self, job: Job) -> None:
        """Make ``job`` the running one. Where no lease is needed it begins at once, so that its caller learns so at
        once."""
        self._running, self._run, self._store_failure = job, None, None
        self._ended_by = _aborted_early() if job.is_unwanted else None
        if not self._store.shared:
            self._begin(job)

    def _begin(self, job: Job) -> Run:
        """Start a run at once, so that an abort right after has something to cancel."""
        self._history.begin_run()
        run = self._run = self._new_run()
        job.start()
        body: Coroutine[Any, Any, ApprovalQuestion | None]
        if job.text is None:
            body = compact(self._agent, run)
        else:
            try:
                if (words := job.words(self._history.transcript.messages)) is None:
                    run.resume()
                else:
                    run.prompt(words, job.images, channel=job.channel, prompt_id=job.prompt_id, by=job.by)
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
        """Run jobs until the queue is empty."""
        try:
            while self._running is not None:
                if self._run is not None or await self._acquire(self._running):
                    await self._finish(self._running)
                following = self._waiting.next()
                if following is None:
                    return
                self._take(following)
        finally:
            self._running = self._working = None

    async def _acquire(self, job: Job) -> bool:
        """Acquire the lease for ``job`` and load foreign rows. False if ``job`` was dropped."""
        try:
            async with asyncio.timeout(_ACQUIRE_S if self._ended_by else None) as self._acquiring:
                others = await self._store.begin()
                taken = await load_foreign_rows(self._history, self._store, others, now=self._now, clock=self._clock)
                self._amend_configured()
                if others:
                    self._history.overheard(others[-1][0])
        except TimeoutError:
            job.drop(self._ended_by or _aborted_early())
        except Exception as problem:  # Its caller must learn that it will not run, whatever the reason.
            job.drop(explained(problem))
        else:
            return taken is None or self._resume_instead(job, taken)
        finally:
            self._acquiring = None
        self._store.end()
        return False

    def _resume_instead(self, job: Job, taken: ResumableRun) -> bool:
        """Resume a run that waits for an approval and put ``job`` back in the queue. False if ``job`` was aborted:
        then nothing is resumed."""
        if self._ended_by is not None:
            job.drop(self._ended_by)
            self._store.end(parked=True)
            return False
        if job.passes:
            job.drop(RunCancelled("a run goes on"))
        else:
            self._waiting.put_back(job)
        self._resume(taken)
        return True

    def _resume(self, taken: ResumableRun) -> None:
        run = self._new_run()
        self._driver.take_up(run, taken)
        self._running, self._run, self._ended_by = Job.going_on(), run, None

    def _amend_configured(self) -> None:
        configured = self._agent.configured()
        if configured != self._history.configured:
            self._history.amend([configured])

    async def _finish(self, job: Job) -> None:
        """Run a job to its end and release the lease."""
        try:
            if job.errand is not None:
                await job.errand()
            elif job.edit is None:
                await self._end(self._run or self._begin(job))
            else:
                self._history.replace(job.edit(self._history.transcript))
                await self._history.settled()
                job.start()
        except Exception as problem:  # An unexpected error fails this job, not those after it.
            job.drop(explained(problem))
        finally:
            self._store.end(parked=self._is_parking)
            job.forget()

    async def _end(self, run: Run) -> None:
        """Wait for a run and record its end."""
        job = self._running
        assert job is not None
        problem = await self._driver.outcome(run)
        if self._is_parking:
            job.park()
            return
        if self._ended_by is not None:
            await self._end_jobs(run)
        try:
            if self._store_failure is None:
                self._conclude(job, run, problem)
            # The end must be stored before this run counts as over and the next one begins.
            await self._history.settled()
            failure = self._store_failure
        except StoreFailed as problem:
            failure = problem
        if failure is not None:
            # The end cannot be stored, but clients that wait for it must get it.
            job.error = failure
            ended = [*self._lost_turn_end(failure), Error(str(failure)), Done()]
            self._history.announce(ended, prompt_id=job.prompt_id)

    def _lost_turn_end(self, failure: StoreFailed) -> list[AgentEvent]:
        """Return the end of the open turn, if subscribers have seen one begin."""
        return [TurnEnd("error", str(failure))] if self._history.in_turn else []

    async def _end_jobs(self, run: Run) -> None:
        """End the processes that the tools of an aborted run left. Failing that must not prevent the run's end."""
        try:
            await self._jobs.end(run.owners[-1])
        except OSError:
            log.exception("the processes of an aborted run could not be ended")

    def _conclude(self, job: Job, run: Run, problem: BaseException | None) -> None:
        """Emit the events that end a run."""
        # An abort between the last turn and `done` counts: the processes that the run left have been ended by now.
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
        """Send the waiting steering messages. True if there were any."""
        spoke = False
        while (job := self._waiting.next_steer()) is not None:
            job.start()
            run.prompt(job.text or "", job.images, by=job.by)
            spoke = True
        return spoke


def _aborted_early() -> RunCancelled:
    return RunCancelled("aborted before it began")


def _steer_aborted() -> RunCancelled:
    return RunCancelled("not delivered: the prompt it was to steer was aborted")


async def _fail(problem: AgentError) -> None:
    raise problem
