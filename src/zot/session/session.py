"""Session: one conversation with its queue, worker and history."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from zot.agent.compaction import undo_compaction
from zot.agent.hooks import Jobs, NoJobs
from zot.agent.loop import Agent
from zot.agent.transcript import Transcript, repaired
from zot.errors import AgentError, RunCancelled, RuntimeBusy, UserError
from zot.events import ApprovalRequest
from zot.messages import Counters, ImageBlock, Message, timestamp
from zot.session.abortable import Abortable
from zot.session.history import Before, History, Subscriber
from zot.session.queue import Dropped, Edit, Errand, Job, Started, Wish, Words, begun, checked_prompt, unwanted
from zot.session.recovery import dismissal, establish, keep, note
from zot.session.transcripts import CONCLUSION, Past, concluded, everything, fork_point
from zot.session.worker import Worker
from zot.store import Allowed, Configured, Guarded, Locked, MemoryStore, Spliced, Store

if TYPE_CHECKING:
    from zot.panels import CommandAnswer, CommandInfo
    from zot.session.rewind import Files, Rewound

Doing: TypeAlias = Literal["idle", "running", "waiting_approval"]


class State(msgspec.Struct, frozen=True):
    """A snapshot of a session. While it waits for a person, ``pending`` is what that person was asked."""

    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters
    state: Doing = "idle"
    pending: ApprovalRequest | None = None


def state_of(pending: ApprovalRequest | None, *, busy: bool) -> Doing:
    """Return what a session does, in a word."""
    if pending is not None:
        return "waiting_approval"
    return "running" if busy else "idle"


def new_session_id() -> str:
    """Return a name for a session that no other has."""
    return f"{timestamp()[:10]}-{os.urandom(4).hex()}"


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
        self.epoch = self._store.epoch  # Which session of its name it is, as it was found.
        self._jobs = jobs or NoJobs()
        self._files = files
        self._history = History(
            self._store,
            charge=agent.charge,
            measured=agent.measured,
            recall=agent.approver.recall,
            observe=agent.extensions.observe,
            on_failure=lambda problem: self._worker.store_failed(problem),  # noqa: PLW0108  # It is made below.
            guarded=agent.extensions.recall,
        )
        agent.extensions.attach(self._history.mention)
        past = past or Past()
        self._history.learn(past.changes)
        self._history.totals = past.totals
        self._release = past.release
        #: What somebody waits for outside of any run: what extensions have to say.
        self._waits = Abortable()
        self._worker = Worker(agent, self._history, self._store, jobs=self._jobs, key=key, now=now, newest=past.newest)

    @property
    def busy(self) -> bool:
        """True from the moment a prompt or compact is accepted until the last `done` is out."""
        return self._worker.busy

    @property
    def has_begun(self) -> bool:
        """True while a prompt or compact runs whose end will be heard, because its beginning was."""
        return self._worker.has_begun

    @property
    def is_resting(self) -> bool:
        """True if nothing runs or waits, nor is left of its tools and extensions: closing it would end nothing."""
        return self._worker.is_idle and not self._waits.is_waiting and not self._jobs.holds

    @property
    def transcript(self) -> Transcript:
        """The conversation so far."""
        return self._history.transcript

    @property
    def totals(self) -> Counters:
        """What it has used so far."""
        return self._history.totals

    async def add_used(self, counters: Counters) -> None:
        """Count and record what was used for it outside of any run; with the next one, if others write now."""
        try:
            await keep(self._history, lambda: self._history.counted(timestamp(), counters), self._worker.accept)
        except AgentError:
            self._history.totals += counters

    @property
    def before(self) -> Before:
        """The conversation before the run that goes on here, which events above its number tell; else as it is."""
        return self._history.before or Before(self.last_seq, tuple(self.transcript.messages))

    def state(self) -> State:
        """Return a snapshot."""
        agent, count = self.agent, len(self.transcript)
        doing = state_of(self.pending, busy=self.busy)
        return State(agent.provider.name, agent.model.id, agent.cwd, count, self.busy, self.totals, doing, self.pending)

    @property
    def pending(self) -> ApprovalRequest | None:
        """The question that a person must answer before the run goes on, if there is one."""
        return self._worker.pending

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Let ``subscriber`` hear everything from now on; call what is returned to stop."""
        return self._history.subscribe(subscriber)

    def overhear(self, call: Callable[[int], None]) -> None:
        """Let ``call`` hear up to which number there are rows that no subscriber was shown: of others, of repairs."""
        self._history.overheard = call

    @property
    def is_broken(self) -> bool:
        """True if something could not be recorded, or it was deleted: then it must be opened again."""
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
        started: Started = begun,
        dropped: Dropped = unwanted,
        parked: Started = begun,
    ) -> Job:
        """Run a prompt, after those that came before. Raise UserError if it cannot be accepted.

        ``started`` is called right before its first event, which has the ``prompt_id``, ``dropped`` with the reason if
        it will never run, and ``parked`` if its end is left to another process, because it waits for a person.
        """
        words = checked_prompt(text, images)
        return self._worker.accept(Job(*words, started=started, dropped=dropped, parked=parked, prompt_id=prompt_id))

    def request(self, text: str, words: Words, *, channel: str = "") -> Job:
        """Run a prompt that may have been said before: ``words`` decide what is said when its turn comes.

        With it is kept in which ``channel`` it was said. None says nothing and goes on where it ended. What the model's
        window does not hold is taken back.
        """
        text, images = checked_prompt(text, ())
        job = Job(text, images, started=lambda: None, dropped=unwanted, words=words, channel=channel, yields=True)
        return self._worker.accept(job)

    def check_fit(self, text: str) -> None:
        """Raise PromptTooLong if a prompt surely does not fit the model's window, whatever else is left out."""
        self.agent.check_fit(text)

    def steer(
        self,
        text: str,
        images: Sequence[ImageBlock] = (),
        *,
        prompt_id: str = "",
        started: Started = begun,
        dropped: Dropped = unwanted,
    ) -> None:
        """Say something to the running prompt before its next model call; when idle, the same as `prompt`.

        If the run ends before it can be said, it becomes a prompt of its own, ahead of the others. An abort of the run
        drops it: ``dropped`` gets RunCancelled, which is raised if the abort came first.
        """
        job = Job(*checked_prompt(text, images), started=started, dropped=dropped, prompt_id=prompt_id)
        self._worker.steer(job)

    def take_back(self, prompt_id: str) -> None:
        """Let a prompt, or what was to steer one, never be said. Raise UserError if it has been said, or dropped."""
        self._worker.take_back(prompt_id)

    def compact(self, *, started: Started = begun, dropped: Dropped = unwanted) -> Job:
        """Summarise the conversation, after the prompts that came before."""
        return self._worker.accept(Job(None, (), started=started, dropped=dropped))

    def abort(self, *, queue: bool = False) -> None:
        """End the running prompt or compact, whatever it is doing, and every wait for an extension.

        Messages that were to steer it and have not been delivered are dropped. ``queue`` drops the prompts that wait,
        too.
        """
        self._waits.abort()
        self._worker.abort(queue=queue)

    @property
    def begins_later(self) -> bool:
        """True if what is asked now is begun only after others were kept from writing; otherwise it begins at once."""
        return self._worker.begins_later

    @property
    def aborting(self) -> bool:
        """True while the running job is on its way to its end because somebody wanted it to."""
        return self._worker.aborting

    @property
    def waiting(self) -> int:
        """How many jobs wait behind the running one."""
        return self._worker.waiting

    def drop_prompts(self, why: AgentError) -> None:
        """Drop every prompt and compact that has not begun. What is only recorded is still done."""
        self._worker.drop_prompts(why)

    def cancel(self, job: Job) -> None:
        """End ``job``: abort it if it runs, and what was to steer it; drop it if it waits; else leave it be."""
        self._worker.cancel(job)

    def approve(self, request_id: str, decision: str, by: str = "") -> None:
        """Answer a question about a tool call; ``by`` says who does. The first answer counts, and is recorded.

        Raise UserError if nobody waits for it, with what came of it if that is known, or it is no decision.
        """
        self._worker.approve(request_id, decision, by)

    def remembered(self) -> Sequence[Allowed]:
        """Return what a person allowed for good."""
        return self.agent.approver.remembered()

    async def forget(self, allowed: Allowed) -> None:
        """Ask about it again from now on. Raise UserError if it is not remembered, SessionBusy, StoreFailed."""
        await note(self._history, self._store, self.agent.approver.forget(allowed), begun=self.busy)

    async def keep_guard(self, guarded: Guarded) -> None:
        """Record who guards it, so that this holds when it is loaded again. Raise AgentError."""
        if self._history.guards.get(guarded.name) != guarded:
            await keep(self._history, lambda: guarded, self._worker.accept)

    async def dismiss_guard(self, name: str) -> None:
        """Lift what a guard blocks that had connected and is away, for good. Raise UserError if none is, AgentError."""
        guarded = self._history.guards.get(name)
        await self.keep_guard(dismissal(name, guarded, attends=self.agent.extensions.attends(name)))

    def approver_left(self) -> None:
        """Hear that a subscriber can no longer approve. A question that nobody else can answer is over."""
        self._worker.approver_left()

    def clear(self, *, started: Started = begun, dropped: Dropped = unwanted) -> None:
        """Forget the conversation; what it cost stays counted. Raise UserError while busy."""
        self.replace_messages([], started=started, dropped=dropped)

    def replace_messages(
        self, messages: Sequence[Message], *, started: Started = begun, dropped: Dropped = unwanted
    ) -> None:
        """Make ``messages`` the conversation, repaired where a provider would refuse it. Raise UserError while busy.

        ``started`` is called when that is done, ``dropped`` with the reason if it cannot be.
        """
        if not all(isinstance(message, Message) for message in messages):
            raise UserError("messages must be a list of Message")
        whole = tuple(repaired(messages))
        self._edit(lambda transcript: Spliced(0, len(transcript), whole), started, dropped)

    def undo_compact(self, *, started: Started = begun, dropped: Dropped = unwanted) -> None:
        """Put back what the newest compaction replaced, before what came after. Raise UserError while busy.

        ``started`` and ``dropped`` as for `replace_messages`; if there is nothing to undo, either that or UserError.
        """
        self._edit(undo_compaction, started, dropped)

    def rewind(self, wish: Wish) -> asyncio.Future[Rewound]:
        """Go back to an earlier point, with the files that tools have changed since. Raise UserError while busy.

        The future has what came of it, or UserError, RewindRefused, StoreFailed.
        """
        if not self._store.keeps or self._files is None:
            raise UserError("this conversation is not kept, so it cannot be rewound: use --session")
        if self.busy:
            raise RuntimeBusy("the conversation cannot be rewound while a prompt or compact is running; abort it first")
        from zot.session.rewind import rewind  # Few sessions ever need it.

        files = self._files()
        errand = Errand(lambda: rewind(self._history, self._store, files, wish, cwd=self.agent.cwd))
        self._worker.accept(errand.job)
        return errand.over

    def start(self) -> None:
        """Start the extensions, if there are any, without waiting for them. Otherwise the first prompt does."""
        self.agent.extensions.start()

    async def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, when those have had the time to say which they have, or by an abort."""
        with suppress(RunCancelled):
            await self._waits.run(self.agent.extensions.ready())
        return self.agent.extensions.commands()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run a command of an extension, and return what it wants done. Raise UserError; RunCancelled by an abort."""
        return await self._waits.run(self._command(name, args))

    def press(self, panel_id: str, key: str, text: str = "") -> None:
        """Let an open panel have a key. Raise UserError if there is no such panel or key."""
        self.agent.extensions.press(panel_id, key, text)

    def close_panel(self, panel_id: str) -> None:
        """Close a panel. Raise UserError if it is not open."""
        self.agent.extensions.close_panel(panel_id)

    def use_model(self, model_id: str) -> None:
        """Use another model of the same provider from the next model call on. Raise UserError if there is none."""
        self.agent.use_model(model_id)
        self._worker.model_changed()

    def use_reasoning(self, level: str) -> None:
        """Let the model think so much from the next model call on. Raise UserError if that is no level."""
        self.agent.use_reasoning(level)
        self._worker.model_changed()

    async def keep_choice(self) -> None:
        """Record, durably, which model is used and how it thinks. If something runs, here or elsewhere, a run does."""
        await self._worker.keep_choice()

    async def keep_setting(self, setting: Configured | Locked) -> None:
        """Record, durably, what it works with when it is opened the next time. Raise AgentError."""
        await keep(self._history, lambda: setting, self._worker.accept)

    @property
    def record(self) -> Store:
        """What is on record of it, whoever wrote that: to be read, not to be written."""
        return self._store

    async def all_messages(self) -> list[Message]:
        """Return every message that ever stood in the transcript, as far as it is kept: also compacted ones."""
        return everything([change for _, change in await self._store.changes()]) or list(self.transcript.messages)

    async def fork(self, new_id: str | None = None, *, messages: int | None = None) -> str:
        """Make another session of the first ``messages``, or of all that is safe; return its id. Raise UserError."""
        at = self._store.last_seq
        if messages is not None:
            point = fork_point(await self._store.changes(), messages)
            at = concluded(point, await self._store.read(point, CONCLUSION))
        made = new_id or new_session_id()
        await self._store.fork(made, at)
        return made

    async def mend(self) -> None:
        """End the run that a dead process left without an end, if there is one and nobody else runs the session."""
        await self._worker.mend()

    async def take_up(self, *, clock: Callable[[], float] = time.time) -> None:
        """The same, but a run that waits for a person goes on: `pending` until somebody answers, or it is too late.

        From now on there always is somebody to ask, sooner or later. ``clock`` says whether it is too late.
        """
        await self._worker.take_up(clock)

    async def establish(self) -> None:
        """Record what it works with, durably, unless that is on record; before its first prompt. Raise StoreFailed."""
        await establish(self._history, self._store, self.agent.configured())

    async def finish(self) -> None:
        """Wait until everything that was accepted has run."""
        await self._worker.finish()

    async def close(self, *, parks: bool = False, why: AgentError | None = None) -> None:
        """Abort what runs, end what it started, drop what waits, and let go of the provider. Any number of times.

        With ``parks``, a run that waits for a person is left as it is, for a process that takes it up. ``why`` is what
        is heard of what has not begun.
        """
        await self._worker.close(parks=parks, why=why)
        await self.agent.extensions.close()
        await self._jobs.close()
        await self.agent.provider.close()
        await self._release()

    def kill(self) -> None:
        """Kill what tools have running, at once and from any thread. They start nothing more; `close` may follow."""
        self._jobs.kill()

    async def _command(self, name: str, args: str) -> CommandAnswer:
        await self.agent.extensions.ready()
        return await self.agent.extensions.run_command(name, args)

    def _edit(self, edit: Edit, started: Started, dropped: Dropped) -> None:
        if self.busy:
            raise RuntimeBusy("the conversation cannot be changed while a prompt or compact is running; abort it first")
        self._worker.accept(Job(None, (), started=started, dropped=dropped, edit=edit))
