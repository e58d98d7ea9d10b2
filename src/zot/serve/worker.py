"""A worker: runs the prompts of a pool's sessions, and takes over sessions whose worker is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from zot.config.configured_agents import AgentConfigs, daemon_journal
from zot.config.paths import DaemonPaths
from zot.errors import (
    AgentError,
    NoSuchSession,
    RunCancelled,
    SessionBusy,
    StoreFailed,
    UsageError,
    UserError,
    explained,
)
from zot.events import UserMessage
from zot.fleet import worker_requests
from zot.fleet.pools import abandoned
from zot.fleet.prompt_queue import PromptQueue, QueuedPrompt
from zot.fleet.worker_requests import (
    REQUESTS,
    AbortRun,
    AnswerApproval,
    CallMethod,
    DroppedPrompt,
    Outcome,
    Place,
    SteerRun,
    TakenRequest,
)
from zot.journal import replay
from zot.journal.lease import host_name
from zot.journal.opening import open_journal
from zot.journal.postgres.doorbell import Listener
from zot.journal.postgres.journal import PostgresJournal
from zot.journal.postgres.leases import end_frozen
from zot.journal.session_store import SessionStore
from zot.messages import Message
from zot.runtime.pool import PoolLimits, SessionPool
from zot.runtime.shared import SharedResources
from zot.serve.daemon.audit import Audit
from zot.serve.daemon.daemon import DaemonParts
from zot.serve.daemon.logs import LogFile
from zot.serve.daemon.sessions import SessionOpener, settle_all
from zot.serve.live_sessions import ClientsElsewhere, LiveSessions
from zot.serve.worker_calls import WorkerCalls
from zot.serve.workspaces import Workspaces
from zot.session.queue import JobObserver, PromptJob, RepeatedPrompt, checked_prompt
from zot.session.session import Session
from zot.store import Answers

log = logging.getLogger("zot")

#: How often sessions and prompts of workers that are gone are looked for, and requests to runs here.
_LOOK_S = 0.4
_REQUESTS_S = 0.5
#: How long workers that have a session loaded come before others, and the most calls of clients at a time.
_OPEN_AFTER_S = 0.05
_MAX_CALLS = 64
#: The pause between two attempts to run a session that another process holds.
_BUSY_S = 0.05
_MANY = 1 << 20


class _RunEnd(JobObserver):
    """Learns why a prompt did not run, if it did not."""

    def __init__(self) -> None:
        self.has_begun = False
        self.why: AgentError | None = None

    def started(self) -> None:
        self.has_begun = True

    def dropped(self, why: AgentError) -> None:
        self.why = why


class _RunOnce(RepeatedPrompt):
    """A prompt that does not run if it is in its session already.

    That is decided in the transaction that takes the lease: a worker that was frozen may still hold the prompt.
    """

    def __init__(self, prompt: QueuedPrompt) -> None:
        self._prompt = prompt

    def text_after(self, messages: Sequence[Message]) -> str | None:
        del messages
        return self._prompt.text

    def stored_answer(self, answers: Answers, newest_run: int) -> bytes | None:
        runs = range(self._prompt.after_run + 1, newest_run + 1)
        rows = (row for run in runs for row in answers.rows_of(run))
        is_there = any(isinstance(row, UserMessage) and row.prompt_id == self._prompt.prompt_id for row in rows)
        return b"begun" if is_there else None


class FleetWorker:
    """Runs the prompts of one pool. Its sessions are opened when a prompt, a recovery or a client needs them."""

    def __init__(self, parts: DaemonParts, name: str) -> None:
        """``name`` is that of the pool."""
        journal = parts.journal
        assert isinstance(journal, PostgresJournal)
        opener = SessionOpener(parts)
        self._live = LiveSessions(journal)
        self.sessions = self._pool = SessionPool(
            opener.opening,
            lambda session_id: ClientsElsewhere(session_id, self._live),
            journal,
            limits=PoolLimits(idle_s=parts.settings.idle_s),
            own_process=parts.own_process,
        )
        self._workspaces = Workspaces(parts, checks_out=True)
        parts.workspaces = self._workspaces
        self._methods = WorkerCalls(parts, self._pool, opener)
        #: The calls of clients that are being answered, by request.
        self._calls: dict[int, asyncio.Task[None]] = {}
        #: Whether requests of sessions that are loaded nowhere may be taken now, and when that was done last.
        self._may_open = True
        self._last_opened = 0.0
        self._asked = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._journal = journal
        self._queue = PromptQueue(journal.address, self._run_prompt)
        self._takeovers: dict[str, asyncio.Task[None]] = {}
        self._name = name

    async def run(self, *, concurrency: int, stop: asyncio.Event, grace_s: float) -> None:
        """Work until ``stop`` is set. Runs then have ``grace_s``; those that wait for an approval are parked."""
        await self._queue.open()
        lease_s = self._journal.lease_s
        loop = asyncio.get_running_loop()

        def heard(message: str) -> None:
            loop.call_soon_threadsafe(self._on_request, message)

        listener = await asyncio.to_thread(Listener, self._journal.address, REQUESTS, heard)
        chores = [
            asyncio.create_task(_repeat(self._take_over, asyncio.Event(), _LOOK_S), name="zot takeover"),
            asyncio.create_task(_repeat(self._answer_requests, self._asked, _REQUESTS_S), name="zot requests"),
            asyncio.create_task(_repeat(self._keep_calls_alive, asyncio.Event(), lease_s / 3), name="zot calls"),
            asyncio.create_task(self._live.run(self._displaced), name="zot panels"),
        ]
        try:
            name = f"{host_name()} {os.getpid()}"
            await self._queue.work(pool=self._name, concurrency=concurrency, name=name, stop=stop)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await settle_all(self._pool)
            for session_id in self._pool.ids:
                session = self._pool.session(session_id)
                if session is not None and session.approvals.pending is not None:  # It continues elsewhere.
                    await self._publish(session_id)
        finally:
            tasks = [*chores, *self._takeovers.values(), *self._background, *self._calls.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._live.close()
            await asyncio.to_thread(listener.close)
            await self._queue.close()

    # Prompts.

    async def _run_prompt(self, job: int, prompt: QueuedPrompt) -> None:
        """Run a prompt to its end, unless an earlier worker began it: its run was ended or resumed on opening."""
        try:
            await self._refresh(prompt.session_id, prompt.after)
            async with self._pool.use(prompt.session_id) as session:
                self._clients(prompt.session_id).answers |= prompt.can_answer
                if not session.worker.busy:  # It may have run elsewhere since it was loaded.
                    await self._workspaces.prepare(prompt.session_id, session.agent.name)
                while True:
                    end = _RunEnd()
                    text, images = checked_prompt(prompt.text, prompt.images)
                    run = PromptJob(
                        text, images, prompt_id=prompt.prompt_id, by=prompt.by, repeated=_RunOnce(prompt), observer=end
                    )
                    session.worker.accept(run)
                    await session.worker.finish()
                    is_stored = end.has_begun and not isinstance(run.error, StoreFailed)
                    if (
                        run.stored_answer is not None
                        or is_stored
                        or (end.why is None and await self._has_begun(prompt))
                    ):
                        await self._publish(prompt.session_id)
                        return
                    if end.why is None:  # Not even its first row could be stored.
                        raise StoreFailed("the prompt could not be recorded")
                    if not isinstance(end.why, SessionBusy):
                        raise end.why
                    await asyncio.sleep(_BUSY_S)
        except StoreFailed:
            raise  # It is queued again: the database was gone.
        except SessionBusy as problem:  # Another worker recovers it while it is opened here.
            raise StoreFailed(str(problem)) from problem
        except Exception as problem:
            # A cancelled prompt is not dropped: it is queued again. A run that has begun continues in its session.
            await self._drop(job, prompt, explained(problem, log, "a prompt"))

    async def _refresh(self, session_id: str, seq: int) -> None:
        """Unload a session that was changed elsewhere since: its settings may have changed, too."""
        if (session := self._pool.session(session_id)) is not None:
            await self._pool.refresh(session_id, seq, session.epoch)

    def _clients(self, session_id: str) -> ClientsElsewhere:
        return cast("ClientsElsewhere", self._pool.channel(session_id))

    def _displaced(self, session_id: str) -> None:
        """Unload an idle session that another worker runs now: its panels are the other's."""
        session = self._pool.session(session_id)
        if session is not None and session.worker.is_idle:
            self._in_background(self._let_go(session_id))

    async def _let_go(self, session_id: str) -> None:
        await self._pool.let_go(session_id)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="zot background")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _has_begun(self, prompt: QueuedPrompt) -> bool:
        """Return whether a prompt is in its session already."""
        events = await self._journal.reading(replay.events_after, prompt.session_id, prompt.after, _MANY)
        return any(isinstance(event, UserMessage) and event.prompt_id == prompt.prompt_id for _, event in events)

    async def _drop(self, job: int, prompt: QueuedPrompt, why: AgentError) -> None:
        """Tell the gateway that a prompt will never run. Raise StoreFailed."""
        dropped = DroppedPrompt(str(why), is_cancelled=isinstance(why, RunCancelled))
        with suppress(NoSuchSession):
            session = await self._journal.find(prompt.session_id)
            await self._journal.writing(worker_requests.drop_prompt, job, session.number, dropped)

    # Sessions of workers that are gone.

    async def _take_over(self) -> None:
        await self._journal.reading(end_frozen, self._journal.lease_s / 2)
        await self._queue.take_over()
        for session_id in await self._journal.writing(abandoned, self._name):
            if session_id not in self._takeovers:
                task = asyncio.create_task(self._recover(session_id), name="zot recovery")
                self._takeovers[session_id] = task

    async def _recover(self, session_id: str) -> None:
        try:
            await self._pool.recover_all([session_id])
        finally:
            self._takeovers.pop(session_id, None)

        self._in_background(self._publish_at_end(session_id))

    async def _publish_at_end(self, session_id: str) -> None:
        """Push the files of a recovered session when its run has ended: no prompt of this worker waits for it."""
        if (session := self._pool.session(session_id)) is not None and session.worker.busy:
            await session.worker.finish()
        await self._publish(session_id)

    async def _publish(self, session_id: str) -> None:
        session = self._pool.session(session_id)
        if session is not None and not session.store.is_broken:  # Not if another worker has taken it over.
            await self._workspaces.publish(session_id, session.agent.name)

    # Requests of clients.

    def _on_request(self, message: str) -> None:
        """Take note of a request: of a session's number, and of a pool if its workers may open the session for it."""
        number, is_call, pool = message.partition(" ")
        session = int(number) if number.isdecimal() else 0
        if not session or session in self._journal.leases.held or session in self._loaded:
            self._asked.set()
        elif is_call and pool in ("", self._name):
            # Another worker may have the session loaded: it comes first.
            asyncio.get_running_loop().call_later(_OPEN_AFTER_S, self._open_for_requests)

    def _open_for_requests(self) -> None:
        self._may_open = True
        self._asked.set()

    @property
    def _loaded(self) -> dict[int, str]:
        """The ids of the loaded sessions, by number."""
        stores = [session.store for session in self._pool.sessions]
        return {store.number: store.id for store in stores if isinstance(store, SessionStore)}

    async def _answer_requests(self) -> None:
        """Answer the requests of clients. Those on a session that is being taken over wait until it is open."""
        loaded, now = self._loaded, asyncio.get_running_loop().time()
        may_open = (self._may_open or now - self._last_opened >= _REQUESTS_S) and len(self._calls) < _MAX_CALLS
        if may_open:
            self._may_open, self._last_opened = False, now
        elif not loaded:
            return
        held = self._journal.leases.held
        running = [number for number, one in loaded.items() if number in held and one not in self._takeovers]
        pool = self._name if may_open else None
        place = Place(running, loaded.keys(), self._live.showing, pool)
        for taken in await self._journal.writing(worker_requests.take, place):
            if isinstance(taken.request, CallMethod):
                call = asyncio.create_task(self._call(taken, taken.request), name=f"zot {taken.request.method}")
                self._calls[taken.id] = call
                call.add_done_callback(partial(self._forget_call, taken.id))
                continue
            session = self._pool.session(loaded[taken.session])
            outcome, aborted_run = _answered(session, taken), None
            if session is not None and isinstance(taken.request, AbortRun) and not outcome.problem:
                aborted_run = session.history.run
            await self._journal.writing(worker_requests.conclude, taken, outcome, aborted_run)

    async def _call(self, taken: TakenRequest, asked: CallMethod) -> None:
        """Call a method for a client of a gateway, and store the outcome."""
        try:
            await self._refresh(asked.session_id, asked.after)
            outcome = await self._methods.call(asked, lambda session_id, event: self._live.note(session_id, [event]))
            await self._journal.writing(worker_requests.conclude, taken, outcome, None)
        except StoreFailed as problem:
            log.warning("a call of %s could not be answered: %s", asked.method, problem)

    def _forget_call(self, number: int, _: asyncio.Task[None]) -> None:
        del self._calls[number]

    async def _keep_calls_alive(self) -> None:
        if self._calls:
            await self._journal.writing(worker_requests.keep_alive, [*self._calls])


def _answered(session: Session | None, taken: TakenRequest) -> Outcome:
    """Do what a client asked of a run; return what became of it."""
    if session is None or not session.worker.busy:
        return Outcome("No active turn for this session", is_late=True)
    try:
        match taken.request:
            case AbortRun():
                session.abort()
            case SteerRun(text=text, images=images, prompt_id=prompt_id, by=by):
                session.steer(text, images, prompt_id=prompt_id, by=by)
            case AnswerApproval(request_id=request_id, decision=decision, by=by):
                session.approvals.answer(request_id, decision, by=by)
            case CallMethod():
                raise AssertionError  # `_call` answers it.
    except RunCancelled as problem:
        return Outcome(str(problem), is_late=True)
    except (UserError, StoreFailed) as problem:
        return Outcome(str(problem))
    return Outcome()


async def serve_worker(
    place: DaemonPaths, agents: AgentConfigs, flags: Mapping[str, Any], *, pool: str, concurrency: int
) -> int:
    """Run prompts of a pool until SIGTERM or SIGINT; return the exit code. Raise StoreFailed."""
    journal = await open_journal(daemon_journal(place, agents, flags))
    if not isinstance(journal, PostgresJournal):
        await journal.close()
        raise UsageError("a worker needs a database: add --store postgresql://…, or set ZOT_STORE")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    resources = SharedResources(own_process=True, serves_many=True)
    audit = Audit(LogFile(os.path.join(place.logs, "audit.log")), soon=asyncio.get_running_loop().call_soon)
    parts = DaemonParts(place, agents, journal=journal, resources=resources, audit=audit, flags=flags)
    parts.is_worker = True
    worker = FleetWorker(parts, pool)
    sys.stderr.write(f"zot: working for {journal.path}, pool {pool}\n")
    try:
        await worker.run(concurrency=concurrency, stop=stop, grace_s=parts.settings.grace_s)
    finally:
        await worker.sessions.close()
        await resources.close()
        await journal.close()
        audit.close()
    return 0


async def _repeat(action: Callable[[], Awaitable[None]], rung: asyncio.Event, every_s: float) -> None:
    """Do something whenever ``rung`` is set, and from time to time. A failure is logged."""
    while True:
        try:
            async with asyncio.timeout(every_s):
                await rung.wait()
        except TimeoutError:
            pass
        rung.clear()
        try:
            await action()
        except AgentError as problem:
            log.warning("%s", problem)
        except Exception:  # The next time may succeed.
            log.exception("unexpected error in a worker")
