"""The daemon as a gateway: workers run the prompts, on any machine; clients here follow, steer, approve and abort.

Rows of workers are read from the database, in order, and sent as if they had been made here. A doorbell says when to
look; a poll makes up for lost rings.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from zot.encoding import thread_safe_type
from zot.errors import AgentError, RunCancelled, StoreFailed, UserError
from zot.events import AgentEvent, UserMessage
from zot.fleet import worker_requests
from zot.fleet.live import Shown, shown_by
from zot.fleet.pools import place
from zot.fleet.prompt_queue import DEFAULT_POOL, PromptQueue, QueuedPrompt, load_of
from zot.fleet.worker_requests import (
    RUN_IS_OVER,
    AbortRun,
    AnswerApproval,
    CallMethod,
    DroppedPrompt,
    Outcome,
    SteerRun,
    WorkerRequest,
)
from zot.journal import replay
from zot.journal.connection import Connection
from zot.journal.postgres.doorbell import ROWS, Listener
from zot.journal.postgres.journal import PostgresJournal
from zot.journal.queries import SessionRecord, get, key_of, newest_row_and_run, owned
from zot.panels import OpenPanels
from zot.serve.daemon.access import check_use
from zot.serve.daemon.client_connection import ClientConnection, Deferred, Handler, SlowAnswer
from zot.serve.daemon.feed import RecordedEvents, grouped
from zot.serve.daemon.session_methods import RunReply, read_attachments
from zot.session.history import Batch
from zot.session.queue import checked_prompt
from zot.wire import daemon_types
from zot.wire.daemon import METHODS
from zot.wire.jsonrpc import NOT_OWNED, SESSION_BUSY, SESSION_NOT_FOUND, RpcError

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon
    from zot.serve.daemon.sessions import DaemonSessions

log = logging.getLogger("zot")

#: How often all followed sessions are looked at, whether or not the doorbell rang.
_POLL_S = 0.5
#: Events read at a time.
_PIECE = 512
#: How long a request waits for a worker: a session may have to be taken over first.
_PATIENCE_S = 30.0
_LOOK_S = 0.2
#: How often an abort looks whether a prompt that a worker has taken has begun.
_STARTING_S = 0.02
#: Methods that the session's worker answers: it has the directory, the extensions and the keys of model services.
_VIEWS = frozenset({"session/allowed", "session/commands", "session/extensions"})
_CALLED = _VIEWS | {
    "session/answer", "session/aside", "session/clear", "session/compact", "session/configure", "session/dismiss",
    "session/forget", "session/lock", "session/panel_close", "session/panel_key", "session/reload", "session/rewind",
    "session/run_command", "session/undo_compact",
}  # fmt: skip
#: Those that take as long as they take: the client's other requests do not wait for them.
_SLOW = frozenset({
    "session/aside", "session/commands", "session/compact", "session/reload", "session/rewind", "session/run_command",
})  # fmt: skip


class _Target(NamedTuple):
    """The session of a request: its record, newest row and newest run."""

    record: SessionRecord
    seq: int
    run: int


class _ShownHere:
    """What clients here were sent of a session's panels and notices. It begins with the notices after a row."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._worker = ""
        self._newest = 0
        self._panels = OpenPanels()

    def take(self, worker: str, shown: Shown) -> tuple[OpenPanels, list[AgentEvent]]:
        """Take what a worker shows; return the open panels, and the events that lead there."""
        if worker != self._worker:
            self._worker, self._newest = worker, 0
        fresh = [one for one in shown.notices if one.number > self._newest and one.after >= self._after]
        self._newest = max([self._newest, *(one.number for one in shown.notices)])
        panels = OpenPanels()
        panels.apply(shown.panels)
        events = [*(one.event for one in fresh), *panels.since(self._panels.seen)]
        self._panels = panels
        return panels, events


class _RemoteRun:
    """A prompt of a client here, on its way through the queue and a worker to its end."""

    def __init__(self, reply: RunReply, prompt_id: str, after: int) -> None:
        self.reply = reply
        self.job = 0
        self.cursor = after
        self._prompt_id = prompt_id
        self.has_begun = False
        self.is_over = False

    def take(self, found: Sequence[tuple[int, AgentEvent]]) -> None:
        """Take the next events of the session."""
        for seq, event in found:
            if seq <= self.cursor or self.is_over:
                continue
            self.cursor = seq
            self.has_begun |= isinstance(event, UserMessage) and event.prompt_id == self._prompt_id
            if self.has_begun:
                self.reply.deliver(Batch(seq, 0, [event]))
                self.is_over = self.reply.is_over

    def drop(self, why: DroppedPrompt) -> None:
        """Take note that it will never run."""
        self.is_over = True
        self.reply.dropped(RunCancelled(why.problem) if why.is_cancelled else AgentError(why.problem))


class Gateway:
    """Sends prompts to workers, and what the workers record to the clients here."""

    def __init__(self, daemon: Daemon, sessions: DaemonSessions, journal: PostgresJournal, pool: str) -> None:
        self._daemon = daemon
        self._sessions = sessions
        self._journal = journal
        self._pool = pool or DEFAULT_POOL
        self._queue = PromptQueue(journal.address)
        self._is_open = False
        self._opening = asyncio.Lock()
        self._runs: dict[str, list[_RemoteRun]] = {}
        #: The numbers of sessions by id.
        self._numbers: dict[str, int] = {}
        #: The noted pools of sessions, by number.
        self._pools: dict[int, str] = {}
        self._rung: set[int] = set()
        #: Sessions, by number, whose panels or notices may have changed.
        self._live_rung: set[int] = set()
        self._shown: dict[str, _ShownHere] = {}
        #: The newest row of each followed session when it was first looked at.
        self._since: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._heard = asyncio.Condition()

    @property
    def table(self) -> Mapping[str, Handler]:
        """The handlers that differ from those of a daemon that runs its sessions itself."""
        return {
            **{name: partial(self._call_worker, name) for name in _CALLED},
            "session/prompt": self._prompt,
            "session/steer": self._steer,
            "session/take_back": self._take_back,
            "session/cancel": self._cancel,
            "session/approve": self._approve,
        }

    # The stream.

    async def run(self) -> None:
        """Send new rows of workers to followers until cancelled."""
        loop = asyncio.get_running_loop()

        def heard(message: str) -> None:
            loop.call_soon_threadsafe(self._ring, message)

        listener = await asyncio.to_thread(Listener, self._journal.address, ROWS, heard)
        try:
            polled = 0.0
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._wake.wait()
                self._wake.clear()
                rung, self._rung = self._rung, set()
                # Rings may be lost, or follow each other without a pause.
                is_poll = loop.time() - polled >= _POLL_S
                try:
                    await self._look(None if is_poll else rung)
                    polled = loop.time() if is_poll else polled
                except StoreFailed as problem:  # The next look may succeed.
                    polled = 0.0
                    log.debug("the rows of workers cannot be read: %s", problem)
                    await asyncio.sleep(_LOOK_S)
                async with self._heard:
                    self._heard.notify_all()
        finally:
            await asyncio.to_thread(listener.close)
            if self._is_open:
                await self._queue.close()

    def _ring(self, message: str) -> None:
        """Note which sessions have new rows."""
        for pair in message.split():
            number, _, seq = pair.partition(":")
            if number.isdecimal():
                (self._live_rung if seq == "0" else self._rung).add(int(number))
        self._wake.set()

    async def _look(self, rung: Collection[int] | None) -> None:
        """Send the new rows of sessions that were ``rung`` for, or of all sessions with unsent rows."""
        followed = {one for connection in self._daemon.connections for one in connection.followed}
        wanted = {one for one in (*followed, *self._runs) if not self._is_run_here(one)}
        self._since = {one: self._since.get(one, self._sessions.feed(one).seq) for one in wanted}
        if unknown := [one for one in wanted if one not in self._numbers]:
            self._numbers.update(await self._journal.reading(_numbers, unknown))
        if rung is None:
            newest = await self._journal.reading(_newest, [*wanted])
            behind = [one for one, seq in newest.items() if seq > self._cursor(one)]
        else:
            behind = [one for one in wanted if self._numbers.get(one) in rung]
        await asyncio.gather(*map(self._send, behind))
        live, self._live_rung = self._live_rung, set()
        await self._show([one for one in wanted if rung is None or self._numbers.get(one) in live])
        if self._sessions.watchers:
            owned_ids = [one.id for one in await self._journal.reading(owned)]
            self._sessions.watchers.note_elsewhere([one for one in owned_ids if not self._is_run_here(one)])
        await self._note_dropped()

    async def _show(self, session_ids: Sequence[str]) -> None:
        """Send what extensions show on workers."""
        numbers = {self._numbers[one]: one for one in session_ids if one in self._numbers}
        if not numbers:
            return
        found = await self._journal.reading(shown_by, [*numbers])
        for number, session_id in numbers.items():
            feed = self._sessions.feed(session_id)
            if number in found and session_id not in self._shown:
                self._shown[session_id] = _ShownHere(self._since[session_id])
            if (here := self._shown.get(session_id)) is not None:
                feed.show_elsewhere(*here.take(*found.get(number, ("", Shown()))))
            if number not in found:
                self._shown.pop(session_id, None)

    def _is_run_here(self, session_id: str) -> bool:
        session = self._sessions.pool.session(session_id)
        return session is not None and session.worker.busy

    def _cursor(self, session_id: str) -> int:
        return min([self._sessions.feed(session_id).seq, *(one.cursor for one in self._runs.get(session_id, ()))])

    async def _send(self, session_id: str) -> None:
        """Send all new rows of a session to its followers, and to those that wait for the end of a run."""
        past = RecordedEvents(self._journal, session_id)
        while True:
            feed = self._sessions.feed(session_id)
            found = await past.events_after(self._cursor(session_id), _PIECE, feed.epoch)
            if self._is_run_here(session_id):
                return
            fresh = [(seq, event) for seq, event in found if seq > feed.seq]
            for first, events in grouped(fresh):
                feed.deliver(Batch(first, 0, events))
            runs = self._runs.get(session_id, [])
            for run in runs:
                run.take(found)
            self._forget(session_id)
            if len(found) < _PIECE:
                return

    def _forget(self, session_id: str) -> None:
        left = [run for run in self._runs.get(session_id, ()) if not run.is_over]
        if left:
            self._runs[session_id] = left
        else:
            self._runs.pop(session_id, None)

    async def _note_dropped(self) -> None:
        """Answer the clients whose prompts will never run."""
        waiting = {run.job: run for runs in self._runs.values() for run in runs if not run.has_begun and run.job}
        if waiting:
            for job, why in (await self._journal.reading(worker_requests.dropped_prompts, [*waiting])).items():
                waiting[job].drop(why)
            for session_id in [*self._runs]:
                self._forget(session_id)

    # Methods.

    async def _prompt(self, connection: ClientConnection, asked: daemon_types.Prompt) -> Deferred:
        words, images = await read_attachments(asked.attachments, is_local=connection.is_local)
        text = "\n\n".join(part for part in (asked.prompt, *words) if part)
        checked_prompt(text, images)
        session_id = asked.session_id
        await self._open_queue()
        target = await self._use(connection, session_id)
        self._follow(connection, target)
        prompt_id = asked.prompt_id or _new_prompt_id()
        reply = RunReply(connection, session_id, asked.prompt_id or "")
        run = _RemoteRun(reply, prompt_id, target.seq)
        self._runs.setdefault(session_id, []).append(run)
        prompt = QueuedPrompt(
            session_id=session_id,
            text=text,
            images=images,
            prompt_id=prompt_id,
            by=connection.grant.name,
            after=target.seq,
            after_run=target.run,
            can_answer=self._sessions.feed(session_id).can_answer,
        )
        try:
            run.job = await self._enqueue(connection, prompt, target.record)
        except BaseException:
            run.is_over = True
            self._forget(session_id)
            raise
        return reply.deferred

    async def _enqueue(self, connection: ClientConnection, prompt: QueuedPrompt, session: SessionRecord) -> int:
        """Queue a prompt in the pool of its session; return its job's number. Raise StoreFailed, or RpcError if its
        tenant has too many."""
        tenant = f"token {connection.grant.name}" if connection.grant.name else f"uid {connection.who.uid}"
        await self._check_limits(tenant, session.number)
        return await self._queue.add(prompt, session=session.number, pool=await self._placed(session), tenant=tenant)

    async def _placed(self, session: SessionRecord) -> str:
        """Return the pool of a session, once it is noted."""
        pool = await self._pool_of(session)
        if self._pools.get(session.number) != pool:
            await self._journal.writing(place, session.number, pool)
            self._pools[session.number] = pool
        return pool

    async def _check_limits(self, tenant: str, number: int) -> None:
        """Raise RpcError if a tenant has too many prompts. Two gateways that check at the same time may admit one
        each."""
        limits = self._daemon.parts.agents.file.fleet
        if not limits.prompts_waiting and not limits.runs:
            return
        load = await self._journal.reading(load_of, tenant)
        if 0 < limits.prompts_waiting <= load.waiting:
            raise RpcError(
                SESSION_BUSY,
                f"{tenant} has {load.waiting} prompts waiting, and may have {limits.prompts_waiting}: send this again"
                " when one has begun, or withdraw one with session/take_back",
            )
        if number not in load.sessions and 0 < limits.runs <= len(load.sessions):
            raise RpcError(
                SESSION_BUSY,
                f"{tenant} has prompts in {len(load.sessions)} sessions, and may have them in {limits.runs}: send this"
                " again when one has ended, or end one with session/cancel",
            )

    async def _pool_of(self, record: SessionRecord) -> str:
        """Return the pool of a session's agent, else that of its directory, else the gateway's own."""
        file = self._daemon.parts.agents.file
        if not file.fleet.pools and all(table.pool is None for table in file.agents.values()):
            return self._pool
        agent = await self._journal.reading(replay.agent_of, record)
        return self._daemon.parts.agents.table(agent).pool or file.fleet.pool_of(record.cwd) or self._pool

    async def _steer(self, connection: ClientConnection, asked: daemon_types.Steer) -> daemon_types.Steered | Deferred:
        words, images = await read_attachments(asked.attachments, is_local=connection.is_local)
        text = "\n\n".join(part for part in (asked.prompt, *words) if part)
        checked_prompt(text, images)
        target = await self._use(connection, asked.session_id)
        self._follow(connection, target)
        if target.record.owner is None:  # Nothing to steer: it is a prompt.
            await self._open_queue()
            prompt = QueuedPrompt(
                session_id=asked.session_id,
                text=text,
                images=images,
                prompt_id=asked.prompt_id or _new_prompt_id(),
                by=connection.grant.name,
                after=target.seq,
                after_run=target.run,
            )
            await self._enqueue(connection, prompt, target.record)
            return daemon_types.Steered(asked.session_id)
        outcome = await self._ask(
            target.record.number, SteerRun(text, images, asked.prompt_id or "", connection.grant.name)
        )
        if outcome.problem:
            raise RpcError(SESSION_NOT_FOUND, outcome.problem) if outcome.is_late else UserError(outcome.problem)
        return daemon_types.Steered(asked.session_id)

    async def _take_back(self, connection: ClientConnection, asked: daemon_types.TakeBack) -> daemon_types.TakenBack:
        await self._use(connection, asked.session_id)
        for run in self._runs.get(asked.session_id, ()):
            if run.reply.prompt_id == asked.prompt_id and await self._queue.withdraw(run.job):
                run.drop(DroppedPrompt("withdrawn before it was sent", is_cancelled=True))
                self._forget(asked.session_id)
                return daemon_types.TakenBack(asked.session_id, asked.prompt_id)
        raise UserError("it cannot be withdrawn: it has been sent or dropped already")

    async def _cancel(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.Cancelled:
        del connection
        await self._sessions.pool.check_not_closed(asked.session_id)
        if (session := self._sessions.pool.session(asked.session_id)) is not None and session.worker.busy:
            session.abort()
            return daemon_types.Cancelled(asked.session_id)
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while (record := await self._journal.find(asked.session_id)).owner is None:
            waiting = [one for one in self._runs.get(asked.session_id, ()) if not (one.has_begun or one.is_over)]
            for run in waiting:
                if run.job and await self._queue.withdraw(run.job):
                    run.drop(DroppedPrompt("aborted before it began", is_cancelled=True))
                    self._forget(asked.session_id)
                    return daemon_types.Cancelled(asked.session_id)
            if not waiting or asyncio.get_running_loop().time() > deadline:
                raise RpcError(SESSION_NOT_FOUND, "No active turn for this session")
            await asyncio.sleep(_STARTING_S)  # A worker has taken it, and is about to begin.
        outcome = await self._ask(record.number, AbortRun())
        if outcome.problem:
            raise RpcError(SESSION_NOT_FOUND, outcome.problem)
        return daemon_types.Cancelled(asked.session_id)

    async def _approve(self, connection: ClientConnection, asked: daemon_types.Approve) -> daemon_types.Approved:
        target = await self._use(connection, asked.session_id)
        if target.record.owner is None:
            raise UserError(
                f"no approval request {asked.request_id!r} is waiting: it was answered, expired or never made"
            )
        await self._check_approval(connection, asked)
        outcome = await self._ask(
            target.record.number, AnswerApproval(asked.request_id, asked.verdict, connection.label)
        )
        if outcome.problem:
            raise UserError(outcome.problem)
        return daemon_types.Approved(asked.session_id, asked.request_id)

    async def _check_approval(self, connection: ClientConnection, asked: daemon_types.Approve) -> None:
        """Raise RpcError if a client would allow a call of a run that its own token prompted or steered."""
        grant = connection.grant
        if asked.verdict == "reject" or not grant.name or grant.may("self_approve"):
            return
        seq, _ = await self._sessions.catalog.position(asked.session_id)
        events = await RecordedEvents(self._journal, asked.session_id).run_so_far(seq)
        if grant.name in {event.by for event in events if isinstance(event, UserMessage)}:
            raise RpcError(NOT_OWNED, f"the token {grant.name!r} prompted this run and cannot approve its calls")

    async def _call_worker(self, method: str, connection: ClientConnection, asked: Any) -> Any:
        """Let the session's worker answer a method."""
        session_id = asked.session_id
        if method in _VIEWS:
            target = await self._journal.reading(_target, session_id)
        else:
            target = await self._use(connection, session_id)
        needs_run = method == "session/answer"
        if needs_run and target.record.owner is None:
            raise UserError("no such question is waiting: it was answered, expired or never asked")
        if method not in _VIEWS:
            self._follow(connection, target)
        grant = connection.grant
        call = CallMethod(
            method,
            msgspec.Raw(msgspec.json.encode(asked)),
            grant.name,
            grant.roles,
            connection.label,
            session_id,
            target.seq,
            needs_run=needs_run,
        )
        work = self._called(connection, target.record, call)
        return SlowAnswer(work) if method in _SLOW else await work

    async def _called(self, connection: ClientConnection, session: SessionRecord, call: CallMethod) -> Any:
        """Return the worker's answer, once the client has all rows recorded before it. Raise RpcError."""
        outcome = await self._ask(session.number, call, await self._placed(session))
        if outcome.seq:
            await self._sent(connection, session.id, outcome.seq)
        if outcome.problem and call.needs_run and not outcome.code:
            raise UserError("no such question is waiting: it was answered, expired or never asked")
        if outcome.problem:
            raise RpcError(outcome.code or SESSION_NOT_FOUND, outcome.problem)
        answer = msgspec.json.decode(outcome.result, type=thread_safe_type(METHODS[call.method].result))
        if isinstance(answer, daemon_types.CommandRun) and answer.prompt:
            await self._prompt_of_command(connection, session.id, answer.prompt)
        return answer

    async def _prompt_of_command(self, connection: ClientConnection, session_id: str, text: str) -> None:
        """Queue the prompt that an extension's command has answered with."""
        try:
            await self._open_queue()
            target = await self._use(connection, session_id)
            prompt = QueuedPrompt(
                session_id=session_id,
                text=text,
                prompt_id=_new_prompt_id(),
                by=connection.grant.name,
                after=target.seq,
                after_run=target.run,
                can_answer=self._sessions.feed(session_id).can_answer,
            )
            await self._enqueue(connection, prompt, target.record)
        except AgentError as problem:
            connection.send_turn_failed(session_id, str(problem))

    async def _sent(self, connection: ClientConnection, session_id: str, seq: int) -> None:
        """Wait until a client has a session's updates up to a row, within a limit."""
        if session_id not in connection.followed:
            return
        sent = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while self._sessions.feed(session_id).seq < seq:
                    async with self._heard:
                        await self._heard.wait()
                connection.when_sent(session_id, seq, sent.set)
                await sent.wait()

    async def _use(self, connection: ClientConnection, session_id: str) -> _Target:
        """Return a session that a client may change. Raise RpcError, NoSuchSession."""
        self._sessions.pool.check_open()
        await self._sessions.pool.check_not_closed(session_id)
        await check_use(self._sessions.pool, connection, session_id)
        target = await self._journal.reading(_target, session_id)
        self._numbers[session_id] = target.record.number
        return target

    def _follow(self, connection: ClientConnection, target: _Target) -> None:
        """Subscribe a client to a session from now on."""
        feed = self._sessions.feed(target.record.id)
        feed.set_epoch(target.record.epoch)
        feed.on_foreign_rows(target.seq)
        connection.follow(target.record.id)

    async def _open_queue(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self._queue.open()
                self._is_open = True

    async def _ask(self, session: int, request: WorkerRequest, pool: str = "") -> Outcome:
        """Ask the worker of a session. If it is gone, the one that takes the session over answers."""
        loop = asyncio.get_running_loop()
        number = await self._journal.writing(worker_requests.make, session, request, pool)
        deadline = loop.time() + _PATIENCE_S
        while (outcome := await self._outcome(number)) in (None, RUN_IS_OVER):
            is_late = outcome is not None or loop.time() > deadline
            # Another run must not get it.
            if is_late and await self._journal.writing(worker_requests.withdraw, number):
                return outcome or Outcome("no worker has this session", is_late=True)
            async with self._heard:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._heard.wait()
        assert outcome is not None
        return outcome

    async def _outcome(self, request: int) -> Outcome | None:
        """Return what became of a request; None if that is not known yet, or the database is gone for the moment."""
        try:
            return await self._journal.reading(worker_requests.outcome_of, request, self._journal.lease_s)
        except StoreFailed as problem:
            log.debug("the outcome of a request cannot be read: %s", problem)
            return None


def _target(connection: Connection, session_id: str) -> _Target:
    record = get(connection, session_id)
    return _Target(record, *newest_row_and_run(connection, record.number))


def _new_prompt_id() -> str:
    return f"prompt-{os.urandom(8).hex()}"


def gateway(daemon: Daemon, sessions: DaemonSessions) -> Gateway:
    """Return the gateway of a daemon whose sessions are in PostgreSQL."""
    journal = daemon.parts.journal
    assert isinstance(journal, PostgresJournal)
    return Gateway(daemon, sessions, journal, daemon.parts.worker_pool)


def _numbers(connection: Connection, session_ids: Sequence[str]) -> dict[str, int]:
    query = "SELECT id, number FROM sessions WHERE id = ANY(CAST(? AS bytea[]))"
    found = {bytes(key): number for key, number in connection.execute(query, ([*map(key_of, session_ids)],))}
    return {one: found[key_of(one)] for one in session_ids if key_of(one) in found}


def _newest(connection: Connection, session_ids: Sequence[str]) -> dict[str, int]:
    query = "SELECT id, next_seq - 1 FROM sessions WHERE id = ANY(CAST(? AS bytea[]))"
    found = {bytes(key): seq for key, seq in connection.execute(query, ([*map(key_of, session_ids)],))}
    return {one: found[key_of(one)] for one in session_ids if key_of(one) in found}
