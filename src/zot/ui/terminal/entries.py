"""Events become entries of a transcript. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from zot.events import (
    AgentEvent,
    AssistantMessage,
    AssistantStart,
    CompactDone,
    Done,
    Error,
    ExtNotify,
    ExtWaiting,
    Retry,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    ToolUseArgs,
    ToolUseStart,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from zot.messages import PastMessage, ShownBlock, ShownCall, ShownImage, ShownResult, Stop, TextBlock, text_of
from zot.ui.readable import duration, ended
from zot.ui.terminal.calls import CallEntry
from zot.ui.terminal.entries_part import AnswerEntry, Entry, NoteEntry, ThoughtEntry, UserEntry, image


class Story:
    """Tells a conversation, from its messages and then from its events, by entries that it gives to ``add``."""

    def __init__(self, add: Callable[[Entry], None], pictured: Callable[[Entry, str], None]) -> None:
        """``pictured`` is told of entries that have images, and where those are."""
        self._add = add
        self._pictured = pictured
        self._answer: AnswerEntry | None = None
        self._thought: ThoughtEntry | None = None
        self._calls: dict[str, CallEntry] = {}
        #: Why the newest model call of the run failed; "" if it did not.
        self._error = ""
        #: What is going on, in a word or two; "" when nothing is.
        self.doing = ""
        #: The same of the run that is over.
        self.failure = ""

    def recall(self, messages: Iterable[PastMessage]) -> None:
        """Tell what was said before."""
        for message in messages:
            if message.role == "user":
                self._say_user(message.content, message.time)
            elif message.role == "assistant":
                if message.thought.strip():
                    self._add(ThoughtEntry(message.thought))
                self._recall(message.content)
            else:
                for block in message.content:
                    if isinstance(block, ShownResult):
                        self._finish(block.call_id, block.content, is_error=block.is_error)
            self._note_end(message.stop, message.error)

    def tell(self, events: Iterable[AgentEvent]) -> None:
        """Tell what happened."""
        for event in events:
            self._tell(event)

    def call(self, call_id: str) -> CallEntry | None:
        """Return a call that has no result yet."""
        return self._calls.get(call_id)

    @property
    def running(self) -> CallEntry | None:
        """The call that runs, or waits to: the first that has no result."""
        return next(iter(self._calls.values()), None)

    def _tell(self, event: AgentEvent) -> None:
        """Panels and questions are not part of the story; what we do not know yet is not, either."""
        told = _TOLD.get(type(event))
        if told is not None:
            told(self, event)

    def _asked(self, event: UserMessage) -> None:
        self._say_user(event.content, event.time)
        self.doing, self._error = "waiting for the model", ""

    def _begin_turn(self, event: TurnStart) -> None:
        self.doing = "waiting for the model"

    def _begin_answer(self, event: AssistantStart) -> None:
        self._answer = self._thought = None

    def _begin_call(self, event: ToolUseStart) -> None:
        self._end_thought()
        self._known(event.id, event.name)
        self.doing = f"writing a call of {event.name}"

    def _write_call(self, event: ToolUseArgs) -> None:
        if (called := self._calls.get(event.id)) is not None:
            called.write(event.delta)

    def _call(self, event: ToolCall) -> None:
        self._known(event.id, event.name).called(event.args)
        self.doing = f"running {event.name}"

    def _progress(self, event: ToolProgress) -> None:
        if (called := self._calls.get(event.id)) is not None:
            called.progress(event.text)

    def _result(self, event: ToolResult) -> None:
        extension = event.details.extension if event.details else ""
        self._finish(event.id, event.content, is_error=event.is_error, extension=extension)

    def _fail(self, event: Error) -> None:
        if event.message != self._error:  # Else the end of the turn has said so.
            self._add(NoteEntry(event.message, "error"))

    def _try_again(self, event: Retry) -> None:
        when = f"again in {duration(event.delay_ms)} (try {event.attempt + 1})"
        self.doing = f"{when}: {event.reason}"

    def _wait(self, event: ExtWaiting) -> None:
        if event.what == "held assistant_message":
            self.doing = f"held by {event.extension}"
        elif self.doing and not event.what.startswith("command "):  # That is no wait of the run.
            self.doing = f"waiting for {event.extension}: {event.what}"

    def _notice(self, event: ExtNotify) -> None:
        self._add(NoteEntry(event.message, event.level, source=event.extension))

    def _say(self, event: TextDelta) -> None:
        self._end_thought()
        if self._answer is None:
            self._answer = AnswerEntry()
            self._add(self._answer)
        self._answer.add(event.delta)
        self.doing = "answering"

    def _think(self, event: ThinkingDelta) -> None:
        if self._thought is None:
            self._thought = ThoughtEntry()
            self._add(self._thought)
        self._thought.add(event.delta)
        self.doing = "thinking"

    def _end_thought(self) -> None:
        if self._thought is not None:
            self._thought.end()
            self._thought = None

    def _message(self, event: AssistantMessage) -> None:
        """The message is complete: what was shown of it must be what it says."""
        self._end_thought()
        text = text_of(event.content)
        if self._answer is None and text.strip():
            self._answer = AnswerEntry()
            self._add(self._answer)
        if self._answer is not None:
            self._answer.replace(text)
        self._answer = None

    def _end_turn(self, event: TurnEnd) -> None:
        self._end_thought()
        self._note_end(event.stop, event.error)
        if event.stop == "error":
            self._error = ended(event.stop, event.error)

    def _note_end(self, stop: Stop, error: str | None) -> None:
        if mark := ended(stop, error):
            self._add(NoteEntry(mark, "error" if stop == "error" else "warn"))

    def _end(self, event: Done) -> None:
        for call in self._calls.values():  # A half-written call is dropped by an abort.
            call.finish("", is_error=True)
        self._calls.clear()
        self._end_thought()
        self.failure, self._error = self._error, ""
        self._answer, self.doing = None, ""

    def _compacted(self, event: CompactDone) -> None:
        why = "the conversation was made shorter by itself" if event.auto else "the conversation was summarised"
        more = f"; {event.pruned} results of tools were shortened" if event.pruned else ""
        self._add(NoteEntry(f"{why}{more}", "info"))
        if event.summary:
            self._add(ThoughtEntry(event.summary))

    def _say_user(self, content: Sequence[ShownBlock], time: str) -> None:
        images = [(one.mime_type, one.bytes) for one in content if isinstance(one, ShownImage)]
        entry = UserEntry(text_of(content), images)
        if images:
            self._pictured(entry, time)
        self._add(entry)

    def _known(self, call_id: str, name: str) -> CallEntry:
        if call_id not in self._calls:
            self._calls[call_id] = CallEntry(call_id, name)
            self._add(self._calls[call_id])
        return self._calls[call_id]

    def _finish(
        self, call_id: str, content: Sequence[TextBlock | ShownImage], *, is_error: bool, extension: str = ""
    ) -> None:
        call = self._calls.pop(call_id, None)
        if call is not None:
            parts = (one.text if isinstance(one, TextBlock) else image(one.mime_type, one.bytes) for one in content)
            call.finish("\n".join(parts), is_error=is_error, extension=extension)
            if any(isinstance(one, ShownImage) for one in content):
                self._pictured(call, call_id)

    def _recall(self, content: Sequence[ShownBlock]) -> None:
        text = text_of(content)
        if text.strip():
            self._add(AnswerEntry(text))
        for block in content:
            if isinstance(block, ShownCall):
                self._known(block.id, block.name).called(block.args)


_TOLD: dict[type[AgentEvent], Callable[[Story, Any], None]] = {
    UserMessage: Story._asked,
    TurnStart: Story._begin_turn,
    AssistantStart: Story._begin_answer,
    TextDelta: Story._say,
    ThinkingDelta: Story._think,
    ToolUseStart: Story._begin_call,
    ToolUseArgs: Story._write_call,
    ToolCall: Story._call,
    ToolProgress: Story._progress,
    ToolResult: Story._result,
    AssistantMessage: Story._message,
    TurnEnd: Story._end_turn,
    Error: Story._fail,
    Done: Story._end,
    CompactDone: Story._compacted,
    Retry: Story._try_again,
    ExtWaiting: Story._wait,
    ExtNotify: Story._notice,
}
