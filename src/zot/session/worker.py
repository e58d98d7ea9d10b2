"""The session's worker: runs queued jobs one at a time, in order, and requests approvals."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from zot.agent.approvals import PendingApprovals, WaitingForApproval
from zot.agent.compaction import compact
from zot.agent.hooks import ApprovalQuestion, ApprovalVerdict
from zot.agent.loop import Agent
from zot.agent.run import Run, RunPhase
from zot.errors import (
    AgentError,
    ContextExhausted,
    ContextTooLong,
    JournalDamaged,
    RunCancelled,
    RuntimeClosed,
    SessionBusy,
    StoreFailed,
    UserError,
    explained,
)
from zot.events import AgentEvent, Done, Error, TurnEnd
from zot.messages import Counters, timestamp
from zot.session.history import History
from zot.session.queue import (
    CompactJob,
    Job,
    JobQueue,
    PromptJob,
    RecordJob,
    RecoverJob,
    ReplaceJob,
    ResumedJob,
    RewindJob,
    UndoCompactJob,
    is_run,
)
from zot.session.recovery import AmongCalls, Clean, WaitingRuns, inspect, needs_lease, recover
from zot.store import Acquired, Row

if TYPE_CHECKING:
    from zot.agent.pending_questions import PendingQuestions
    from zot.events import QuestionRequest
    from zot.questions import Question, QuestionReply
    from zot.tools.checkpoints import Restorer  # Imported lazily: few sessions are rewound.

log = logging.getLogger("zot")

Clock: TypeAlias = Callable[[], str]

#: How long an aborted job may keep trying to acquire the lease.
_ACQUIRE_S = 1.0


class ToolResources(Protocol):
    """Resources that a session's tools hold beyond a call: processes left running, and files to restore."""

    @property
    def holds(self) -> bool:
        """True while `close` would end or remove anything."""

    def files(self) -> Restorer:
        """Return an object that restores files changed by tools."""

    async def end(self, owner: str) -> None:
        """End the processes of ``owner``, a run or a session."""

    async def close(self) -> None:
        """End all processes. Idempotent."""

    def kill(self) -> None:
        """Kill all processes at once, from any thread. No tool starts another one; `close` may follow."""


class NoToolResources:
    """The resources of tools that hold nothing."""

    holds = False

    def files(self) -> Restorer:
        raise UserError("no tool of this session changes files, so none can be restored")

    async def end(self, owner: str) -> None:
        return

    async def close(self) -> None:
        return

    def kill(self) -> None:
        return


class _Current:
    """The job in progress, and how far it has come."""

    def __init__(self, job: Job) -> None:
        self.job = job
        #: Set once a run has begun, with the task that executes it until it ends or asks for an approval.
        self.run: Run | None = None
        self.task: asyncio.Task[ApprovalQuestion | None] | None = None
        #: Set while it acquires the lease.
        self.acquiring: asyncio.Timeout | None = None
        #: The reason for ending it, once it is being aborted.
        self.ended_by: AgentError | None = _aborted_early() if job.is_unwanted else None
        self.store_failure: StoreFailed | None = None
        #: Whether a run of a dead process that waits for an approval is left as it is.
        self.leaves_run = False


class Worker:
    """Runs one session's jobs: starts each, waits for it, records its end, and takes the next."""

    def __init__(
        self,
        agent: Agent,
        history: History,
        *,
        tools: ToolResources,
        key: str,
        now: Clock,
        newest: Sequence[Row],
    ) -> None:
        """``newest`` has the rows of the newest run."""
        self.queue = JobQueue()
        self.approvals = PendingApprovals(agent.approver)
        self._agent = agent
        self._history = history
        self._store = history.store
        self._tools = tools
        self._key = key
        self._now = now
        self._clock: Callable[[], float] = time.time
        self._newest: Sequence[Row] | None = newest
        #: Whether runs that wait for an approval resume here; approvals are then requested even while no subscriber can
        #: answer them.
        self._resumes = False
        #: Whether runs that were among their tool calls continue here.
        self._continues = False
        self._current: _Current | None = None
        self._working: asyncio.Task[None] | None = None
        #: Whether a run that waits for an approval is being left to another process.
        self._is_parking = False
        self._closed = False
        self._questions: PendingQuestions | None = None
        history.on_failure = self._store_failed

    @property
    def questions(self) -> PendingQuestions:
        """The questions of running tool calls to the user."""
        if self._questions is None:
            from zot.agent.pending_questions import PendingQuestions  # Imported lazily: few tools ask.

            self._questions = PendingQuestions(timeout_s=self._agent.approver.timeout_s, clock=self._clock)
        return self._questions

    @property
    def open_questions(self) -> tuple[QuestionRequest, ...]:
        """The questions that wait for an answer."""
        return () if self._questions is None else self._questions.open

    @property
    def busy(self) -> bool:
        """True from the moment a prompt or compaction is accepted until the last `done` is delivered."""
        return self._current is not None and (is_run(self._current.job) or self.queue.has_run)

    @property
    def has_begun(self) -> bool:
        """True while a prompt or compaction runs that has emitted its first event, so that its `done` will follow."""
        return self._current is not None and self._current.run is not None

    @property
    def is_idle(self) -> bool:
        """True if no job of any kind runs or waits."""
        return self._current is None and self._working is None

    @property
    def begins_later(self) -> bool:
        """True if a job accepted now must first acquire the lease; otherwise it starts at once."""
        return self._store.shared and self._current is None

    @property
    def aborting(self) -> bool:
        """True while an aborted run is ending."""
        current = self._current
        return current is not None and is_run(current.job) and current.ended_by is not None

    # Requests of callers.

    def accept(self, job: Job) -> None:
        """Start ``job``, or enqueue it. Raise QueueFull if too many wait, RuntimeClosed after `close`."""
        if self._closed:
            raise RuntimeClosed("this session is closed")
        if self._current is not None:
            self.queue.add(job)
        elif isinstance(job, ReplaceJob | UndoCompactJob) and not self._store.shared:
            self._history.replace(job.change(self._history.transcript))
            job.start()
        else:
            self._make_current(job)
            self._working = asyncio.get_running_loop().create_task(self._work(), name="zot session")

    def steer(self, job: PromptJob) -> None:
        """Add a message to the running prompt before its next model call; when idle, enqueue it as a prompt.

        During a compact it waits for the end, and an abort of the compact drops it. Raise RunCancelled if the running
        prompt or compact is being aborted.
        """
        current = self._current
        if self._closed or current is None or not is_run(current.job):
            self.accept(job)
        elif current.ended_by is not None and current.store_failure is None:
            raise _steer_aborted()
        else:
            self.queue.add_steer(job)

    def abort(self, *, queue: bool = False, why: AgentError | None = None) -> None:
        """End the running job at any point and drop its steering messages; ``queue`` drops the waiting jobs, too.

        ``why`` is the reason given if the job has not begun yet.
        """
        if queue:
            self.queue.drop(RunCancelled("dropped by an abort"))
        self.queue.drop_steers(_steer_aborted())
        self._stop(why or _aborted_early())

    def cancel(self, job: Job) -> None:
        """End ``job``: abort it if it runs, drop it if it waits, ignore it if it is over."""
        if self._current is not None and job is self._current.job:
            self.abort()
        elif self.queue.remove(job):
            job.drop(RunCancelled("cancelled before it began"))

    def approver_left(self) -> None:
        """Close the pending approval request and questions that no remaining subscriber can answer."""
        if not self._can_ask():
            self.approvals.give_up("unanswerable")
        if self._questions is not None and not self._can_answer():
            self._questions.give_up()

    def settings_changed(self) -> None:
        """Record changed settings in the current run; otherwise the next job records them."""
        if self._store.shared and self.has_begun:
            self._history.amend([self._agent.configured()])

    async def record_settings(self) -> None:
        """Record the current settings, unless a run does."""
        if self._current is None and self._store.shared:
            job = RecordJob()  # Every job records changed settings before its own rows.
            with suppress(SessionBusy, RunCancelled):
                self.accept(job)
                await job.over

    async def record(self, *rows: Row, used: Counters | None = None) -> None:
        """Record rows that belong to no run, such as a setting for the next time the session is opened, and wait until
        they are stored.

        ``used`` are tokens to count in a row of their own. Raise AgentError, SessionBusy if another process runs the
        session.
        """
        job = RecordJob(rows, used)
        try:
            self._amend(job)
        except StoreFailed:  # No run holds the lease.
            self.accept(job)
            await job.over
        else:
            await self._store.settled()

    async def recover(
        self,
        waiting: WaitingRuns = WaitingRuns.LEAVE,
        *,
        always_asks: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Recover from the death of a process that ran this session: end its run, or resume it, as ``waiting`` says.

        With RESUME, a run that waits for an approval is pending again until it is answered or its deadline, by
        ``clock``, has passed; and if the session ``always_asks``, approvals are from now on requested even while no
        subscriber can answer. CONTINUE, too, holds from now on. Does nothing while another process runs the session.
        Raise AgentError.
        """
        self._clock = clock
        self._continues = self._continues or waiting is WaitingRuns.CONTINUE
        self._resumes = self._resumes or self._continues or (waiting is WaitingRuns.RESUME and always_asks)
        newest, self._newest = self._newest, None
        if self._current is not None or not self._store.shared:
            return
        if newest is not None:
            found = inspect(self._history.transcript, newest, now=self._now)
            self._history.must_recover = not isinstance(found, Clean)
            if not needs_lease(found, self._store, waiting):
                return
        if waiting is WaitingRuns.IGNORE:
            return
        job = RecoverJob(waiting)
        self.accept(job)
        try:
            await job.over
        except (SessionBusy, RunCancelled):
            pass
        except JournalDamaged:
            raise
        except StoreFailed as problem:  # As on a full disk: the session can be read, and its next job recovers it.
            log.warning("a run that a dead process left cannot be ended yet: %s", problem)

    async def finish(self) -> None:
        """Wait until the queue is empty and nothing runs."""
        while self._working is not None:
            await asyncio.wait({self._working})

    async def close(self, *, parks: bool = False, why: AgentError | None = None) -> None:
        """Abort the run, drop the queue, and accept nothing more. Idempotent.

        With ``parks``, a run that waits for an approval is left for another process to resume, and so is one
        among its tool calls if another process may continue it.
        """
        self._closed = True
        why = why or RunCancelled("the session was closed")
        self.queue.drop(why)
        if parks and self._store.shared and self.approvals.pending is not None:
            self._is_parking = True
            self.approvals.park()
        else:
            run = None if self._current is None or self.aborting else self._current.run
            is_among_calls = run is not None and run.phase is RunPhase.USING_TOOLS
            self._is_parking = parks and self._store.is_continued and is_among_calls
            self.abort(why=why)
        await self.finish()

    # The job in progress.

    async def _work(self) -> None:
        """Run jobs until the queue is empty."""
        try:
            while self._current is not None:
                if self._current.run is not None or await self._acquire(self._current):
                    await self._execute(self._current)
                following = self.queue.next()
                if following is None:
                    return
                self._make_current(following)
        finally:
            self._current = self._working = None

    def _make_current(self, job: Job) -> None:
        """Make ``job`` the current one. Where no lease is needed it begins at once, so that its caller learns so at
        once."""
        current = self._current = _Current(job)
        if not self._store.shared:
            self._begin(current)

    def _begin(self, current: _Current) -> None:
        """Start a run at once, so that an abort right after has something to cancel."""
        if not isinstance(job := current.job, PromptJob | CompactJob):
            return
        self._history.begin_run()
        run = current.run = self._new_run()
        job.start()
        body: Coroutine[Any, Any, ApprovalQuestion | None]
        if isinstance(job, CompactJob):
            body = compact(self._agent, run)
        else:
            try:
                self._add_prompt(run, job)
                body = self._agent.run(run, self._steer)
            except StoreFailed as problem:
                body = _fail(problem)
        current.task = asyncio.get_running_loop().create_task(body, name="zot run")
        if current.ended_by is not None:
            current.task.cancel()

    def _add_prompt(self, run: Run, job: PromptJob) -> None:
        """Add a prompt to the conversation, unless it is there already."""
        text: str | None = job.text
        if job.repeated is not None:
            text = job.repeated.text_after(self._history.transcript.messages)
        if text is None:
            run.resume()
        else:
            run.prompt(text, job.images, channel=job.channel, prompt_id=job.prompt_id, by=job.by)

    def _new_run(self) -> Run:
        owners = self._key, f"{self._key}/{self._history.run}"
        return Run(self._history, owners=owners, now=self._now, ask=self._ask)

    async def _ask(self, run: Run, question: Question, call: str) -> QuestionReply:
        """Ask the user a question of a tool call."""
        number = self._history.run
        return await self.questions.ask(run, question, call=call, number=number, can_ask=self._can_answer())

    def _steer(self, run: Run) -> bool:
        """Send the waiting steering messages. True if there were any."""
        spoke = False
        while (job := self.queue.next_steer()) is not None:
            job.start()
            run.prompt(job.text, job.images, by=job.by)
            spoke = True
        return spoke

    # The lease.

    async def _acquire(self, current: _Current) -> bool:
        """Acquire the lease for the current job and recover the session. False if the job is over."""
        job = current.job
        find_answer = job.repeated.stored_answer if isinstance(job, PromptJob) and job.repeated is not None else None
        waiting: WaitingForApproval | AmongCalls | None = None
        try:
            async with asyncio.timeout(_ACQUIRE_S if current.ended_by else None) as current.acquiring:
                acquired = await self._store.begin(find_answer)
                if isinstance(job, PromptJob) and acquired.answer is not None:
                    job.stored_answer = acquired.answer
                    return False
                waiting = await self._catch_up(job, acquired)
                current.leaves_run = waiting is None and self._history.must_recover
            current.acquiring = None
            if waiting is None:
                return True
            if current.ended_by is None:
                await self._resume_first(job, waiting)
                return True
            job.drop(current.ended_by)
        except TimeoutError:
            job.drop(current.ended_by or _aborted_early())
        except Exception as problem:  # Its caller must learn that it will not run, whatever the reason.
            job.drop(explained(problem, log, "a run"))
        finally:
            current.acquiring = None
        self._store.end(parked=waiting is not None)
        return False

    async def _catch_up(self, job: Job, acquired: Acquired) -> WaitingForApproval | AmongCalls | None:
        """Load foreign rows, recover, and record changed settings. Return a run to resume first."""
        foreign, waiting = acquired.rows, self._waiting_runs(job)
        if waiting is WaitingRuns.CONTINUE and (acquired.was_aborted or not self._store.is_continued):
            waiting = WaitingRuns.RESUME
        found = await recover(self._history, foreign, waiting, now=self._now, time_s=self._clock())
        configured = self._agent.configured()
        if configured != self._history.configured:
            self._history.amend([configured])
        if foreign:
            self._history.on_foreign_rows(foreign[-1][0])
        return found

    def _waiting_runs(self, job: Job) -> WaitingRuns:
        """Return the treatment of an unfinished run after its process died, before ``job`` runs."""
        if self._continues:
            return WaitingRuns.CONTINUE
        match job:
            case RecoverJob(waiting=waiting):
                return waiting
            case RecordJob() if not self._resumes:
                return WaitingRuns.LEAVE
            case _:
                return WaitingRuns.RESUME if self._resumes else WaitingRuns.END

    async def _resume_first(self, job: Job, left: WaitingForApproval | AmongCalls) -> None:
        """Make a run that a dead process left the current job; ``job`` follows it, unless it is done by then."""
        run = self._new_run()
        if isinstance(left, WaitingForApproval):
            run.unpark(left.step)
            self.approvals.reopen(run, left, left_s=left.left_s(self._clock()))
            resumed = self._current = _Current(ResumedJob(left))
        else:
            run.unpark(left.step, left.begun)
            self.approvals.restore(run, left.rows)
            resumed = self._current = _Current(ResumedJob(None))
        resumed.run = run
        match job:
            case RecordJob() | RecoverJob():
                await self._store_rows(job)
            case _:
                self.queue.put_back(job)

    async def _store_rows(self, job: RecordJob | RecoverJob) -> None:
        """Record the rows of a job, and wait until they and those of the recovery before it are stored."""
        try:
            if isinstance(job, RecordJob):
                self._amend(job)
            await self._store.settled()
        except Exception as problem:  # Raised where `over` is awaited.
            job.drop(explained(problem, log, "a run"))
        else:
            if not job.over.done():
                job.over.set_result(None)

    def _amend(self, job: RecordJob) -> None:
        """Append the rows of a job. Raise StoreFailed if no run or job holds the lease."""
        counted = () if job.used is None else (self._history.counted(timestamp(), job.used),)
        self._history.amend([*job.rows, *counted])

    # Execution.

    async def _execute(self, current: _Current) -> None:
        """Do a job to its end and release the lease."""
        job = current.job
        try:
            match job:
                case PromptJob() | CompactJob() | ResumedJob():
                    if current.run is None:
                        self._begin(current)
                    await self._finish_run(current)
                case ReplaceJob() | UndoCompactJob():
                    self._history.replace(job.change(self._history.transcript))
                    await self._store.settled()
                    job.start()
                case RewindJob():
                    await self._rewind(job)
                case RecordJob() | RecoverJob():
                    await self._store_rows(job)
        except Exception as problem:  # An unexpected error fails this job, not those after it.
            job.drop(explained(problem, log, "a run"))
        finally:
            self._store.end(parked=job.is_parked or current.leaves_run)
            job.forget()

    async def _rewind(self, job: RewindJob) -> None:
        """Rewind the session, and resolve the job's result."""
        from zot.session.rewind import rewind  # Imported lazily: few sessions are rewound.

        try:
            result = await rewind(self._history, self._tools.files(), job.target, cwd=self._agent.cwd)
        except Exception as problem:  # Raised where `result` is awaited.
            job.fail(problem)
        else:
            if not job.result.done():
                job.result.set_result(result)

    async def _finish_run(self, current: _Current) -> None:
        """Wait for a run and record its end."""
        job, run = current.job, current.run
        assert run is not None
        problem = await self._await_run(current, run)
        job.blocked = run.blocked
        if current.ended_by is not None:
            await self._end_background(run)
        if self._is_parking and problem is not None:
            job.park()
            return
        try:
            if current.store_failure is None:
                self._emit_end(current, run, problem)
            # The end must be stored before this run counts as over and the next one begins.
            await self._store.settled()
            failure = current.store_failure
        except StoreFailed as problem:
            failure = problem
        if failure is not None:
            # The end cannot be stored, but clients that wait for it must get it.
            job.error = failure
            ended = [*self._lost_turn_end(failure), Error(str(failure)), Done()]
            self._history.deliver_unstored(ended, prompt_id=job.prompt_id if isinstance(job, PromptJob) else "")

    async def _await_run(self, current: _Current, run: Run) -> BaseException | None:
        """Wait for the end of a run, requesting approvals as needed; return the exception that ended it early, if
        any."""
        asking: Awaitable[ApprovalVerdict | None] | None = None
        if isinstance(current.job, ResumedJob) and current.job.waiting is not None:
            asking = self.approvals.resume(current.job.waiting)
        while True:
            if asking is not None and (problem := await self._await_answer(current, run, asking)) is not None:
                return problem
            if current.task is None and current.ended_by is not None:  # Aborted before it continued.
                return asyncio.CancelledError()
            if asking is not None or current.task is None:
                body = self._agent.run(run, self._steer)
                current.task = asyncio.get_running_loop().create_task(body, name="zot run")
            assert current.task is not None
            try:
                question = await current.task
            except asyncio.CancelledError:
                if not current.task.cancelled():  # The worker itself was cancelled: its event loop ends.
                    raise
                return asyncio.CancelledError()
            except Exception as failure:
                # Without this frame, which refers to the job: the job keeps its error.
                return failure.with_traceback(getattr(failure.__traceback__, "tb_next", None))
            if question is None:
                return None
            can_ask = self._can_ask() and current.ended_by is None
            asking = self.approvals.ask(run, question, number=self._history.run, can_ask=can_ask)

    async def _await_answer(
        self, current: _Current, run: Run, asking: Awaitable[ApprovalVerdict | None]
    ) -> BaseException | None:
        """Await an approval and give it to the run; return the exception that ended the run meanwhile, if any."""
        try:
            answer = await asking
        except Exception as failure:
            # Any failure ends this run, not the session's worker.
            return failure
        if answer is not None:
            run.answers[answer.question.call.id] = answer
        return None if current.ended_by is None else asyncio.CancelledError()

    def _can_ask(self) -> bool:
        """True if approvals can be requested."""
        return self._resumes or any(subscriber.can_approve for subscriber in self._history.subscribers)

    def _can_answer(self) -> bool:
        """True if a subscriber can answer questions."""
        return any(subscriber.can_answer for subscriber in self._history.subscribers)

    def _emit_end(self, current: _Current, run: Run, problem: BaseException | None) -> None:
        """Emit the events that end a run."""
        job, is_unwanted = current.job, current.ended_by is not None
        # An abort between the last turn and `done` counts: the processes that the run left have been ended by now.
        came_late = is_unwanted and not isinstance(job, CompactJob)
        if isinstance(problem, asyncio.CancelledError) or came_late or (problem is not None and is_unwanted):
            job.aborted = True
            run.aborted()
        elif problem is not None:
            job.error = explained(problem, log, "a run")
            run.failed(job.error)
            if isinstance(problem, ContextExhausted | ContextTooLong):
                is_repeated = isinstance(job, PromptJob) and job.repeated is not None
                self._agent.withdraw_prompt(run, job.text if isinstance(job, PromptJob) and is_repeated else None)
        run.done()

    def _lost_turn_end(self, failure: StoreFailed) -> list[AgentEvent]:
        """Return the end of the open turn, if subscribers have seen one begin."""
        return [TurnEnd("error", str(failure))] if self._history.in_turn else []

    async def _end_background(self, run: Run) -> None:
        """End the processes that the tools of an aborted run left. Failing that must not prevent the run's end."""
        try:
            await self._tools.end(run.owners[-1])
        except OSError:
            log.exception("the processes of an aborted run could not be ended")

    def _stop(self, why: AgentError) -> None:
        """End the running job at any point."""
        current = self._current
        if current is None:
            return
        if not is_run(current.job):  # An abort means the next run, not the short job before it.
            self.queue.abort_first_run()
        # Once is enough: a second cancellation would interrupt the clean-up after the first.
        if current.ended_by is None:
            current.ended_by = why
            if current.task is not None:
                current.task.cancel()
            self.approvals.give_up("aborted")
            if current.acquiring is not None:
                current.acquiring.reschedule(asyncio.get_running_loop().time() + _ACQUIRE_S)

    def _store_failed(self, problem: StoreFailed) -> None:
        """End the run: its rows were neither stored nor delivered."""
        if self._current is not None:
            self._current.store_failure = problem
        self._stop(_aborted_early())


def _aborted_early() -> RunCancelled:
    return RunCancelled("aborted before it began")


def _steer_aborted() -> RunCancelled:
    return RunCancelled("not delivered: the prompt it was to steer was aborted")


async def _fail(problem: AgentError) -> None:
    raise problem
