"""A session in the embedding program's own process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec

from zot.config.config import Config, ConfigOverrides, checked
from zot.errors import AgentError, RunCancelled, RuntimeBusy, RuntimeClosed, UserError
from zot.events import AgentEvent, Done, Error, SessionState
from zot.messages import Counters, ImageBlock, Message
from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
from zot.providers.base import Model
from zot.run_summary import RunSummary
from zot.runtime.open import OpenRequest, open_session, open_unrecorded
from zot.runtime.shared import SharedResources
from zot.session.history import Batch, Subscriber
from zot.session.queue import CompactJob, EditCompletion, JobObserver, PromptJob
from zot.session.session import Session
from zot.session.transcripts import RewindTarget

if TYPE_CHECKING:
    from zot.session.rewind import Rewound

#: Most undelivered events before the run pauses.
_MAX_UNREAD = 10_000


log = logging.getLogger("zot")

_RunJob: TypeAlias = PromptJob | CompactJob


class Answer(msgspec.Struct, frozen=True):
    """Result of a prompt: the text of the last message, and the usage of all its model calls.

    ``held_back`` is why an extension blocked that message; the text is then empty.
    """

    text: str
    usage: Counters
    held_back: str = ""


class Runtime:
    """One conversation with an agent, one prompt at a time. Use several for several conversations.

    Settings are those of `Config`, given as one or by name: ``Runtime(provider="lab", cwd="/srv/app")``. Create and
    use it inside a running event loop; `BlockingRuntime` is for programs without one.
    """

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        self._config = checked(settings, config)
        self._request = OpenRequest(
            config=self._config, overrides=ConfigOverrides(frozenset((*settings, *_given(config))))
        )
        self._resources = SharedResources()
        # Opening the journal must be awaited, so a recorded session is opened by `async with`.
        is_recorded = self._config.session is not None
        self._session = None if is_recorded else open_unrecorded(self._request, self._resources)
        self._closed = False
        self._replacement = _Replacement()

    async def __aenter__(self) -> Self:
        if self._session is None and not self._closed:
            self._session = await open_session(self._request, self._resources)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def prompt(self, text: str, images: Sequence[ImageBlock] = ()) -> Events:
        """Start a prompt and return its events. Raise RuntimeBusy while another one runs, UserError if it is empty."""
        session = self._idle()
        inbox = Inbox(session, can_approve=self._config.approvals, can_answer=self._config.questions)
        return Events(inbox, session.prompt(text, images, observer=inbox))

    async def run(self, text: str, images: Sequence[ImageBlock] = ()) -> Answer:
        """Run a prompt to its end and return the answer. Raise what made it fail, or RunCancelled."""
        outcome = RunSummary()
        async with self.prompt(text, images) as events:
            async for event in events:
                outcome.take((event,))
        if events.error is not None:
            raise events.error
        if events.cancelled:
            raise RunCancelled("the prompt was cancelled before it was done")
        return Answer(outcome.text, outcome.usage, outcome.held_back)

    def compact(self) -> Events:
        """Start to replace all but the newest messages by a summary; return the events. Raise RuntimeBusy if busy."""
        session = self._idle()
        inbox = Inbox(session, can_approve=self._config.approvals, can_answer=self._config.questions)
        return Events(inbox, session.compact(inbox))

    async def undo_compact(self) -> None:
        """Restore the messages that the newest compaction replaced. Raise UserError if there is none."""
        completion = EditCompletion()
        self._idle().undo_compact(completion)
        await completion.over

    def steer(self, text: str, images: Sequence[ImageBlock] = ()) -> None:
        """Steer the running prompt: add a message before its next model call. Raise AgentError if none is running."""
        session = self._open()
        if not session.worker.busy:
            raise AgentError("no run to steer; use prompt")
        session.steer(text, images)

    def cancel(self) -> None:
        """Cancel the running prompt or compaction, if any. Its events continue up to `done`."""
        self._open().abort(queue=True)

    def approve(self, request_id: str, decision: str) -> None:
        """Answer an `ApprovalRequest`: allow_once, allow_always or reject. Raise UserError if it is not pending."""
        self._open().approvals.answer(request_id, decision)

    def answer(self, request_id: str, action: str, content: Mapping[str, Any] | None = None) -> None:
        """Answer a `QuestionRequest`: accept with the values of its fields, decline or cancel.

        Needs ``questions=True``; otherwise questions are declined. Raise UserError if it is not open or a value does
        not fit.
        """
        self._open().worker.questions.answer(request_id, action, content)

    def set_model(self, model_id: str) -> None:
        """Use another model of the same provider from the next model call on. Raise UserError if there is none."""
        self._open().use_model(model_id)

    def list_models(self) -> Sequence[Model]:
        """Return the models known for the provider."""
        return self._open().agent.catalogue.models

    @property
    def state(self) -> SessionState:
        """A snapshot: provider, model, directory, number of messages, usage, and whether it is busy."""
        return self._open().state()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The complete conversation, as `set_messages` of another Runtime takes it."""
        return tuple(self._open().history.transcript.messages)

    def set_messages(self, messages: Sequence[Message]) -> None:
        """Replace the conversation by ``messages``. Raise UserError while busy.

        In a recorded session this takes effect before the next prompt; if it fails, the next call raises the reason.
        """
        self._open().replace_messages(messages, self._replacement)

    async def rewind(
        self, *, messages: int | None = None, at: int | None = None, files: bool = True, preview: bool = False
    ) -> Rewound:
        """Go back to the first ``messages``, or to the row ``at``; restore the files that tools have changed since.

        With ``preview`` nothing changes; the result says what would. Raise RewindRefused, changing nothing, if another
        program has changed one of the files; UserError while busy.
        """
        return await self._open().rewind(RewindTarget(messages, at, files, preview))

    async def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, after waiting for the extensions to register them."""
        return await self._open().commands()

    def resources(self) -> Sequence[ResourceInfo]:
        """Return the resources of MCP servers that prompts can mention, as far as they are known."""
        return self._open().resources()

    async def run_command(self, name: str, args: str = "") -> CommandAnswer:
        """Run a command of an extension and return the action it asks for, which the caller carries out.

        Raise UserError if there is no such command, or with the error that the extension reports.
        """
        return await self._open().run_command(name, args)

    def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        """Send a key to an extension's panel. Raise UserError if there is no such panel or key."""
        self._open().extensions.panels.send_key(panel_id, key, text)

    def close_panel(self, panel_id: str) -> None:
        """Close an extension's panel. Raise UserError if it is not open."""
        self._open().extensions.panels.close(panel_id)

    def listen(self, hear: Callable[[AgentEvent], None]) -> Callable[[], None]:
        """Call ``hear`` with every event from now on, including notices and panels between prompts.

        Return a function that ends the subscription. ``hear`` must not block; if it raises, the log has the
        traceback and the run continues.
        """
        return self._open().history.subscribe(EventListener(hear))

    @property
    def cost(self) -> float | None:
        """Cost of the conversation so far in US dollars; None if a price is unknown."""
        return self._open().history.totals.cost

    async def close(self) -> None:
        """Cancel the running prompt and release all resources. Idempotent."""
        self._closed = True
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            await self._resources.close()

    def _open(self) -> Session:
        if self._closed:
            raise RuntimeClosed("this Runtime has been closed")
        if (why := self._replacement.failure) is not None:
            self._replacement.failure = None
            raise AgentError(f"the conversation could not be replaced: {why}")
        if self._session is None:
            raise UserError("a Runtime with a session must be opened: use it in `async with`")
        return self._session

    def _idle(self) -> Session:
        session = self._open()
        if session.worker.busy and not (session.worker.aborting and not session.queue):
            raise RuntimeBusy("a prompt or compact is running; wait for its done, cancel it, or use another Runtime")
        return session


class _Replacement(JobObserver):
    """Keeps the failure of `Runtime.set_messages`, which has returned by then."""

    def __init__(self) -> None:
        self.failure: AgentError | None = None

    def dropped(self, why: AgentError) -> None:
        self.failure = why


class Events:
    """The events of one run, in order, ending with `done`. Iterate over it once.

    Leaving early cancels the run: on `aclose`, at the end of an ``async with``, or when the last reference is dropped.
    Unread events pause the run; none is dropped.
    """

    def __init__(self, inbox: Inbox, job: _RunJob) -> None:
        self._inbox = inbox
        self._job = inbox.job = job

    @property
    def error(self) -> AgentError | None:
        """Why the run failed; None if it did not, or is not over."""
        return self._job.error

    @property
    def cancelled(self) -> bool:
        """True if the run was cancelled."""
        return self._job.aborted

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        event = await self._inbox.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def batch(self) -> list[AgentEvent]:
        """Wait for at least one event and return all unread ones; empty at the end."""
        return await self._inbox.batch()

    async def aclose(self) -> None:
        """Cancel the run if it is not over, and wait until it has stopped."""
        if not self._inbox.over:
            await self._inbox.abandon(self._job)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self._inbox.over:
            self._inbox.abandon_soon(self._job)


class EventListener(Subscriber):
    """A subscriber that passes every event to a callback and never pauses the run. A callback that raises costs the
    run nothing: the log has the traceback.
    """

    def __init__(self, hear: Callable[[AgentEvent], None]) -> None:
        self._hear = hear

    def deliver(self, batch: Batch) -> None:
        for event in batch.events:
            try:
                self._hear(event)
            except Exception:  # the embedder's code
                log.exception("a listener of zot.Runtime raised")


class Inbox(Subscriber, JobObserver):
    """The subscriber that buffers one run's events for `Events`."""

    can_approve = False
    can_answer = False

    def __init__(self, session: Session, *, can_approve: bool, can_answer: bool) -> None:
        self.can_approve = can_approve
        self.can_answer = can_answer
        self.job: _RunJob | None = None
        self._session = session
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UserError(
                "no event loop is running: use zot.Runtime in an async function, or zot.BlockingRuntime"
            ) from None
        self._unread: deque[AgentEvent] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._taken: asyncio.Future[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self.over = False

    def started(self) -> None:
        """Subscribe: the run starts."""
        self._unsubscribe = self._session.history.subscribe(self)

    def dropped(self, why: AgentError) -> None:
        """End: the run will never start. Unless it was cancelled, emit the reason and `done`."""
        if not isinstance(why, RunCancelled):
            self._unread.extend((Error(str(why)), Done()))
        self._end()

    def deliver(self, batch: Batch) -> None:
        """Buffer a batch of events."""
        self._unread.extend(batch.events)
        if isinstance(batch.events[-1], Done):
            self._end()
        _resolve(self._arrived)

    @property
    def full(self) -> bool:
        """True while too much is unread."""
        return len(self._unread) > _MAX_UNREAD

    async def room(self) -> None:
        """Wait until enough has been read or the run is over."""
        while self.full and not self.over:
            self._taken = self._loop.create_future()
            await self._taken

    async def next(self) -> AgentEvent | None:
        """Return the next event; None at the end."""
        if not self._unread and not self.over:
            await self._arrival()
        event = self._unread.popleft() if self._unread else None
        if not self.full:
            _resolve(self._taken)
        return event

    async def batch(self) -> list[AgentEvent]:
        """Wait for at least one event and return all unread ones; empty at the end."""
        if not self._unread and not self.over:
            await self._arrival()
        events = list(self._unread)
        self._unread.clear()
        _resolve(self._taken)
        return events

    async def abandon(self, job: _RunJob) -> None:
        """Cancel the run and wait until it has stopped."""
        self._end()
        self._session.worker.cancel(job)
        await self._session.worker.finish()

    def abandon_soon(self, job: _RunJob) -> None:
        """Cancel the run from any thread: the garbage collector may call this in another one."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._end()
            self._session.worker.cancel(job)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._session.worker.cancel, job)

    def _end(self) -> None:
        self.over = True
        self._unsubscribe()
        _resolve(self._arrived)
        _resolve(self._taken)

    async def _arrival(self) -> None:
        self._arrived = self._loop.create_future()
        await self._arrived


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _given(config: Config | None) -> list[str]:
    """Return the settings of a Config that differ from their defaults."""
    usual = Config()
    return (
        []
        if config is None
        else [name for name in config.__struct_fields__ if getattr(config, name) != getattr(usual, name)]
    )
