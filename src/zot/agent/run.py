"""One run: the events and transcript changes of a prompt until its `done`. Does no I/O.

The loop that awaits models and tools reports each step to a `Run`; the run decides which events and rows follow, in
which order. Its owner ends it, also if the loop was cancelled before its first step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from zot.agent.hooks import ApprovalVerdict, CallDecision, MessageDecision
from zot.agent.transcript import Transcript
from zot.errors import AgentError, TurnBlocked
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    AssistantMessage,
    AssistantStart,
    CompactDone,
    Done,
    Error,
    ExtNotify,
    ResultDetails,
    Retry,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    TurnEnd,
    TurnStart,
    Usage,
    UserMessage,
)
from zot.messages import (
    CallBlock,
    Counters,
    ImageBlock,
    Message,
    ResultBlock,
    Stop,
    TextBlock,
    TranscriptBlock,
    show,
    show_result_content,
    text_of,
    timestamp,
)
from zot.providers.base import ModelReply, ReplyStream, StreamEvent
from zot.run_summary import BlockedCall
from zot.store import CallStarted, Change, FileChanged, MessageAdded, MessagesReplaced, Store
from zot.tools.base import CallReporter, Output

if TYPE_CHECKING:
    from zot.questions import Question, QuestionReply

ABORTED_RESULT = "aborted before it finished"


class Recorder(Protocol):
    """Destination of a run's events: recorded first, then shown."""

    @property
    def transcript(self) -> Transcript:
        """The conversation so far."""

    def emit(self, events: Sequence[AgentEvent], *changes: Change) -> None:
        """Record and apply changes of the transcript; record and show ``events``. Raise StoreFailed."""

    def count(self, counters: Counters) -> Counters:
        """Price one reply's tokens, add them to the totals, and return them with their price."""

    @property
    def totals(self) -> Counters:
        """The session's usage so far."""

    @property
    def store(self) -> Store:
        """The rows, where callers can wait until they are safe. They are appended by `emit` alone."""

    async def drain(self) -> None:
        """Wait until the subscribers that must not miss events have caught up."""


class AskUser(Protocol):
    """Asks the user a question of a tool call."""

    async def __call__(self, run: Run, question: Question, call: str) -> QuestionReply: ...


class RunPhase(enum.Enum):
    """Phase of a run; ending it depends on this."""

    BETWEEN = "between turns"
    ASKING = "asking the model"
    RECEIVING = "receiving the reply"
    USING_TOOLS = "using tools"
    ANSWERED = "answered: the last reply left nothing to do"


class ReplyText(enum.Enum):
    """Delivery of the current reply's text to clients."""

    SHOWN = "shown as it arrives"
    WITHHELD = "withheld until an extension decides"
    ANNOUNCED = "withheld, and clients know"


class Run:
    """The events and transcript changes of one prompt or compact."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        owners: tuple[str, ...] = (),
        now: Callable[[], str] = timestamp,
        ask: AskUser | None = None,
    ) -> None:
        """``ask`` asks the user a question of a tool call; without it no user can be asked."""
        self.recorder = recorder
        self.ask = ask
        #: Keys of the processes its tools leave running: the session's, and its own.
        self.owners = owners
        self.now = now
        self.phase = RunPhase.BETWEEN
        self._partial: ReplyStream | None = None
        self._text = ReplyText.SHOWN
        #: Model calls made so far.
        self.step = 0
        #: Corrections sent to the model about its answer.
        self.complaints = 0
        #: Whether the conversation was shortened because the service found it too long.
        self.relieved = False
        #: Whether it should have been shortened before a request, and could not be.
        self.cramped = False
        #: Decisions about calls, by id: of extensions, and of a person.
        self.decisions: dict[str, CallDecision] = {}
        self.answers: dict[str, ApprovalVerdict] = {}
        #: How often open calls, by id, have started in processes that are gone.
        self.begun: Mapping[str, int] = {}
        #: Final output of interrupted calls, by id.
        self.last_words: dict[str, str] = {}
        #: Names of the tokens whose clients prompted or steered it; "" for local ones.
        self.prompted_by: set[str] = set()
        #: Calls that could not run. The user can change that.
        self.blocked: list[BlockedCall] = []
        #: Whether a person was asked in this turn: then calls are recorded before they start.
        self._careful = False

    def unpark(self, step: int, begun: Mapping[str, int] | None = None) -> None:
        """Continue a parked run in its turn ``step``, with calls open.

        ``begun`` says how often each of them has started in processes that are gone.
        """
        self.phase, self.step, self._careful, self.begun = RunPhase.USING_TOOLS, step, True, begun or {}

    def prompt(
        self, text: str, images: Sequence[ImageBlock] = (), *, channel: str = "", prompt_id: str = "", by: str = ""
    ) -> None:
        """Add a user message, from a ``channel`` if known: the start of a run, or steering.

        ``by`` names the token of a client that sent it over the network.
        """
        self.prompted_by.add(by)
        blocks: tuple[TranscriptBlock, ...] = (*((TextBlock(text),) if text else ()), *images)
        message = Message("user", blocks, self.now(), origin=channel)
        self.recorder.emit(
            [UserMessage(show(message).content, message.time, prompt_id, by)], *self._repairs(), MessageAdded(message)
        )

    def resume(self) -> None:
        """Repeat the newest prompt in the transcript: drop the interrupted answer to it."""
        messages = self.recorder.transcript.messages
        kept = next((at for at in range(len(messages), 0, -1) if messages[at - 1].role != "assistant"), 0)
        dropped = [MessagesReplaced(kept, len(messages), ())] if kept < len(messages) else []
        self.recorder.emit([], *self._repairs(), *dropped)

    def withdraw_prompt(self, text: str) -> None:
        """Remove the newest message if it is the user's ``text``: the model could not receive it."""
        messages = self.recorder.transcript.messages
        if messages and messages[-1].role == "user" and text_of(messages[-1].content) == text:
            self.recorder.emit([], MessagesReplaced(len(messages) - 1, len(messages), ()))

    def turn_started(self) -> None:
        """Record that a model call is about to be made."""
        self.phase = RunPhase.ASKING
        self.step += 1
        # Ids come from the model, and some models reuse them.
        self.decisions.clear()
        self.answers.clear()
        self.last_words.clear()
        self._careful, self.begun = False, {}
        self.recorder.emit([TurnStart(self.step)])

    def retrying(self, reason: str, *, attempt: int, delay_s: float) -> None:
        """Record that the model service failed before it answered and will be retried."""
        self.recorder.emit([Retry(reason, attempt, round(delay_s * 1000))])

    def reply_started(self, call: ReplyStream, *, withheld: bool) -> None:
        """Record that the model began to answer the ``call``; with ``withheld`` its text is not shown yet."""
        self.phase, self._partial = RunPhase.RECEIVING, call
        self._text = ReplyText.WITHHELD if withheld else ReplyText.SHOWN
        self.recorder.emit([AssistantStart()])

    def received(self, events: Sequence[StreamEvent]) -> bool:
        """Record more of the reply. Return True if text of it is withheld for the first time."""
        if self._text is ReplyText.SHOWN:
            self.recorder.emit(events)
            return False
        shown = [event for event in events if not isinstance(event, TextDelta | ThinkingDelta)]
        if shown:
            self.recorder.emit(shown)
        if len(shown) == len(events) or self._text is ReplyText.ANNOUNCED:
            return False
        self._text = ReplyText.ANNOUNCED
        return True

    def reply_ended(self, reply: ModelReply, decision: MessageDecision | None) -> None:
        """Record the complete reply. Its tool calls are then open until each has a result."""
        content, stop = _settled(reply)
        calls = tuple(block for block in content if isinstance(block, CallBlock))
        self._say(reply, content, decision, *(ToolCall(call.id, call.name, call.args) for call in calls), TurnEnd(stop))
        self.phase, self._partial = RunPhase.USING_TOOLS if calls else RunPhase.ANSWERED, None

    def open_calls(self) -> list[CallBlock]:
        """Return the calls without a result, in order."""
        return self.recorder.transcript.unanswered() if self.phase is RunPhase.USING_TOOLS else []

    def approval_requested(self, request: ApprovalRequest) -> None:
        """Record that a person must decide about a call."""
        self._careful = True
        self.recorder.emit([request])

    def approval_answered(self, answer: ApprovalAnswer, *changes: Change) -> None:
        """Record the outcome of an approval request, with the ``changes`` that follow from it."""
        self.recorder.emit([answer], *changes)

    async def beginning(self, calls: Sequence[CallBlock], *, changing: bool) -> None:
        """Record that calls are about to start, as far as recovery after a crash needs it.

        Once a person was asked, or if another process may continue the run, each call is recorded by id. If a call is
        ``changing`` anything, all rows are synced first: after a power loss the transcript still shows the call, and it
        does not run again.
        """
        store = self.recorder.store
        if calls and store.keeps and (self._careful or store.is_continued):
            self.recorder.emit([], *(CallStarted(call.id) for call in calls))
            if self._careful:
                await store.settled()
        if changing:
            await self.recorder.store.synced()

    def result(self, call: CallBlock, output: Output, *, is_error: bool, extension: str = "") -> None:
        """Record a call's result; ``extension`` names the provider of the tool, "" for built-in ones."""
        details = ResultDetails(extension) if extension else None
        message = Message("tool", (ResultBlock(call.id, is_error, output),), self.now())
        self.recorder.emit([ToolResult(call.id, is_error, show_result_content(output), details)], MessageAdded(message))

    def spent(self, counters: Counters) -> None:
        """Record the usage of a model call that is not shown."""
        self.recorder.emit([self._usage(counters, auto=self.phase is RunPhase.ASKING)])

    def compacted(self, change: MessagesReplaced, summary: str, *, pruned: int = 0) -> None:
        """Record a compaction. Inside a turn it was automatic."""
        self.recorder.emit([CompactDone(summary, self.phase is RunPhase.ASKING, pruned)], change)

    def failed(self, error: AgentError) -> None:
        """End the run after a failure. The partial reply is kept."""
        if self.phase is RunPhase.RECEIVING:
            self._say_partial()
        self._close_calls(f"not run: {error}")
        ending: list[AgentEvent] = []
        if self.phase in (RunPhase.ASKING, RunPhase.RECEIVING):
            ending.append(TurnEnd("error", str(error)))
        if not isinstance(error, TurnBlocked):  # A block is no fault; the turn's end has the reason.
            ending.append(Error(str(error)))
        self.phase = RunPhase.BETWEEN
        self.recorder.emit(ending)

    def aborted(self) -> None:
        """End the run on request. Emits `turn_end` in every phase."""
        if self.phase is RunPhase.RECEIVING:
            self._say_partial()
        self._close_calls(ABORTED_RESULT)
        self.phase = RunPhase.BETWEEN
        self.recorder.emit([TurnEnd("aborted")])

    def done(self) -> None:
        """Emit `done`; nothing of this run follows."""
        self.recorder.emit([Done()])

    def _say_partial(self) -> None:
        """Record and show an interrupted reply, without its tool calls."""
        assert self._partial is not None
        reply, self._partial = self._partial.reply(), None
        content = tuple(block for block in reply.content if not isinstance(block, CallBlock))
        held = None if self._text is ReplyText.SHOWN else MessageDecision("", refusal="")
        self._say(reply, content, held)

    def _say(
        self,
        reply: ModelReply,
        content: tuple[TranscriptBlock, ...],
        decision: MessageDecision | None,
        *then: AgentEvent,
    ) -> None:
        """Record and show ``content``, the part of a reply that is kept, with its usage and the events ``then``."""
        shown_text = None if decision is None else "" if decision.refusal is not None else decision.text
        message = Message("assistant", content, self.now(), shown_text=shown_text, origin=reply.origin)
        events: list[AgentEvent] = [TextDelta(shown_text)] if shown_text else []
        events.append(self._usage(reply.counters))
        if decision is not None and decision.refusal is not None:
            # A notice, not an `error`: clients read that as the end of a failed run.
            if decision.refusal:
                events.append(ExtNotify(decision.extension, "warn", decision.refusal, "assistant_message"))
        elif content:
            events.append(AssistantMessage(show(message).content, message.time))
        self.recorder.emit([*events, *then], *([MessageAdded(message)] if content else []))

    def _usage(self, counters: Counters, *, auto: bool = False) -> Usage:
        priced = self.recorder.count(counters)
        return Usage(
            priced.input,
            priced.output,
            priced.cache_read,
            priced.cache_write,
            priced.cost_usd,
            self.recorder.totals,
            priced.price_known,
            priced.reasoning,
            auto,
        )

    def _repairs(self) -> list[Change]:
        """Return results for calls whose own results could not be recorded."""
        lost = (TextBlock("the result was lost: it could not be recorded"),)
        calls = self.recorder.transcript.unanswered()
        return [MessageAdded(Message("tool", (ResultBlock(call.id, True, lost),), self.now())) for call in calls]

    def _close_calls(self, text: str) -> None:
        """Give every open call a result: providers refuse a transcript with an open call."""
        for call in self.recorder.transcript.unanswered():
            self.result(call, (TextBlock(self.last_words.pop(call.id, text)),), is_error=True)


class QuietCall(CallReporter):
    """Passes on the questions of one ``call`` of a ``run``. It runs beside others, so its progress is not shown."""

    def __init__(self, run: Run, call: CallBlock) -> None:
        self._run = run
        self._call = call

    async def ask(self, question: Question) -> QuestionReply:
        if self._run.ask is None:
            return await super().ask(question)
        return await self._run.ask(self._run, question, self._call.id)


class RecordedCall(QuietCall):
    """Records and shows the reports of one ``call`` of a ``run``."""

    def __init__(self, run: Run, call: CallBlock) -> None:
        super().__init__(run, call)
        self.keeps_changes = run.recorder.store.keeps

    async def progress(self, text: str) -> None:
        self._run.recorder.emit([ToolProgress(self._call.id, text)])
        await self._run.recorder.drain()

    async def writing(self, change: FileChanged) -> None:
        self._run.recorder.emit([], msgspec.structs.replace(change, call=self._call.id))
        await self._run.recorder.store.settled()  # The old content must be safe before it is replaced.

    def last_words(self, text: str) -> None:
        self._run.last_words[self._call.id] = text


def _settled(reply: ModelReply) -> tuple[tuple[TranscriptBlock, ...], Stop]:
    """Return content and stop reason that agree: calls are kept if and only if they will run."""
    calls = any(isinstance(block, CallBlock) for block in reply.content)
    match reply.stop:
        case "tool_use" | "end_turn":
            return reply.content, "tool_use" if calls else "end_turn"
        case _:
            # Cut off at the length limit: an incomplete call was never announced and is not run.
            return tuple(block for block in reply.content if not isinstance(block, CallBlock)), reply.stop
