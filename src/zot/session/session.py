"""Session: one conversation with its queue, worker and history."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from zot.agent.compaction import ContextShares
from zot.agent.loop import Agent
from zot.agent.transcript import repaired
from zot.errors import AgentError, NoSuchCommand, RunCancelled, RuntimeBusy, UserError
from zot.events import Reconfigured, SessionState, status_of
from zot.messages import Counters, ImageBlock, Message, timestamp
from zot.session.history import ConversationBefore, History
from zot.session.queue import (
    CompactJob,
    EditJob,
    JobObserver,
    PromptJob,
    RepeatedPrompt,
    ReplaceJob,
    RewindJob,
    UndoCompactJob,
    checked_prompt,
)
from zot.session.transcripts import CONCLUSION, RewindTarget, TranscriptPast, all_messages, fork_end, fork_point
from zot.session.worker import NoToolResources, ToolResources, Worker
from zot.store import GuardSet, MemoryStore, PermissionGranted, Store

if TYPE_CHECKING:
    from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
    from zot.session.rewind import Rewound

T = TypeVar("T")


def new_session_id() -> str:
    """Return a new, unique session id."""
    return f"{timestamp()[:10]}-{os.urandom(4).hex()}"


_NO_OBSERVER = JobObserver()


class Session:
    """A conversation with an agent. Every event is stored, then delivered to all subscribers.

    ``queue`` has the waiting jobs, ``worker`` the running one, ``approvals`` the question that it waits for,
    ``history`` the transcript and the subscribers, ``store`` the rows of all processes, for reading only, ``tools`` the
    processes that tools left running.
    """

    def __init__(
        self,
        agent: Agent,
        store: Store | None = None,
        *,
        tools: ToolResources | None = None,
        key: str = "session",
        now: Callable[[], str] = timestamp,
        past: TranscriptPast | None = None,
    ) -> None:
        past = past or TranscriptPast()
        self.agent = agent
        self.extensions = agent.extensions
        self.store = store if store is not None else MemoryStore()
        self.epoch = self.store.epoch  # Tells apart sessions that had the same id.
        self.tools = tools or NoToolResources()
        self.history = History(self.store, agent)
        self.history.apply_stored(past.changes)
        self.history.totals = past.totals
        agent.extensions.attach(self.history.deliver_unrecorded)
        if agent.source is not None:
            agent.source.attach(lambda: self.history.deliver_unrecorded([Reconfigured()]))
        self._release = past.release
        #: Calls to extensions outside of any run.
        self._waits = AbortableWaits()
        self.worker = Worker(agent, self.history, tools=self.tools, key=key, now=now, newest=past.newest)
        self.queue = self.worker.queue
        self.approvals = self.worker.approvals

    # Its state.

    @property
    def is_resting(self) -> bool:
        """True if closing it would end nothing: no run, no queue, no call to an extension, no process of a tool."""
        return self.worker.is_idle and not self._waits.is_waiting and not self.tools.holds

    @property
    def before(self) -> ConversationBefore:
        """The conversation before the current run, whose events have higher numbers; between runs, the conversation
        now."""
        return self.history.before or ConversationBefore(self.store.last_seq, tuple(self.history.transcript.messages))

    def state(self) -> SessionState:
        """Return a snapshot."""
        agent, transcript = self.agent, self.history.transcript
        busy, pending = self.worker.busy, self.approvals.pending
        return SessionState(
            agent.provider.name,
            agent.model.id,
            agent.cwd,
            len(transcript),
            busy,
            self.history.totals,
            status_of(pending, busy=busy),
            pending,
            agent=agent.name or "default",
            queued=len(self.queue),
            context_tokens=agent.gauge.need(agent.system, (), transcript.messages) if len(transcript) else 0,
            context_window=agent.model.context_window,
            locked=agent.locked,
            questions=self.worker.open_questions,
            mcp=() if agent.source is None else tuple(agent.source.states()),
        )

    def context(self) -> ContextShares:
        """Return what fills the model's window."""
        return self.agent.context(self.history.transcript.messages)

    # Runs.

    def prompt(
        self,
        text: str,
        images: Sequence[ImageBlock] = (),
        *,
        prompt_id: str = "",
        by: str = "",
        observer: JobObserver = _NO_OBSERVER,
    ) -> PromptJob:
        """Enqueue a prompt. Raise UserError if it cannot be accepted.

        Its first event carries the ``prompt_id`` and ``by``, the name of the token of a client that sent it over the
        network.
        """
        job = PromptJob(*checked_prompt(text, images), prompt_id=prompt_id, by=by, observer=observer)
        self.worker.accept(job)
        return job

    def repeat(self, text: str, repeated: RepeatedPrompt, *, channel: str = "") -> PromptJob:
        """Enqueue a prompt that may be in the transcript already. ``channel`` is stored with the message.

        A prompt that does not fit the model's window is removed again.
        """
        job = PromptJob(*checked_prompt(text, ()), channel=channel, repeated=repeated)
        self.worker.accept(job)
        return job

    def steer(
        self,
        text: str,
        images: Sequence[ImageBlock] = (),
        *,
        prompt_id: str = "",
        by: str = "",
        observer: JobObserver = _NO_OBSERVER,
    ) -> PromptJob:
        """Add a message to the running prompt before its next model call; when idle, the same as `prompt`.

        If the run ends first, the message becomes a prompt at the head of the queue. An abort of the run drops it with
        RunCancelled, which is raised instead if the abort came first.
        """
        job = PromptJob(*checked_prompt(text, images), prompt_id=prompt_id, by=by, observer=observer)
        self.worker.steer(job)
        return job

    def compact(self, observer: JobObserver = _NO_OBSERVER) -> CompactJob:
        """Enqueue a compaction of the conversation."""
        job = CompactJob(observer=observer)
        self.worker.accept(job)
        return job

    def abort(self, *, queue: bool = False) -> None:
        """End the running prompt or compaction at any point, and every call to an extension.

        Undelivered steering messages are dropped, and with ``queue`` the waiting prompts, too.
        """
        self._waits.abort()
        self.worker.abort(queue=queue)

    # Changes of the conversation between runs.

    def clear(self, observer: JobObserver = _NO_OBSERVER) -> None:
        """Remove all messages; usage stays counted. Raise UserError while busy."""
        self.replace_messages([], observer)

    def replace_messages(self, messages: Sequence[Message], observer: JobObserver = _NO_OBSERVER) -> None:
        """Replace the conversation by ``messages``, repaired where a provider would refuse them. Raise UserError while
        busy.

        The job counts as started once that is done.
        """
        if not all(isinstance(message, Message) for message in messages):
            raise UserError("messages must be a list of Message")
        self._edit(ReplaceJob(tuple(repaired(messages)), observer=observer))

    def undo_compact(self, observer: JobObserver = _NO_OBSERVER) -> None:
        """Restore the messages that the newest compaction replaced; later messages follow them. Raise UserError while
        busy.

        The job counts as started once that is done; if there is nothing to undo, either it is dropped with UserError or
        UserError is raised.
        """
        self._edit(UndoCompactJob(observer=observer))

    def rewind(self, target: RewindTarget) -> asyncio.Future[Rewound]:
        """Rewind to an earlier point, with the files that tools have changed since. Raise UserError while busy.

        The future has the result, or UserError, RewindRefused, StoreFailed.
        """
        if not self.store.keeps:
            raise UserError("this session is not recorded, so it cannot be rewound; start one with a session name")
        if self.worker.busy:
            raise RuntimeBusy("the conversation cannot be rewound while a prompt or compact is running; abort it first")
        job = RewindJob(target)
        self.worker.accept(job)
        return job.result

    def _edit(self, job: EditJob) -> None:
        if self.worker.busy:
            raise RuntimeBusy("the conversation cannot be changed while a prompt or compact is running; abort it first")
        self.worker.accept(job)

    async def all_messages(self) -> list[Message]:
        """Return every message that was ever in the transcript, compacted ones included, as far as they are kept."""
        kept = all_messages([change for _, change in await self.store.changes()])
        return kept or list(self.history.transcript.messages)

    async def fork(self, new_id: str | None = None, *, messages: int | None = None) -> str:
        """Make a new session from the first ``messages``, or from all stored rows; return its id. Raise UserError."""
        at = self.store.last_seq
        if messages is not None:
            point = fork_point(await self.store.changes(), messages)
            at = fork_end(point, await self.store.read(point, CONCLUSION))
        made = new_id or new_session_id()
        await self.store.fork(made, at)
        return made

    # Extensions.

    async def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, once these have started, or those known by an abort."""
        with suppress(RunCancelled):
            await self._waits.run(self.extensions.ready())
        source = self.agent.source
        return [*self.extensions.commands(), *(() if source is None else source.commands())]

    def resources(self) -> Sequence[ResourceInfo]:
        """Return the resources of MCP servers that prompts can mention, as far as they are known."""
        source = self.agent.source
        return () if source is None else source.resources()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run an extension's command and return its answer. Raise UserError; RunCancelled after an abort."""

        async def run() -> CommandAnswer:
            await self.extensions.ready()
            try:
                return await self.extensions.run_command(name, args)
            except NoSuchCommand:
                if self.agent.source is None:
                    raise
                return await self.agent.source.run_command(name, args)

        return await self._waits.run(run())

    # Settings.

    def use_model(self, model_id: str) -> None:
        """Use another model of the same provider from the next model call on. Raise UserError if it is unknown."""
        self.agent.use_model(model_id)
        self.worker.settings_changed()

    def use_reasoning(self, level: str) -> None:
        """Set the reasoning level from the next model call on. Raise UserError if it is unknown."""
        self.agent.use_reasoning(level)
        self.worker.settings_changed()

    async def establish(self) -> None:
        """Record the settings before the first prompt, unless they are on record. Raise StoreFailed."""
        if self.agent.configured() != self.history.configured:
            await self.worker.record_settings()

    async def add_used(self, counters: Counters) -> None:
        """Count and record tokens used outside of any run. If another process holds the lease, the next run records
        them."""
        try:
            await self.worker.record(used=counters)
        except AgentError:
            self.history.totals += counters

    async def forget(self, allowed: PermissionGranted) -> None:
        """Forget a remembered approval. Raise UserError if it is not remembered, SessionBusy, StoreFailed."""
        await self.worker.record(self.agent.approver.forget(allowed))

    async def keep_guard(self, guarded: GuardSet) -> None:
        """Record a guard, so that its blocks hold after a reload. Raise AgentError."""
        if self.history.guards.get(guarded.name) != guarded:
            await self.worker.record(guarded)

    async def dismiss_guard(self, name: str) -> None:
        """Lift the blocks of a disconnected guard for good. Raise UserError if there is no such guard, AgentError."""
        guarded = self.history.guards.get(name)
        if guarded is None or not guarded.intercept:
            raise UserError(f"no guard named {name!r} is missing from this session")
        if self.extensions.is_connected(name):
            raise UserError(f"the guard {name!r} is connected; only a disconnected guard can be dismissed")
        await self.keep_guard(GuardSet(name, ()))

    # Its life.

    async def close(self, *, parks: bool = False, why: AgentError | None = None) -> None:
        """Abort the run, drop the queue, and close processes, extensions and provider. Idempotent.

        With ``parks``, a run that waits for an approval stays open for a process that resumes it. ``why`` is the reason
        given to jobs that have not begun.
        """
        await self.worker.close(parks=parks, why=why)
        await self.extensions.close()
        await self.tools.close()
        await self.agent.provider.close()
        release, self._release = self._release, TranscriptPast().release
        await release()  # Once: others may use the same journal.


class AbortableWaits:
    """Work outside of any run that `abort` cancels together."""

    def __init__(self, said: str = "aborted before the extension answered") -> None:
        """``said`` is the message of the RunCancelled that aborted waits raise."""
        self._said = said
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_waiting(self) -> bool:
        """True if any wait is in progress."""
        return bool(self._tasks)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` and return its result. Raise RunCancelled if an abort comes first."""
        task = asyncio.get_running_loop().create_task(work, name="zot wait")
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()
        if task.cancelled():
            raise RunCancelled(self._said)
        return task.result()

    def abort(self) -> None:
        """Cancel every wait."""
        for task in self._tasks:
            task.cancel()
