"""Events become entries of a transcript. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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
    ToolUseEnd,
    ToolUseStart,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from zot.messages import ShownBlock, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock, text_of
from zot.tui.calls import CallEntry
from zot.tui.entries import AnswerEntry, Entry, NoteEntry, ThoughtEntry, UserEntry, image


class Story:
    """Tells a conversation, from its messages and then from its events, by entries that it gives to ``add``."""

    def __init__(self, add: Callable[[Entry], None]) -> None:
        self._add = add
        self._answer: AnswerEntry | None = None
        self._thought: ThoughtEntry | None = None
        self._calls: dict[str, CallEntry] = {}
        self._error = ""
        #: What is going on, in a word or two; "" when nothing is.
        self.doing = ""
        #: Why the model call of the run that is over failed; "" if it did not.
        self.failure = ""
        #: What has been retried so far, and will be.
        self.retry = ""

    def recall(self, messages: Iterable[ShownMessage]) -> None:
        """Tell what was said before."""
        for message in messages:
            if message.role == "user":
                self._add(_user(message.content))
            elif message.role == "assistant":
                self._recall(message.content)
            else:
                for block in message.content:
                    if isinstance(block, ShownResult):
                        self._finish(block.call_id, block.content, is_error=block.is_error)

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
        match event:
            case UserMessage(content=content):
                self._add(_user(content))
                self.doing, self.failure = "waiting for the model", ""
            case TurnStart():
                self.doing = "waiting for the model"
            case AssistantStart():
                self._answer = self._thought = None
                self.retry = ""
            case TextDelta(delta=delta):
                self._say(delta)
            case ThinkingDelta(delta=delta):
                self._think(delta)
            case ToolUseStart(id=call_id, name=name):
                self._end_thought()
                self._calls[call_id] = entry = CallEntry(call_id, name)
                self._add(entry)
                self.doing = f"writing a call of {name}"
            case ToolUseArgs(id=call_id, delta=delta):
                if (called := self._calls.get(call_id)) is not None:
                    called.write(delta)
            case ToolUseEnd():
                pass
            case ToolCall(id=call_id, name=name, args=args):
                self._known(call_id, name).called(args)
                self.doing = f"running {name}"
            case ToolProgress(id=call_id, text=text):
                if (called := self._calls.get(call_id)) is not None:
                    called.progress(text)
            case ToolResult(id=call_id, is_error=is_error, content=content, details=details):
                self._finish(call_id, content, is_error=is_error, extension=details.extension if details else "")
            case AssistantMessage(content=content):
                self._message(content)
            case TurnEnd(stop=stop, error=error):
                self._end_turn(stop, error)
            case Error(message=message):
                if message != self._error:  # Else the end of the turn has said so.
                    self._add(NoteEntry(message, "error"))
            case Done():
                self._end()
            case CompactDone(summary=summary, auto=auto, pruned=pruned):
                self._compacted(summary, auto=auto, pruned=pruned)
            case Retry(reason=reason, attempt=attempt, delay_ms=delay_ms):
                self.doing = self.retry = f"again in {delay_ms / 1000:.0f} s (try {attempt + 1}): {reason}"
            case ExtWaiting(extension=extension, what=what) if self.doing:
                self.doing = f"waiting for {extension}: {what}"
            case ExtNotify(extension=extension, level=level, message=message):
                self._add(NoteEntry(message, level, source=extension))
            case _:
                pass  # Panels and questions are not part of the story; what we do not know yet is not, either.

    def _say(self, delta: str) -> None:
        self._end_thought()
        if self._answer is None:
            self._answer = AnswerEntry()
            self._add(self._answer)
        self._answer.add(delta)
        self.doing = "answering"

    def _think(self, delta: str) -> None:
        if self._thought is None:
            self._thought = ThoughtEntry()
            self._add(self._thought)
        self._thought.add(delta)
        self.doing = "thinking"

    def _end_thought(self) -> None:
        if self._thought is not None:
            self._thought.end()
            self._thought = None

    def _message(self, content: Sequence[ShownBlock]) -> None:
        """The message is complete: what was shown of it must be what it says."""
        self._end_thought()
        text = text_of(content)
        if self._answer is None and text.strip():
            self._answer = AnswerEntry()
            self._add(self._answer)
        if self._answer is not None:
            self._answer.replace(text)
        self._answer = None

    def _end_turn(self, stop: str, error: str | None) -> None:
        self._end_thought()
        match stop:
            case "error":
                self._error = self.failure = error or "the model call failed"
                self._add(NoteEntry(self._error, "error"))
            case "aborted":
                self._add(NoteEntry("aborted", "warn"))
            case "length":
                self._add(NoteEntry("cut off at the model's length limit", "warn"))
            case _:
                pass

    def _end(self) -> None:
        for call in self._calls.values():  # A half-written call is dropped by an abort.
            call.finish("", is_error=True)
        self._calls.clear()
        self._end_thought()
        self._answer, self._error = None, ""
        self.doing = self.retry = ""

    def _compacted(self, summary: str, *, auto: bool, pruned: int) -> None:
        why = "the conversation was made shorter by itself" if auto else "the conversation was summarised"
        self._add(NoteEntry(why + (f"; {pruned} results of tools were shortened" if pruned else ""), "info"))
        if summary:
            self._add(ThoughtEntry(summary))

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

    def _recall(self, content: Sequence[ShownBlock]) -> None:
        text = text_of(content)
        if text.strip():
            self._add(AnswerEntry(text))
        for block in content:
            if isinstance(block, ShownCall):
                self._known(block.id, block.name).called(block.args)


def _user(content: Sequence[ShownBlock]) -> UserEntry:
    images = [(one.mime_type, one.bytes) for one in content if isinstance(one, ShownImage)]
    return UserEntry(text_of(content), images)
