"""Session: one conversation with its queue, worker and history."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from zot.agent.compaction import undo_compaction
from zot.agent.hooks import BackgroundProcesses, NoBackgroundProcesses
from zot.agent.loop import Agent
from zot.agent.transcript import Transcript, repaired
from zot.errors import AgentError, RunCancelled, RuntimeBusy, UserError
from zot.events import ApprovalRequest
from zot.messages import Counters, ImageBlock, Message, timestamp
from zot.session.abortable import AbortableWaits
from zot.session.history import ConversationBefore, History, Subscriber
from zot.session.queue import (
    Dropped,
    Edit,
    ExclusiveTask,
    Job,
    PromptText,
    RewindTarget,
    Started,
    checked_prompt,
    ignore_drop,
    ignore_start,
)
from zot.session.recovery import dismissal, establish, record_now, record_soon
from zot.session.transcripts import CONCLUSION, TranscriptPast, all_messages, fork_end, fork_point
from zot.session.worker import Worker
from zot.store import Configured, GuardSet, LockChanged, MemoryStore, MessagesReplaced, PermissionGranted, Store

if TYPE_CHECKING:
    from zot.panels import CommandAnswer, CommandInfo
    from zot.session.rewind import RestorableFiles, Rewound

SessionStatus: TypeAlias = Literal["idle", "running", "waiting_approval"]


class SessionState(msgspec.Struct, frozen=True):
    """A snapshot of a session. ``pending`` is the open approval request, if there is one."""

    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters
    state: SessionStatus = "idle"
    pending: ApprovalRequest | None = None


def state_of(pending: ApprovalRequest | None, *, busy: bool) -> SessionStatus:
    """Return a session's state as one word."""
    if pending is not None:
        return "waiting_approval"
    return "running" if busy else "idle"


def new_session_id() -> str:
    """Return a new, unique session id."""
    return f"{timestamp()[:10]}-{os.urandom(4).hex()}"


class Session:
    """A conversation with an agent. Every event is stored, then delivered to all subscribers."""

    def __init__(
        self,
        agent: Agent,
        store: Store | None = None,
        *,
        jobs: BackgroundProcesses | None = None,
        key: str = "session",
        now: Callable[[], str] = timestamp,
        past: TranscriptPast | None = None,
        files: Callable[[], RestorableFiles] | None = None,
    ) -> None:
        self.agent = agent
        self._store = store if store is not None else MemoryStore()
        self.epoch = self._store.epoch  # Tells apart sessions that had the same id.
        self._jobs = jobs or NoBackgroundProcesses()
        self._files = files
        self._history = History(
            self._store,
            charge=agent.charge,
            measured=agent.measured,
            recall=agent.approver.recall,
            observe=agent.extensions.observe,
            on_failure=lambda problem: self._worker.store_failed(problem),  # noqa: PLW0108  # Assigned below.
            guarded=agent.extensions.recall,
        )
        agent.extensions.attach(self._history.mention)
        past = past or TranscriptPast()
        self._history.learn(past.changes)
        self._history.totals = past.totals
        self._release = past.release
        #: Calls to extensions outside of any run.
        self._waits = AbortableWaits()
        self._worker = Worker(agent, self._history, self._store, jobs=self._jobs, key=key, now=now, newest=past.newest)

    @property
    def busy(self) -> bool:
        """True from the moment a prompt or compaction is accepted until the last `done` is delivered."""
        return self._worker.busy

    @property
    def has_begun(self) -> bool:
        """True while a prompt or compaction runs that has emitted its first event, so that its `done` will follow."""
        return self._worker.has_begun

    @property
    def is_resting(self) -> bool:
        """True if closing it would end nothing: no run, no queue, no call to an extension, no process of a tool."""
        return self._worker.is_idle and not self._waits.is_waiting and not self._jobs.holds

    @property
    def transcript(self) -> Transcript:
        """The conversation so far."""
        return self._history.transcript

    @property
    def totals(self) -> Counters:
        """The tokens used so far, and their cost."""
        return self._history.totals

    async def add_used(self, counters: Counters) -> None:
        """Count and record tokens used outside of any run. If another process holds the lease, the next run records
        them."""
        try:
            await record_soon(self._history, lambda: self._history.counted(timestamp(), counters), self._worker.accept)
        except AgentError:
            self._history.totals += counters

    @property
    def before(self) -> ConversationBefore:
        """The conversation before the current run, whose events have higher numbers; between runs, the conversation
        now."""
        return self._history.before or ConversationBefore(self.last_seq, tuple(self.transcript.messages))

    def state(self) -> SessionState:
        """Return a snapshot."""
        agent, count = self.agent, len(self.transcript)
        doing = state_of(self.pending, busy=self.busy)
        return SessionState(
            agent.provider.name, agent.model.id, agent.cwd, count, self.busy, self.totals, doing, self.pending
        )

    @property
    def pending(self) -> ApprovalRequest | None:
        """The approval request that the run waits for, if there is one."""
        return self._worker.pending

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Deliver every later batch to ``subscriber``; call the returned function to unsubscribe."""
        return self._history.subscribe(subscriber)

    def overhear(self, call: Callable[[int], None]) -> None:
        """Call ``call`` with the number of the newest stored row that no subscriber was sent: foreign rows and
        repairs."""
        self._history.overheard = call

    @property
    def is_broken(self) -> bool:
        """True if a row could not be stored or the session was deleted: then it must be opened again."""
        return self._store.is_broken

    @property
    def last_seq(self) -> int:
        """The number of the newest row."""
        return self._store.last_seq

    def prompt(
        self,
        text: str,
        images: Sequence[ImageBlock] = (),
        *,
        prompt_id: str = "",
        by: str = "",
        started: Started = ignore_start,
        dropped: Dropped = ignore_drop,
        parked: Started = ignore_start,
    ) -> Job:
        """Enqueue a prompt. Raise UserError if it cannot be accepted.

        ``started`` is called right before its first event, which carries the ``prompt_id`` and ``by``, the name of the
        token of a client that sent it over the network; ``dropped`` with the reason if it will never run; ``parked`` if
        another process will finish it, because it waits for an approval.
        """
        words = checked_prompt(text, images)
        return self._worker.accept(
            Job(*words, started=started, dropped=dropped, parked=parked, prompt_id=prompt_id, by=by)
        )

    def request(self, text: str, words: PromptText, *, channel: str = "") -> Job:
        """Enqueue a prompt that may be in the transcript already: ``words`` returns its text when its turn comes.

        If ``words`` returns None, nothing is added and the interrupted run continues. ``channel`` is stored with the
        message. A prompt that does not fit the model's window is removed again.
        """
        text, images = checked_prompt(text, ())
        job = Job(text, images, started=lambda: None, dropped=ignore_drop, words=words, channel=channel, yields=True)
        return self._worker.accept(job)

    def check_fit(self, text: str) -> None:
        """Raise PromptTooLong if a prompt cannot fit the model's window, however much is compacted."""
        self.agent.check_fit(text)

    def steer(
        self,
        text: str,
        images: Sequence[ImageBlock] = (),
        *,
        prompt_id: str = "",
        by: str = "",
        started: Started = ignore_start,
        dropped: Dropped = ignore_drop,
    ) -> None:
        """Add a message to the running prompt before its next model call; when idle, the same as `prompt`.

        If the run ends first, the message becomes a prompt at the head of the queue. An abort of the run drops it:
        ``dropped`` gets RunCancelled, which is raised instead if the abort came first.
        """
        job = Job(*checked_prompt(text, images), started=started, dropped=dropped, prompt_id=prompt_id, by=by)
        self._worker.steer(job)

    def take_back(self, prompt_id: str) -> None:
        """Withdraw a queued prompt or steering message. Raise UserError if it was sent or dropped already."""
        self._worker.take_back(prompt_id)

    def compact(self, *, started: Started = ignore_start, dropped: Dropped = ignore_drop) -> Job:
        """Enqueue a compaction of the conversation."""
        return self._worker.accept(Job(None, (), started=started, dropped=dropped))

    def abort(self, *, queue: bool = False) -> None:
        """End the running prompt or compaction at any point, and every call to an extension.

        Undelivered steering messages are dropped, and with ``queue`` the waiting prompts, too.
        """
        self._waits.abort()
        self._worker.abort(queue=queue)

    @property
    def begins_later(self) -> bool:
        """True if a job accepted now must first acquire the lease; otherwise it starts at once."""
        return self._worker.begins_later

    @property
    def aborting(self) -> bool:
        """True while an aborted job is ending."""
        return self._worker.aborting

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for the running one."""
        return self._worker.waiting

    def drop_prompts(self, why: AgentError) -> None:
        """Drop every prompt and compaction that has not begun, but no edit or errand."""
        self._worker.drop_prompts(why)

    def cancel(self, job: Job) -> None:
        """End ``job``: abort it if it runs, drop it if it waits, ignore it if it is over."""
        self._worker.cancel(job)

    def approve(self, request_id: str, decision: str, by: str = "") -> None:
        """Answer an approval request; ``by`` names the person. The first answer counts and is recorded.

        Raise UserError if the request is not open, with its outcome if that is known, or if the decision is unknown.
        """
        self._worker.approve(request_id, decision, by)

    @property
    def prompted_by(self) -> Collection[str]:
        """Names of the tokens whose clients prompted or steered the run that waits for an approval."""
        return self._worker.prompted_by

    def remembered(self) -> Sequence[PermissionGranted]:
        """Return the remembered approvals."""
        return self.agent.approver.remembered()

    async def forget(self, allowed: PermissionGranted) -> None:
        """Forget a remembered approval. Raise UserError if it is not remembered, SessionBusy, StoreFailed."""
        await record_now(self._history, self._store, self.agent.approver.forget(allowed), begun=self.busy)

    async def keep_guard(self, guarded: GuardSet) -> None:
        """Record a guard, so that its blocks hold after a reload. Raise AgentError."""
        if self._history.guards.get(guarded.name) != guarded:
            await record_soon(self._history, lambda: guarded, self._worker.accept)

    async def dismiss_guard(self, name: str) -> None:
        """Lift the blocks of a disconnected guard for good. Raise UserError if there is no such guard, AgentError."""
        guarded = self._history.guards.get(name)
        await self.keep_guard(dismissal(name, guarded, attends=self.agent.extensions.attends(name)))

    def approver_left(self) -> None:
        """Close the pending approval request if no remaining subscriber can answer it."""
        self._worker.approver_left()

    def clear(self, *, started: Started = ignore_start, dropped: Dropped = ignore_drop) -> None:
        """Remove all messages; usage stays counted. Raise UserError while busy."""
        self.replace_messages([], started=started, dropped=dropped)

    def replace_messages(
        self, messages: Sequence[Message], *, started: Started = ignore_start, dropped: Dropped = ignore_drop
    ) -> None:
        """Replace the conversation by ``messages``, repaired where a provider would refuse them. Raise UserError while
        busy.

        ``started`` is called when that is done, ``dropped`` with the reason if it cannot be.
        """
        if not all(isinstance(message, Message) for message in messages):
            raise UserError("messages must be a list of Message")
        whole = tuple(repaired(messages))
        self._edit(lambda transcript: MessagesReplaced(0, len(transcript), whole), started, dropped)

    def undo_compact(self, *, started: Started = ignore_start, dropped: Dropped = ignore_drop) -> None:
        """Restore the messages that the newest compaction replaced; later messages follow them. Raise UserError while
        busy.

        ``started`` and ``dropped`` as for `replace_messages`; if there is nothing to undo, either ``dropped`` gets
        UserError or it is raised.
        """
        self._edit(undo_compaction, started, dropped)

    def rewind(self, wish: RewindTarget) -> asyncio.Future[Rewound]:
        """Rewind to an earlier point, with the files that tools have changed since. Raise UserError while busy.

        The future has the result, or UserError, RewindRefused, StoreFailed.
        """
        if not self._store.keeps or self._files is None:
            raise UserError("this conversation is not kept, so it cannot be rewound: use --session")
        if self.busy:
            raise RuntimeBusy("the conversation cannot be rewound while a prompt or compact is running; abort it first")
        from zot.session.rewind import rewind  # Imported lazily: few sessions need it.

        files = self._files()
        errand = ExclusiveTask(lambda: rewind(self._history, self._store, files, wish, cwd=self.agent.cwd))
        self._worker.accept(errand.job)
        return errand.over

    def start(self) -> None:
        """Start the extensions without waiting for them. Otherwise the first prompt starts them."""
        self.agent.extensions.start()

    async def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, once these have started, or those known by an abort."""
        with suppress(RunCancelled):
            await self._waits.run(self.agent.extensions.ready())
        return self.agent.extensions.commands()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run an extension's command and return its answer. Raise UserError; RunCancelled after an abort."""
        return await self._waits.run(self._command(name, args))

    def press(self, panel_id: str, key: str, text: str = "") -> None:
        """Send a key to an open panel. Raise UserError if there is no such panel or key."""
        self.agent.extensions.press(panel_id, key, text)

    def close_panel(self, panel_id: str) -> None:
        """Close a panel. Raise UserError if it is not open."""
        self.agent.extensions.close_panel(panel_id)

    def use_model(self, model_id: str) -> None:
        """Use another model of the same provider from the next model call on. Raise UserError if it is unknown."""
        self.agent.use_model(model_id)
        self._worker.model_changed()

    def use_reasoning(self, level: str) -> None:
        """Set the reasoning level from the next model call on. Raise UserError if it is unknown."""
        self.agent.use_reasoning(level)
        self._worker.model_changed()

    async def keep_choice(self) -> None:
        """Record the current settings, durably. If a run is in progress, here or elsewhere, a run records them."""
        await self._worker.keep_choice()

    async def keep_setting(self, setting: Configured | LockChanged) -> None:
        """Record a setting, durably, for the next time the session is opened. Raise AgentError."""
        await record_soon(self._history, lambda: setting, self._worker.accept)

    @property
    def record(self) -> Store:
        """The session's store, for reading only; it has the rows of all processes."""
        return self._store

    async def all_messages(self) -> list[Message]:
        """Return every message that was ever in the transcript, compacted ones included, as far as they are kept."""
        return all_messages([change for _, change in await self._store.changes()]) or list(self.transcript.messages)

    async def fork(self, new_id: str | None = None, *, messages: int | None = None) -> str:
        """Make a new session from the first ``messages``, or from all stored rows; return its id. Raise UserError."""
        at = self._store.last_seq
        if messages is not None:
            point = fork_point(await self._store.changes(), messages)
            at = fork_end(point, await self._store.read(point, CONCLUSION))
        made = new_id or new_session_id()
        await self._store.fork(made, at)
        return made

    async def mend(self) -> None:
        """End a run that a dead process left open, unless another process runs the session."""
        await self._worker.mend()

    async def take_up(self, *, clock: Callable[[], float] = time.time) -> None:
        """Recover like `mend`, but resume a run that waits for an approval: it stays `pending` until answered or too
        late.

        From now on approvals are always requested, even while no subscriber can answer. ``clock`` is compared to
        deadlines.
        """
        await self._worker.take_up(clock)

    async def establish(self) -> None:
        """Record the settings, durably, before the first prompt, unless they are on record. Raise StoreFailed."""
        await establish(self._history, self._store, self.agent.configured())

    async def finish(self) -> None:
        """Wait until the queue is empty and nothing runs."""
        await self._worker.finish()

    async def close(self, *, parks: bool = False, why: AgentError | None = None) -> None:
        """Abort the run, drop the queue, and close processes, extensions and provider. Idempotent.

        With ``parks``, a run that waits for an approval stays open for a process that takes it up. ``why`` is the
        reason given to jobs that have not begun.
        """
        await self._worker.close(parks=parks, why=why)
        await self.agent.extensions.close()
        await self._jobs.close()
        await self.agent.provider.close()
        await self._release()

    def kill(self) -> None:
        """Kill the processes of tools, at once and from any thread. No tool starts another one; `close` may follow."""
        self._jobs.kill()

    async def _command(self, name: str, args: str) -> CommandAnswer:
        await self.agent.extensions.ready()
        return await self.agent.extensions.run_command(name, args)

    def _edit(self, edit: Edit, started: Started, dropped: Dropped) -> None:
        if self.busy:
            raise RuntimeBusy("the conversation cannot be changed while a prompt or compact is running; abort it first")
        self._worker.accept(Job(None, (), started=started, dropped=dropped, edit=edit))
