"""The queue of prompts: a job of procrastinate for each, with the session as its lock and the pool as its queue."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import procrastinate
from procrastinate.exceptions import ConnectorException, JobAborted
from procrastinate.jobs import Job, Status
from procrastinate.schema import SchemaManager
from psycopg import AsyncConnection

from zot.encoding import thread_safe_type
from zot.errors import StoreFailed
from zot.journal.connection import Connection
from zot.journal.postgres.connection import Address, DatabaseError, explained
from zot.messages import ImageBlock

log = logging.getLogger("zot")

#: The pool of sessions that name no other.
DEFAULT_POOL = "default"
_TASK = "zot.prompt"
_MIGRATING = 0x7A6F7403
_CONNECTIONS = 6
#: How often a prompt is tried while the database fails.
_MAX_ATTEMPTS = 60
#: How often workers look for prompts, whether or not they were notified.
_POLL_S = 1.0
#: The pause before a database that was gone is tried again.
_RETRY_S = 0.3


#: procrastinate notifies workers of new jobs only: of a session's next prompt they would learn by a poll.
_TRIGGERS = b"""
CREATE FUNCTION zot_next_prompt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(
        'procrastinate_queue_v1#' || queue_name, json_build_object('type', 'job_inserted', 'job_id', id)::text
    ) FROM procrastinate_jobs
    WHERE lock = OLD.lock AND status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= now()) ORDER BY id LIMIT 1;
    RETURN NULL;
END
$$;
CREATE TRIGGER zot_prompt_over AFTER DELETE ON procrastinate_jobs FOR EACH ROW EXECUTE FUNCTION zot_next_prompt();
CREATE TRIGGER zot_prompt_again AFTER UPDATE OF status ON procrastinate_jobs FOR EACH ROW
    WHEN (OLD.status = 'doing' AND NEW.status = 'todo') EXECUTE FUNCTION zot_next_prompt();
"""


class QueuedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt on its way to a worker. Its first event has the ``prompt_id``, a number above ``after``, and is in a run
    after ``after_run``."""

    session_id: str
    text: str
    images: tuple[ImageBlock, ...] = ()
    prompt_id: str
    by: str = ""
    after: int = 0
    after_run: int = 0
    #: Whether a client answers questions of tools.
    can_answer: bool = False


#: Runs a prompt to its end, given its job's number.
RunPrompt = Callable[[int, QueuedPrompt], Awaitable[None]]


class _TryAgain(procrastinate.BaseRetryStrategy):
    """Queues a prompt again whose worker ends, or loses the database. One that has begun does not run again."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> procrastinate.RetryDecision | None:
        """Return that it is tried again: at once if it was cancelled, later if the database failed."""
        if isinstance(exception, asyncio.CancelledError | JobAborted):
            return procrastinate.RetryDecision(retry_in={"seconds": 0})
        if isinstance(exception, StoreFailed) and job.attempts < _MAX_ATTEMPTS:
            return procrastinate.RetryDecision(retry_in={"seconds": 1})
        return None


class PromptQueue:
    """The prompts that wait for a worker, in order for each session. Open it before use."""

    def __init__(self, address: Address, run: RunPrompt | None = None) -> None:
        """``run`` is called by `work`."""
        self._address = address
        connector = procrastinate.PsycopgConnector(
            conninfo=address.info, min_size=1, max_size=_CONNECTIONS, kwargs={"prepare_threshold": None},
            configure=_without_transactions,
        )  # fmt: skip
        self._app = procrastinate.App(connector=connector)
        #: The jobs that run here, the ids that procrastinate gave to this worker, and jobs with one of these ids that
        #: were found to be over at the last look.
        self._running: set[int] = set()
        self._own_workers: set[int | None] = set()
        self._over: set[int] = set()

        @self._app.task(name=_TASK, pass_context=True, retry=_TryAgain())
        async def prompt(context: procrastinate.JobContext, body: str, tenant: str = "") -> None:
            del tenant  # For `load_of`.
            assert run is not None
            assert context.job.id is not None
            self._running.add(context.job.id)
            self._own_workers.add(context.job.worker_id)
            try:
                await self._decoded(run, context.job.id, body)
            finally:
                self._running.discard(context.job.id)

    async def _decoded(self, run: RunPrompt, job: int, body: str) -> None:
        await run(job, msgspec.json.decode(base64.b64decode(body), type=thread_safe_type(QueuedPrompt)))

    async def open(self) -> None:
        """Connect; create the tables if needed. Raise StoreFailed."""
        try:
            await asyncio.to_thread(self._migrate)
            await self._app.open_async()
        except (DatabaseError, ConnectorException) as problem:
            raise self._failed(problem) from problem

    async def close(self) -> None:
        """Disconnect."""
        await self._app.close_async()

    async def add(self, prompt: QueuedPrompt, *, session: int, pool: str = DEFAULT_POOL, tenant: str = "") -> int:
        """Queue a tenant's prompt for a session, by its number; return its job's number. Raise StoreFailed."""
        # Not JSON of PostgreSQL: that has no NUL.
        body = base64.b64encode(msgspec.json.encode(prompt)).decode()
        job = self._app.configure_task(_TASK, queue=pool, lock=str(session))
        try:
            return await job.defer_async(body=body, tenant=tenant.replace("\0", ""))
        except ConnectorException as problem:
            raise self._failed(problem) from problem

    async def withdraw(self, job: int) -> bool:
        """Remove a prompt that no worker has taken yet. False if one has."""
        try:
            return await self._app.job_manager.cancel_job_by_id_async(job, delete_job=True)
        except ConnectorException as problem:
            raise self._failed(problem) from problem

    async def work(self, *, pool: str, concurrency: int, name: str, stop: asyncio.Event) -> None:
        """Take prompts of a pool until ``stop`` is set, also after the database was gone. Then cancel running ones."""
        stopping = asyncio.create_task(stop.wait(), name="zot stop")
        try:
            while not stop.is_set():
                working = asyncio.create_task(self._work(pool, concurrency, name), name="zot jobs")
                try:
                    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    working.cancel()
                    await asyncio.wait({working})
                if not working.cancelled() and (problem := working.exception()) is not None:
                    if not isinstance(problem, DatabaseError | ConnectorException):
                        raise problem
                    log.warning("no prompts can be taken: %s", self._failed(problem))
                    await asyncio.wait({stopping}, timeout=_RETRY_S)
        finally:
            stopping.cancel()

    async def _work(self, pool: str, concurrency: int, name: str) -> None:
        lease_s = self._address.lease_s
        await self._app.run_worker_async(
            queues=[pool],
            concurrency=concurrency,
            name=name,
            install_signal_handlers=False,
            delete_jobs="always",
            fetch_job_polling_interval=_POLL_S,
            update_heartbeat_interval=lease_s / 3,
            stalled_worker_timeout=lease_s,
            shutdown_graceful_timeout=0.1,
        )

    async def take_over(self) -> int:
        """Queue the prompts of workers that no longer answer again; return how many. Raise StoreFailed.

        A prompt that has begun does not run twice: the worker that takes it looks for it in the session first.
        """
        manager = self._app.job_manager
        try:
            stalled: Sequence[Any] = [*await manager.get_stalled_jobs(seconds_since_heartbeat=self._address.lease_s)]
            for job in stalled:
                await manager.retry_job(job)
            await self._release_own()
        except ConnectorException as problem:
            raise self._failed(problem) from problem
        return len(stalled)

    async def _release_own(self) -> None:
        """Queue jobs again that are over here although the database still has them as running: their end could not be
        stored, and they would keep their sessions locked."""
        manager = self._app.job_manager
        own = [job for job in await manager.list_jobs_async(status="doing") if job.worker_id in self._own_workers]
        over = {job.id for job in own if job.id is not None} - self._running
        for job in own:
            if job.id in over & self._over:
                await manager.retry_job(job)
        self._over = over

    async def counts(self) -> dict[str, dict[str, int]]:
        """Return how many prompts wait (`todo`) and run (`doing`), by pool. Raise StoreFailed."""
        try:
            queues = [*await self._app.job_manager.list_queues_async()]
        except ConnectorException as problem:
            raise self._failed(problem) from problem
        states = (Status.TODO.value, Status.DOING.value)
        return {queue["name"]: {state: queue[state] for state in states} for queue in queues}

    def _failed(self, problem: Exception) -> StoreFailed:
        cause = problem if isinstance(problem, DatabaseError) else problem.__cause__
        if isinstance(cause, DatabaseError):
            return explained(cause, self._address.shown)
        return StoreFailed(f"{self._address.shown} cannot be used: {problem}")

    def _migrate(self) -> None:
        connection = self._address.connect("opening")
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT pg_advisory_xact_lock(?)", (_MIGRATING,))
            (is_there,) = connection.execute("SELECT to_regclass('procrastinate_jobs') IS NOT NULL").fetchone()
            if not is_there:
                connection.raw.execute(SchemaManager.get_schema().encode())
            (has_triggers,) = connection.execute("SELECT to_regproc('zot_next_prompt') IS NOT NULL").fetchone()
            if not has_triggers:
                connection.raw.execute(_TRIGGERS)
            connection.execute("COMMIT")
        finally:
            connection.close()


async def _without_transactions(connection: AsyncConnection[Any]) -> None:
    """Let each statement be a transaction: none of procrastinate's needs another with it."""
    await connection.set_autocommit(True)


class TenantLoad(msgspec.Struct, frozen=True):
    """The prompts of a tenant that wait, and the sessions, by number, that run them or have them waiting."""

    waiting: int
    sessions: frozenset[int]


def load_of(connection: Connection, tenant: str) -> TenantLoad:
    """Return the prompts of a tenant that are in the queue, at all gateways."""
    query = (
        "SELECT lock, count(*) FILTER (WHERE status = 'todo') FROM procrastinate_jobs"
        " WHERE status IN ('todo', 'doing') AND args ->> 'tenant' = ? GROUP BY lock"
    )
    found = connection.execute(query, (tenant.replace("\0", ""),)).fetchall()
    return TenantLoad(sum(waiting for _, waiting in found), frozenset(int(session) for session, _ in found))
