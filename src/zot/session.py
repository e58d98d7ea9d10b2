"""One live conversation: prompts in, events out, one run at a time."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from zot.agent.compaction import compact
from zot.agent.hooks import Jobs, NoJobs, Question
from zot.agent.loop import Agent
from zot.agent.questions import Questions
from zot.agent.recovery import recover
from zot.agent.run import Run
from zot.agent.transcript import Transcript, repaired
from zot.errors import AgentError, QueueFull, RunCancelled, RuntimeBusy, RuntimeClosed, StoreFailed, UserError
from zot.events import Done, Error
from zot.history import History, Subscriber
from zot.job import Errand, Job, Wish, checked_prompt
from zot.messages import ZERO, Counters, ImageBlock, Message, timestamp
from zot.past import everything, fork_point
from zot.store import Configured, MemoryStore, Row, Spliced, Store

if TYPE_CHECKING:
    from zot.rewind import Files, Rewound

log = logging.getLogger("zot")

#: How many prompts may wait behind the running one.
MAX_QUEUE = 32
#: How long an abort lets a session try to become its store's writer.
_ENTER_S = 1.0


async def _nothing() -> None:
    pass


class Past(msgspec.Struct, frozen=True):
    """What a session remembers when it begins: changes of its transcript, what it has used, and what to let go of."""

    rows: Sequence[Row] = ()
    totals: Counters = ZERO
    release: Callable[[], Awaitable[None]] = _nothing


def new_session_id() -> str:
    """Return a name for a session that no other has."""
    return f"{timestamp()[:10]}-{os.urandom(4).hex()}"


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
        past: Past | None = None,
        files: Callable[[], Files] | None = None,
    ) -> None:
        self.agent = agent
        self._store = store if store is not None else MemoryStore()
        self._jobs = jobs or NoJobs()
        self._key = key
        self._files = files
        self._history = History(
            self._store,
            charge=agent.charge,
            observe=agent.extensions.observe,
            on_failure=self._on_store_failure,
        )
        self._past = past or Past()
        self._history.learn(self._past.rows)
        self._history.totals = self._past.totals
        self._now = now
        #: Whether the past may have a run that did not come to its end: until we have looked, as its only writer.
        self._must_recover = self._store.shared
        self._entering: asyncio.Timeout | None = None
        self._run: Run | None = None
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
        return self._running is not None and not self._running.is_quiet

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
        if self._running is not None and not self._aborting:
            self._aborting = True
            if self._task is not None:
                self._task.cancel()
            if self._entering is not None:
                self._entering.reschedule(asyncio.get_running_loop().time() + _ENTER_S)
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

    def clear(
        self,
        *,
        started: Callable[[], None] = lambda: None,
        dropped: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Forget the conversation; what it cost stays counted. Raise UserError while busy."""
        self.replace_messages([], started=started, dropped=dropped)

    def replace_messages(
        self,
        messages: Sequence[Message],
        *,
        started: Callable[[], None] = lambda: None,
        dropped: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Make ``messages`` the conversation, repaired where a provider would refuse it. Raise UserError while busy.

        ``started`` is called when that is done, ``dropped`` with the reason if it cannot be.
        """
        if not all(isinstance(message, Message) for message in messages):
            raise UserError("messages must be a list of Message")
        if self.busy:
            raise RuntimeBusy("the conversation cannot be changed while a prompt or compact is running; abort it first")
        self._accept(Job(None, (), started=started, dropped=dropped, replacement=repaired(messages)))

    def rewind(self, wish: Wish) -> asyncio.Future[Rewound]:
        """Go back to an earlier point, with the files that tools have changed since. Raise UserError while busy.

        The future has what came of it, or UserError, RewindRefused, StoreFailed.
        """
        if not self._store.keeps:
            raise UserError("this conversation is not kept, so it cannot be rewound: use --session")
        if self.busy:
            raise RuntimeBusy("the conversation cannot be rewound while a prompt or compact is running; abort it first")
        if self._files is None:
            raise UserError("this session has nobody who could put files back")
        files = self._files()
        from zot.rewind import rewind  # Few sessions ever need it.

        errand = Errand(lambda: rewind(self._history, self._store, files, wish, cwd=self.agent.cwd))

        def dropped(reason: str) -> None:
            errand.fail(job.error or RunCancelled(reason))

        job = Job(None, (), started=lambda: None, dropped=dropped, errand=errand.run)
        self._accept(job)
        return errand.over

    def use_model(self, model_id: str) -> None:
        """Use another model of the same provider from the next model call on. Raise UserError if there is none."""
        self.agent.use_model(model_id)
        if self._store.shared and self._run is not None:
            self._history.amend([self._configured()])

    async def all_messages(self) -> list[Message]:
        """Return every message that ever stood in the transcript, as far as it is kept: also compacted ones."""
        return everything([change for _, change in await self._store.changes()]) or list(self.transcript.messages)

    async def fork(self, new_id: str | None = None, *, messages: int | None = None) -> str:
        """Make another session of the first ``messages``, or of all that is safe; return its id. Raise UserError."""
        at = self._store.last_seq
        if messages is not None:
            at = fork_point(await self._store.changes(), messages, last_seq=at)
        made = new_id or new_session_id()
        await self._store.fork(made, at)
        return made

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
        await self._past.release()

    # How jobs run.

    def _accept(self, job: Job) -> Job:
        if self._closed:
            raise RuntimeClosed("this session is closed")
        if self._running is not None:
            self._check_room()
            self._waiting.append(job)
        elif job.replacement is not None and not self._store.shared:
            self._replace(job.replacement)
            job.started()
        else:
            self._take(job)
            self._worker = asyncio.get_running_loop().create_task(self._work(), name="zot session")
        return job

    def _check_room(self) -> None:
        if len(self._waiting) + len(self._steering) >= MAX_QUEUE:
            raise QueueFull(f"{MAX_QUEUE} prompts are waiting already; wait for one to end")

    def _take(self, job: Job) -> None:
        """A job's turn has come. What nobody else can write to begins at once, so that it is acknowledged at once."""
        self._running, self._aborting, self._store_failure = job, False, None
        self._task = self._run = None
        if not self._store.shared:
            self._begin(job)

    def _begin(self, job: Job) -> Run:
        """Start a job: acknowledged and visible at once, so that an abort right behind it finds something to end."""
        self._history.run += 1
        run = self._run = Run(self._history, owners=(self._key, f"{self._key}/{self._history.run}"), now=self._now)
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
        if self._aborting:
            self._task.cancel()
        return run

    async def _work(self) -> None:
        """Own the runs: begin each, wait for it, say how it ended, start the next."""
        try:
            while self._running is not None:
                if self._run is not None or await self._enter(self._running):
                    await self._finish(self._running)
                self._waiting.extendleft(reversed(self._steering))
                self._steering.clear()
                if not self._waiting:
                    return
                self._take(self._waiting.popleft())
        finally:
            self._running = self._worker = None

    async def _enter(self, job: Job) -> bool:
        """Become the only writer and begin ``job``. False if that cannot be; whoever wanted it has been told."""
        try:
            async with asyncio.timeout(None) as self._entering:
                others = await self._store.begin()
                await self._catch_up([row for _, row in others])
        except (UserError, StoreFailed) as problem:
            job.fail(problem)
        except TimeoutError:
            job.drop("aborted before it began")
        else:
            return True
        finally:
            self._entering = None
        self._store.end()
        return False

    async def _catch_up(self, others: Sequence[Row]) -> None:
        """Know what others have recorded, and end what they could not: a dead one leaves its run without an end."""
        self._history.learn(others)
        self._history.run = self._store.last_run
        if self._must_recover or others:
            newest = await self._store.newest()
            self._history.amend(recover(self.transcript, newest, now=self._now(), parks=False).rows)
            self._must_recover = False
        configured = self._configured()
        if configured != self._history.configured:
            self._history.amend([configured])

    def _configured(self) -> Configured:
        agent = self.agent
        return Configured(agent.provider.name, agent.model.id, agent.system, agent.reasoning, agent.cwd)

    async def _finish(self, job: Job) -> None:
        """Do what a job wants, to its end, and let others write again."""
        try:
            if job.errand is not None:
                await job.errand()
            elif job.replacement is None:
                await self._end(self._run or self._begin(job))
            else:
                self._replace(job.replacement)
                await self._history.settled()
                job.started()
        except StoreFailed as problem:
            job.fail(problem)
        finally:
            self._store.end()

    def _replace(self, messages: Sequence[Message]) -> None:
        self._history.say([], Spliced(0, len(self.transcript), tuple(messages)))

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
            except StoreFailed as failure:
                return failure
            if self._aborting:
                return asyncio.CancelledError()
            self._task = asyncio.get_running_loop().create_task(self.agent.run(run, self._steer), name="zot run")

    async def _ask(self, run: Run, question: Question) -> None:
        """Let a person decide about a call, if there is one who can, and remember the answer."""
        can_ask = any(subscriber.can_approve for subscriber in self._history.subscribers)
        refusal = await self._questions.ask(run, question, self.agent.approver, can_ask=can_ask and not self._aborting)
        run.answers[question.call.id] = refusal

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
