"""One run: what a prompt says and records on its way to `done`. Does no I/O.

The loop that awaits models and tools tells a `Run` what happened; the run decides what is emitted and what goes
into the transcript, in which order. Its owner ends it, also when the loop was cancelled before its first step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from zot.agent.hooks import Answer, CallDecision, MessageDecision
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
from zot.providers.base import Reply, StreamEvent
from zot.store import Began, Change, Said, Spliced, Wrote
from zot.tools.base import Output

ABORTED_RESULT = "aborted before it finished"


class Recorder(Protocol):
    """Where a run's words go: recorded first, then shown."""

    @property
    def transcript(self) -> Transcript:
        """The conversation so far."""

    def say(self, events: Sequence[AgentEvent], *changes: Change) -> None:
        """Record changes of the transcript and make them; record ``events`` and show them. Raise StoreFailed."""

    def count(self, counters: Counters) -> Counters:
        """Price one reply's tokens, add them up, and return them with their price."""

    @property
    def totals(self) -> Counters:
        """What the session has used so far."""

    @property
    def keeps(self) -> bool:
        """True if what is recorded can be had back."""

    async def drain(self) -> None:
        """Wait until whoever must not miss anything has caught up."""

    async def settled(self) -> None:
        """Wait until all that was said is safely recorded. Raise StoreFailed."""

    async def synced(self) -> None:
        """Wait until all that was said survives a loss of power. Raise StoreFailed."""


class Phase(enum.Enum):
    """Where a run is, as far as ending it is concerned."""

    BETWEEN = "between turns"
    ASKING = "asking the model"
    HEARING = "hearing the model"
    USING_TOOLS = "using tools"


class Run:
    """What one prompt or compact says and records."""

    def __init__(self, recorder: Recorder, *, owners: tuple[str, ...] = (), now: Callable[[], str] = timestamp) -> None:
        self.recorder = recorder
        #: The keys by which what its tools leave running is known: its session's, and its own.
        self.owners = owners
        self.now = now
        self._phase = Phase.BETWEEN
        self._partial: Callable[[], Reply] | None = None
        self._holding = False
        self._has_held = False
        #: How many model calls have been made, and whether the last one left nothing to do.
        self.step = 0
        self.answered = False
        #: How often the model was told that its answer is not as it must be.
        self.complaints = 0
        #: Whether the conversation has been made shorter because the service found it too long.
        self.relieved = False
        #: Whether it should have been made shorter before it was sent, and could not be.
        self.cramped = False
        #: What was decided about calls, by id: by extensions, and by a person.
        self.decisions: dict[str, CallDecision] = {}
        self.answers: dict[str, Answer] = {}
        #: What calls that were interrupted had to say, by id.
        self.last_words: dict[str, str] = {}
        #: Whether a person was asked in this turn: then what is about to run is on record first.
        self._careful = False

    def go_on(self, step: int) -> None:
        """Stand where another life of the run waited for a person: in its turn ``step``, with calls open."""
        self._phase, self.step, self._careful = Phase.USING_TOOLS, step, True

    def prompt(self, text: str, images: Sequence[ImageBlock] = (), *, channel: str = "", prompt_id: str = "") -> None:
        """The user said something, in a ``channel`` if that is known: the beginning of a run, or steering it."""
        blocks: tuple[TranscriptBlock, ...] = (*((TextBlock(text),) if text else ()), *images)
        message = Message("user", blocks, self.now(), origin=channel)
        self.recorder.say(
            [UserMessage(show(message).content, message.time, prompt_id)], *self._repairs(), Said(message)
        )

    def resume(self) -> None:
        """Go on with a prompt that stands in the transcript: what was being said in answer to it is said anew."""
        messages = self.recorder.transcript.messages
        kept = next((at for at in range(len(messages), 0, -1) if messages[at - 1].role != "assistant"), 0)
        dropped = [Spliced(kept, len(messages), ())] if kept < len(messages) else []
        self.recorder.say([], *self._repairs(), *dropped)

    def take_back(self, text: str) -> None:
        """If ``text`` is what was said last, nobody could hear it: it is as if it had not been said."""
        messages = self.recorder.transcript.messages
        if messages and messages[-1].role == "user" and text_of(messages[-1].content) == text:
            self.recorder.say([], Spliced(len(messages) - 1, len(messages), ()))

    def turn_started(self) -> None:
        """A model call is about to be made."""
        self._phase, self.answered = Phase.ASKING, False
        self.step += 1
        # Ids are the model's, and some give the same one again and again.
        self.decisions.clear()
        self.answers.clear()
        self.last_words.clear()
        self._careful = False
        self.recorder.say([TurnStart(self.step)])

    def retrying(self, reason: str, *, attempt: int, delay_s: float) -> None:
        """The model service failed before it answered; it will be asked again."""
        self.recorder.say([Retry(reason, attempt, round(delay_s * 1000))])

    def reply_started(self, partial: Callable[[], Reply], *, holding: bool) -> None:
        """The model began to answer; ``partial`` returns what it said so far. Text is held back if ``holding``."""
        self._phase, self._partial, self._holding, self._has_held = Phase.HEARING, partial, holding, False
        self.recorder.say([AssistantStart()])

    def heard(self, events: Sequence[StreamEvent]) -> bool:
        """The model said more. Return True if text of its message was held back for the first time."""
        shown = events
        if self._holding:
            shown = [event for event in events if not isinstance(event, TextDelta | ThinkingDelta)]
        if shown:
            self.recorder.say(shown)
        is_first = len(shown) < len(events) and not self._has_held
        self._has_held |= is_first
        return is_first

    def reply_ended(self, reply: Reply, decision: MessageDecision | None) -> None:
        """The model has answered. The calls it made are open now, each of which needs a result."""
        content, stop = _settled(reply)
        calls = tuple(block for block in content if isinstance(block, CallBlock))
        self._say(reply, content, decision, *(ToolCall(call.id, call.name, call.args) for call in calls), TurnEnd(stop))
        self._phase, self._partial = Phase.USING_TOOLS if calls else Phase.BETWEEN, None
        self.answered = not calls

    def open_calls(self) -> list[CallBlock]:
        """Return the calls that still need a result, in order."""
        return self.recorder.transcript.unanswered() if self._phase is Phase.USING_TOOLS else []

    def asked(self, request: ApprovalRequest) -> None:
        """A person must decide about a call."""
        self._careful = True
        self.recorder.say([request])

    def decided(self, answer: ApprovalAnswer, *changes: Change) -> None:
        """That is what came of asking; ``changes`` are what else follows from it."""
        self.recorder.say([answer], *changes)

    async def beginning(self, calls: Sequence[CallBlock], *, changing: bool) -> None:
        """Record that calls are about to run, as far as a repetition after a crash must know that.

        Once a person was asked, each call is recorded by name. If one is ``changing`` something, all that was said is
        synced first: after a loss of power, the transcript still shows the call, and it does not run again.
        """
        if self._careful and self.recorder.keeps and calls:
            self.recorder.say([], *(Began(call.id) for call in calls))
            await self.recorder.settled()
        if changing:
            await self.recorder.synced()

    async def progressed(self, call: CallBlock, text: str) -> None:
        """A running tool has something to show. Waits for those who must see it."""
        self.recorder.say([ToolProgress(call.id, text)])
        await self.recorder.drain()

    async def writing(self, call: CallBlock, change: Wrote) -> None:
        """A call is about to change a file. Waits until what the file was is safe."""
        self.recorder.say([], msgspec.structs.replace(change, call=call.id))
        await self.recorder.settled()

    def result(self, call: CallBlock, output: Output, *, is_error: bool, extension: str = "") -> None:
        """A call has its result, from a tool of ``extension`` if it is not one of our own."""
        details = ResultDetails(extension) if extension else None
        message = Message("tool", (ResultBlock(call.id, is_error, output),), self.now())
        self.recorder.say([ToolResult(call.id, is_error, show_result_content(output), details)], Said(message))

    def spent(self, counters: Counters) -> None:
        """A model call of which nothing is shown has used this much."""
        self.recorder.say([self._usage(counters, auto=self._phase is Phase.ASKING)])

    def compacted(self, change: Spliced, summary: str, *, pruned: int = 0) -> None:
        """The conversation is told more shortly from now on. Inside a turn, nobody had asked for that."""
        self.recorder.say([CompactDone(summary, self._phase is Phase.ASKING, pruned)], change)

    def failed(self, error: AgentError) -> None:
        """The run ends because something broke. What had arrived is kept."""
        if self._phase is Phase.HEARING:
            self._say_partial()
        self._close_calls(f"not run: {error}")
        ending: list[AgentEvent] = []
        if self._phase in (Phase.ASKING, Phase.HEARING):
            ending.append(TurnEnd("error", str(error)))
        if not isinstance(error, TurnBlocked):  # A guard at work is no fault; the turn's end says why.
            ending.append(Error(str(error)))
        self._phase = Phase.BETWEEN
        self.recorder.say(ending)

    def aborted(self) -> None:
        """The run ends because somebody wanted it to. Says so in every phase."""
        if self._phase is Phase.HEARING:
            self._say_partial()
        self._close_calls(ABORTED_RESULT)
        self._phase = Phase.BETWEEN
        self.recorder.say([TurnEnd("aborted")])

    def done(self) -> None:
        """Nothing of this run follows."""
        self.recorder.say([Done()])

    def _say_partial(self) -> None:
        """Keep and show what the model said before it was interrupted; a call it had begun is dropped."""
        assert self._partial is not None
        reply, self._partial = self._partial(), None
        content = tuple(block for block in reply.content if not isinstance(block, CallBlock))
        held = MessageDecision("", refusal="") if self._holding else None
        self._say(reply, content, held)

    def _say(
        self,
        reply: Reply,
        content: tuple[TranscriptBlock, ...],
        decision: MessageDecision | None,
        *then: AgentEvent,
    ) -> None:
        """Record ``content``, what is kept of a reply, and show it, together with what it cost and what follows."""
        shown_text = None if decision is None else "" if decision.refusal is not None else decision.text
        message = Message("assistant", content, self.now(), shown_text=shown_text, origin=reply.origin)
        events: list[AgentEvent] = [TextDelta(shown_text)] if shown_text else []
        events.append(self._usage(reply.counters))
        if decision is not None and decision.refusal is not None:
            # A notice, not an `error`: clients take that for the end of a run that failed.
            if decision.refusal:
                events.append(ExtNotify(decision.extension, "warn", decision.refusal, "assistant_message"))
        elif content:
            events.append(AssistantMessage(show(message).content, message.time))
        self.recorder.say([*events, *then], *([Said(message)] if content else []))

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
        """Return the results of calls that lost theirs because it could not be recorded."""
        lost = (TextBlock("the result was lost: it could not be recorded"),)
        calls = self.recorder.transcript.unanswered()
        return [Said(Message("tool", (ResultBlock(call.id, True, lost),), self.now())) for call in calls]

    def _close_calls(self, text: str) -> None:
        """Give every call that has no result one: providers refuse a transcript with an open call."""
        for call in self.recorder.transcript.unanswered():
            self.result(call, (TextBlock(self.last_words.pop(call.id, text)),), is_error=True)


def _settled(reply: Reply) -> tuple[tuple[TranscriptBlock, ...], Stop]:
    """Return content and stop reason that agree: calls are kept if and only if they will be run."""
    calls = any(isinstance(block, CallBlock) for block in reply.content)
    match reply.stop:
        case "tool_use" | "end_turn":
            return reply.content, "tool_use" if calls else "end_turn"
        case _:
            # Cut off at the length limit: what it still wanted to call was never announced and is not run.
            return tuple(block for block in reply.content if not isinstance(block, CallBlock)), reply.stop
