"""A worker: runs the prompts of a pool's sessions, and takes over sessions whose worker is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

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
from zot.fleet.worker_requests import REQUESTS, AbortRun, AnswerApproval, DroppedPrompt, Outcome, SteerRun, TakenRequest
from zot.journal import replay
from zot.journal.lease import host_name
from zot.journal.opening import open_journal
from zot.journal.postgres.doorbell import Listener
from zot.journal.postgres.journal import PostgresJournal
from zot.journal.postgres.leases import end_frozen
from zot.journal.session_store import SessionStore
from zot.messages import Message
from zot.runtime.pool import Channel, PoolLimits, SessionPool
from zot.runtime.shared import SharedResources
from zot.serve.daemon.audit import Audit
from zot.serve.daemon.daemon import DaemonParts
from zot.serve.daemon.logs import LogFile
from zot.serve.daemon.sessions import SessionOpener, settle_all
from zot.serve.workspaces import Workspaces
from zot.session.history import Batch
from zot.session.queue import JobObserver, PromptJob, RepeatedPrompt, checked_prompt
from zot.session.session import Session
from zot.store import Answers

log = logging.getLogger("zot")

#: How often sessions and prompts of workers that are gone are looked for, and requests to runs here.
_LOOK_S = 0.4
_REQUESTS_S = 0.5
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
    """Runs prompts of one pool. Its sessions are those of ``pool``, opened with the journal in PostgreSQL."""

    def __init__(self, pool: SessionPool, journal: PostgresJournal, name: str, workspaces: Workspaces) -> None:
        """``name`` is that of the pool."""
        self._pool = pool
        self._workspaces = workspaces
        self._publishing: set[asyncio.Task[None]] = set()
        self._journal = journal
        self._queue = PromptQueue(journal.address, self._run_prompt)
        self._takeovers: dict[str, asyncio.Task[None]] = {}
        self._name = name

    async def run(self, *, concurrency: int, stop: asyncio.Event, grace_s: float) -> None:
        """Work until ``stop`` is set. Runs then have ``grace_s``; those that wait for an approval are parked."""
        await self._queue.open()
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def heard(_: str) -> None:
            loop.call_soon_threadsafe(asked.set)

        listener = await asyncio.to_thread(Listener, self._journal.address, REQUESTS, heard)
        chores = [
            asyncio.create_task(_repeat(self._take_over, asyncio.Event(), _LOOK_S), name="zot takeover"),
            asyncio.create_task(_repeat(self._answer_requests, asked, _REQUESTS_S), name="zot requests"),
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
            tasks = [*chores, *self._takeovers.values(), *self._publishing]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.to_thread(listener.close)
            await self._queue.close()

    # Prompts.

    async def _run_prompt(self, job: int, prompt: QueuedPrompt) -> None:
        """Run a prompt to its end, unless an earlier worker began it: its run was ended or resumed on opening."""
        try:
            async with self._pool.use(prompt.session_id) as session:
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

        task = asyncio.create_task(self._publish_at_end(session_id), name="zot push")
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

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

    async def _answer_requests(self) -> None:
        """Answer the requests on open sessions. Those on a session that is being taken over wait until it is open."""
        held = self._journal.leases.held
        here = [self._pool.session(one) for one in self._pool.ids if one not in self._takeovers]
        stores = [(session.store, session) for session in here if session is not None]
        by_number = {
            store.number: session
            for store, session in stores
            if isinstance(store, SessionStore) and store.number in held
        }
        if not by_number:
            return
        for taken in await self._journal.writing(worker_requests.take, [*by_number]):
            session = by_number[taken.session]
            outcome, aborted_run = _answered(session, taken), None
            if isinstance(taken.request, AbortRun) and not outcome.problem:
                aborted_run = session.history.run
            await self._journal.writing(worker_requests.conclude, taken, outcome, aborted_run)


def _answered(session: Session, taken: TakenRequest) -> Outcome:
    """Do what a client asked of a run; return what became of it."""
    if not session.worker.busy:
        return Outcome("No active turn for this session", is_late=True)
    try:
        match taken.request:
            case AbortRun():
                session.abort()
            case SteerRun(text=text, images=images, prompt_id=prompt_id, by=by):
                session.steer(text, images, prompt_id=prompt_id, by=by)
            case AnswerApproval(request_id=request_id, decision=decision, by=by):
                session.approvals.answer(request_id, decision, by=by)
    except RunCancelled as problem:
        return Outcome(str(problem), is_late=True)
    except (UserError, StoreFailed) as problem:
        return Outcome(str(problem))
    return Outcome()


class _Nobody(Channel):
    """The clients of a worker's session: none is here. They follow it at a gateway, and can answer there."""

    can_approve = True
    is_followed = False

    def opened(self, session: Session) -> None:
        return

    def on_foreign_rows(self, upto: int) -> None:
        return

    def closed(self) -> None:
        return

    def deliver(self, batch: Batch) -> None:
        return


def worker_sessions(parts: DaemonParts) -> SessionPool:
    """Return the sessions of a worker: opened when a prompt or a recovery needs them."""
    return SessionPool(
        SessionOpener(parts).opening,
        lambda _: _Nobody(),
        parts.journal,
        limits=PoolLimits(idle_s=parts.settings.idle_s),
        own_process=parts.own_process,
    )


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
    parts.workspaces = Workspaces(parts, checks_out=True)
    sessions = worker_sessions(parts)
    worker = FleetWorker(sessions, journal, pool, parts.workspaces)
    sys.stderr.write(f"zot: working for {journal.path}, pool {pool}\n")
    try:
        await worker.run(concurrency=concurrency, stop=stop, grace_s=parts.settings.grace_s)
    finally:
        await sessions.close()
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
