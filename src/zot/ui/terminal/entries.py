"""Entries of the transcript: messages, thoughts, tool calls, notes, made from events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

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
from zot.ui.readable import counted, format_duration, format_size, one_line, stop_note, summary
from zot.ui.terminal.markdown import Flow, drawn, plain_line, with_prefix
from zot.ui.terminal.styles import Level, Look, called_with, changes, program_output, safe, unabridged
from zot.ui.terminal.transcript_view import TranscriptView

_LEVELS: dict[Level, str] = {"info": "dim", "success": "green", "warn": "yellow", "error": "red"}
DIM = Style(dim=True)
#: Longer lines of prose are hard to read.
_MAX_PROSE_WIDTH = 120

#: A text and its style.
Line: TypeAlias = tuple[str, str]

State: TypeAlias = Literal["writing", "waiting", "running", "done", "failed"]

_COLOURS: dict[State, str] = {
    "writing": "dim",
    "waiting": "yellow",
    "running": "yellow",
    "done": "green",
    "failed": "red",
}
#: Rows shown of a folded call, and of an unfolded one: more than our own tools return.
_FOLDED_ROWS = 6
_UNFOLDED_ROWS = 5000
#: Of these, a command shows its last rows: they tell how it ended.
_LAST_ROWS = 1
#: The width of the prefix.
_INDENT = 4
#: Kept output of a running tool.
_LIVE_CHARACTERS = 64 * 1024


class Entry:
    """One item of the transcript. ``version`` grows whenever its lines change."""

    #: True if unfolding it shows more.
    foldable = False
    #: True for a message of the user.
    is_prompt = False

    def __init__(self) -> None:
        self.version = 0
        self.folded = True
        #: The lines of its images, and the callback that requests them when it is first drawn.
        self.pictures: list[Strip] = []
        self.wanted: Callable[[], None] | None = None

    def draw(self, width: int, look: Look) -> list[Strip]:
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Its text, for copying and for `estimate`."""
        raise NotImplementedError

    def hung(self) -> list[Strip]:
        """Return the lines of its images that are loaded, and request the others."""
        wanted, self.wanted = self.wanted, None
        if wanted is not None:
            wanted()
        return self.pictures

    def touch(self) -> None:
        """Note that its lines change."""
        self.version += 1

    def estimate(self, width: int) -> int:
        """Estimate the number of its lines without drawing it."""
        return sum(len(line) // max(1, width - 2) + 1 for line in self.text.split("\n"))


class UserEntry(Entry):
    """A user message. ``images`` are their types and sizes."""

    is_prompt = True

    def __init__(self, text: str, images: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__()
        self._text = text
        self._images = images

    @property
    def text(self) -> str:
        return self._text

    def draw(self, width: int, look: Look) -> list[Strip]:
        text = "\n".join([safe(self._text), *(image(*one) for one in self._images)]).strip("\n")
        lines = drawn(Text(text, style="bold"), width - 2)
        said = with_prefix(lines, Segment(f"{look.user} ", Style(color="cyan", bold=True)), Segment("  "))
        return [*said, *self.hung()]


class AnswerEntry(Entry):
    """The model's text as Markdown, while it streams."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._text = safe(text) if text else ""
        self._flow = Flow()

    @property
    def text(self) -> str:
        return self._text

    def add(self, delta: str) -> None:
        self._text += safe(delta)
        self.touch()

    def replace(self, text: str) -> None:
        """Replace the streamed text by the final one, if they differ."""
        if (text := safe(text)) != self._text:
            self._text, self._flow = text, Flow()
            self.touch()

    def draw(self, width: int, look: Look) -> list[Strip]:
        return self._flow.lines(self._text, min(width - 2, _MAX_PROSE_WIDTH), look, Segment("  "))


class ThoughtEntry(Entry):
    """The model's thinking, folded into one line at first."""

    foldable = True

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._parts = [safe(text)]
        self.is_over = bool(text)

    @property
    def text(self) -> str:
        return "".join(self._parts) if not self.folded else "thinking"

    def add(self, delta: str) -> None:
        self._parts.append(safe(delta))
        self.touch()

    def end(self) -> None:
        self.is_over = True
        self.touch()

    def draw(self, width: int, look: Look) -> list[Strip]:
        whole = "".join(self._parts)
        mark = look.folded if self.folded else look.unfolded
        what = f"thought, {counted(len(whole.split()), 'word')}" if self.is_over else f"thinking{look.more}"
        head = drawn(Text(f"{mark} {what}", style="dim italic", no_wrap=True, overflow="ellipsis"), width)
        if self.folded:
            return head
        return head + with_prefix(
            drawn(Text(whole.strip(), style="dim italic"), width - 2), Segment("  "), Segment("  ")
        )


class NoteEntry(Entry):
    """A note outside of the conversation, from an extension or from zot."""

    def __init__(self, text: str, level: Level = "info", *, source: str = "") -> None:
        super().__init__()
        self._text = f"[{safe(source)}] {safe(text)}" if source else safe(text)
        self.level: Level = level

    @property
    def text(self) -> str:
        return self._text

    def draw(self, width: int, look: Look) -> list[Strip]:
        lines = drawn(Text(self._text, style=_LEVELS[self.level]), width - 2)
        return with_prefix(lines, Segment(f"{look.bar} ", DIM), Segment(f"{look.bar} ", DIM))


class DisplayEntry(AnswerEntry):
    """Markdown that an extension shows."""

    def __init__(self, text: str, *, source: str) -> None:
        super().__init__(text)
        self._source = safe(source)

    def draw(self, width: int, look: Look) -> list[Strip]:
        bar = Segment(f"{look.bar} ", DIM)
        head = Strip([bar, Segment(f"[{self._source}]", Style(color="magenta"))])
        return [head, *self._flow.lines(self._text, width - 2, look, bar)]


def image(mime_type: str, count: int) -> str:
    """Return the placeholder of an image."""
    return f"[{safe(mime_type)}, {format_size(count)}]"


def height(lines: Iterable[Line], width: int) -> int:
    """Return the rows that lines take if broken at the width: hardly fewer than with whole words."""
    return sum(_rows(text, width) for text, _ in lines)


def first(lines: Sequence[Line], rows: int, width: int) -> list[Line]:
    """Return the first lines that fit into ``rows``."""
    shown: list[Line] = []
    for text, style in lines:
        if rows <= 0:
            break
        taken = _rows(text, width)
        # Chop no more of a long line than can be shown.
        shown.append((text if taken <= rows else "".join(chop_cells(text[: rows * width], width)[:rows]), style))
        rows -= taken
    return shown


def last(lines: Sequence[Line], rows: int, width: int) -> list[Line]:
    """Return the last lines that fit into ``rows``."""
    shown: list[Line] = []
    for text, style in reversed(lines):
        if rows <= 0:
            break
        taken = _rows(text, width)
        shown.append((text if taken <= rows else _end(text, rows, width), style))
        rows -= taken
    return shown[::-1]


def _end(text: str, rows: int, width: int) -> str:
    """Return the end of a line, starting at a row boundary, so that its rows stay put while it grows."""
    most = rows * width - -cell_len(text) % width
    return "".join(chop_cells(text[-most:], width)[-rows:])


def _rows(text: str, width: int) -> int:
    if 2 * len(text) <= width:  # A character takes two cells at most, and most lines are short.
        return 1
    cells = len(text) if text.isascii() else cell_len(text)
    return max(1, -(-cells // width))


class CallEntry(Entry):
    """One tool call."""

    foldable = True

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__()
        self.id = call_id
        self.name = safe(name)
        self.state: State = "writing"
        self._raw = ""
        self._args: dict[str, Any] | None = None
        self._live = ""
        self._result: str | None = None
        self._extension = ""

    @property
    def text(self) -> str:
        body = [*self._body()]
        return "\n".join([self._head(), *(line for line, _ in body[: _FOLDED_ROWS if self.folded else None])])

    def estimate(self, width: int) -> int:
        # The heading and the count of hidden rows take one row each.
        return min(super().estimate(width), self._limit + 2)

    def write(self, delta: str) -> None:
        """Append streamed arguments."""
        self._raw += delta
        self.touch()

    def called(self, args: dict[str, Any] | None) -> None:
        """Set the complete arguments."""
        self._args, self.state = args, "running"
        self.touch()

    def wait(self, *, waits: bool) -> None:
        """Note that its approval is pending or decided."""
        if self.state in ("waiting", "running"):
            self.state = "waiting" if waits else "running"
            self.touch()

    def progress(self, text: str) -> None:
        """Append output of the running tool."""
        self._live = (self._live + text)[-_LIVE_CHARACTERS:]
        self.touch()

    def finish(self, text: str, *, is_error: bool, extension: str = "") -> None:
        """Set the result."""
        self._result, self._extension = program_output(text), safe(extension)
        self.state = "failed" if is_error else "done"
        self._live = ""
        self.touch()

    def draw(self, width: int, look: Look) -> list[Strip]:
        is_named = self._is_named(width)
        body = [*self._body(is_named=is_named)]
        shown, hidden, below = self._cut(body, max(1, width - _INDENT))
        head = Text(no_wrap=True, overflow="ellipsis")
        is_whole = is_named and (not body or (self.folded and not hidden))
        head.append(f"{self._mark(look, is_whole=is_whole)} ", _COLOURS[self.state])
        head.append(self.name, "bold")
        head.append(f"  {self._head()}")
        lines = drawn(head, width, ascii_only=not look.unicode)
        if hidden and self.state == "running":
            lines += _indented([(f"{look.more} {counted(hidden, 'earlier line')}", "dim")], width, look)
        lines += _indented(shown, width, look)
        if hidden and self.state != "running":
            lines += _indented([(f"{look.more} {counted(hidden, 'more line')}", "dim")], width, look)
        return [*lines, *_indented(below, width, look), *self.hung()]

    def _mark(self, look: Look, *, is_whole: bool) -> str:
        if self.state == "failed":  # Visible without colours, too.
            return look.failed
        return look.call if is_whole else look.folded if self.folded else look.unfolded

    @property
    def _limit(self) -> int:
        return _FOLDED_ROWS if self.folded else _UNFOLDED_ROWS

    def _cut(self, body: list[Line], width: int) -> tuple[list[Line], int, list[Line]]:
        """Return the rows to show, the number of hidden rows, and the rows below; a running call shows its newest.

        Counts rows of the screen, since a line may be long.
        """
        limit = self._limit
        hidden = max(0, height(body, width) - limit)
        if not hidden:
            return body, 0, []
        if self.state == "running":
            return last(body, limit, width), hidden, []
        below = _LAST_ROWS if "command" in (self._args or {}) else 0
        return first(body, limit - below, width), hidden, last(body, below, width)

    def _head(self) -> str:
        """Return the call's summary in one line."""
        where = f" ({self._extension})" if self._extension else ""
        if self._args is None:
            return one_line(self._raw, 200) + where
        return one_line(summary(self._args), 300) + where

    def _is_named(self, width: int) -> bool:
        """True if the heading shows the whole summary at this width."""
        about = self._raw.strip() if self._args is None else summary(self._args)
        head = self._head()
        return head.startswith(unabridged(about)) and cell_len(f"  {self.name}  {head}") <= width

    def _body(self, *, is_named: bool = False) -> Iterator[Line]:
        """Yield the lines below the heading, each with its style."""
        args = self._args or {}
        command = args.get("command")
        if not self.folded:
            yield from called_with(args, is_named=is_named)
        elif self.state != "failed":
            yield from changes(args)
        text = self._result if self._result is not None else program_output(self._live)
        if isinstance(command, str):  # The heading shows the command that the result repeats for the model.
            text = text.removeprefix(f"$ {program_output(command)}\n\n")
        if text and not (self.state == "done" and self.folded and _is_quiet(self.name, args)):
            style = "red" if self.state == "failed" else "dim"
            yield from ((line, style) for line in text.rstrip("\n").split("\n"))


def _is_quiet(name: str, args: dict[str, Any]) -> bool:
    """True if a tool's result adds little to its arguments."""
    return name in ("read", "skill") or "edits" in args or "content" in args


def _indented(lines: Iterable[Line], width: int, look: Look) -> list[Strip]:
    prefix = Segment(f"  {look.bar} ", DIM)
    return [
        strip
        for text, style in lines
        for strip in with_prefix(plain_line(text or " ", style, width - _INDENT), prefix, prefix)
    ]


class TranscriptBuilder:
    """Turns messages and then events of a conversation into entries of a ``view``."""

    def __init__(self, view: TranscriptView, pictured: Callable[[Entry, str], None]) -> None:
        """``pictured`` is called with each entry that has images, and the place of these."""
        self._view = view
        self._pictured = pictured
        self._answer: AnswerEntry | None = None
        self._thought: ThoughtEntry | None = None
        self._calls: dict[str, CallEntry] = {}
        #: The error of the run's newest model call; "" if it succeeded.
        self._error = ""
        #: The current activity, in a word or two; "" when idle.
        self.doing = ""
        #: The error of the last finished run; "" if it succeeded.
        self.failure = ""

    def recall(self, messages: Iterable[PastMessage]) -> None:
        """Add earlier messages."""
        for message in messages:
            if message.role == "user":
                self._say_user(message.content, message.time)
            elif message.role == "assistant":
                if message.thought.strip():
                    self._view.add(ThoughtEntry(message.thought))
                self._recall(message.content)
            else:
                for block in message.content:
                    if isinstance(block, ShownResult):
                        self._finish(block.call_id, block.content, is_error=block.is_error)
            self._note_end(message.stop, message.error)

    def apply(self, event: AgentEvent) -> None:
        """Add one event. Panels, approvals and unknown events add no entry."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def note(self, text: str, level: Level = "info") -> None:
        """Show a note outside of the conversation."""
        self._view.add(NoteEntry(text, level))
        self._view.settle()

    def present(self, text: str, source: str) -> None:
        """Show Markdown outside of the conversation."""
        self._view.add(DisplayEntry(text, source=source))
        self._view.settle()

    def call(self, call_id: str) -> CallEntry | None:
        """Return a call without a result, by id."""
        return self._calls.get(call_id)

    @property
    def running(self) -> CallEntry | None:
        """The first call without a result."""
        return next(iter(self._calls.values()), None)

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
        self.doing = f"writing a call to {event.name}"

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
        if event.message != self._error:  # Else the note of the turn's end shows it.
            self._view.add(NoteEntry(event.message, "error"))

    def _retry(self, event: Retry) -> None:
        when = f"retrying in {format_duration(event.delay_ms)} (attempt {event.attempt + 1})"
        self.doing = f"{when}: {event.reason}"

    def _wait(self, event: ExtWaiting) -> None:
        if event.what == "held assistant_message":
            self.doing = f"held by {event.extension}"
        elif self.doing and not event.what.startswith("command "):  # The run does not wait for a command.
            self.doing = f"waiting for {event.extension}: {event.what}"

    def _notice(self, event: ExtNotify) -> None:
        self._view.add(NoteEntry(event.message, event.level, source=event.extension))

    def _say(self, event: TextDelta) -> None:
        self._end_thought()
        if self._answer is None:
            self._answer = AnswerEntry()
            self._view.add(self._answer)
        self._answer.add(event.delta)
        self.doing = "answering"

    def _think(self, event: ThinkingDelta) -> None:
        if self._thought is None:
            self._thought = ThoughtEntry()
            self._view.add(self._thought)
        self._thought.add(event.delta)
        self.doing = "thinking"

    def _end_thought(self) -> None:
        if self._thought is not None:
            self._thought.end()
            self._thought = None

    def _message(self, event: AssistantMessage) -> None:
        """Replace the streamed text by the complete message."""
        self._end_thought()
        text = text_of(event.content)
        if self._answer is None and text.strip():
            self._answer = AnswerEntry()
            self._view.add(self._answer)
        if self._answer is not None:
            self._answer.replace(text)
        self._answer = None

    def _end_turn(self, event: TurnEnd) -> None:
        self._end_thought()
        self._note_end(event.stop, event.error)
        if event.stop == "error":
            self._error = stop_note(event.stop, event.error)

    def _note_end(self, stop: Stop, error: str | None) -> None:
        if mark := stop_note(stop, error):
            self._view.add(NoteEntry(mark, "error" if stop == "error" else "warn"))

    def _end(self, event: Done) -> None:
        for call in self._calls.values():  # An abort drops a half-written call.
            call.finish("", is_error=True)
        self._calls.clear()
        self._end_thought()
        self.failure, self._error = self._error, ""
        self._answer, self.doing = None, ""

    def _compacted(self, event: CompactDone) -> None:
        why = "the conversation was compacted automatically" if event.auto else "the conversation was summarised"
        more = f"; {event.pruned} tool results were shortened" if event.pruned else ""
        self._view.add(NoteEntry(f"{why}{more}", "info"))
        if event.summary:
            self._view.add(ThoughtEntry(event.summary))

    def _say_user(self, content: Sequence[ShownBlock], time: str) -> None:
        images = [(one.mime_type, one.bytes) for one in content if isinstance(one, ShownImage)]
        entry = UserEntry(text_of(content), images)
        if images:
            self._pictured(entry, time)
        self._view.add(entry)

    def _known(self, call_id: str, name: str) -> CallEntry:
        if call_id not in self._calls:
            self._calls[call_id] = CallEntry(call_id, name)
            self._view.add(self._calls[call_id])
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
            self._view.add(AnswerEntry(text))
        for block in content:
            if isinstance(block, ShownCall):
                self._known(block.id, block.name).called(block.args)


_HANDLERS: dict[type[AgentEvent], Callable[[TranscriptBuilder, Any], None]] = {
    UserMessage: TranscriptBuilder._asked,
    TurnStart: TranscriptBuilder._begin_turn,
    AssistantStart: TranscriptBuilder._begin_answer,
    TextDelta: TranscriptBuilder._say,
    ThinkingDelta: TranscriptBuilder._think,
    ToolUseStart: TranscriptBuilder._begin_call,
    ToolUseArgs: TranscriptBuilder._write_call,
    ToolCall: TranscriptBuilder._call,
    ToolProgress: TranscriptBuilder._progress,
    ToolResult: TranscriptBuilder._result,
    AssistantMessage: TranscriptBuilder._message,
    TurnEnd: TranscriptBuilder._end_turn,
    Error: TranscriptBuilder._fail,
    Done: TranscriptBuilder._end,
    CompactDone: TranscriptBuilder._compacted,
    Retry: TranscriptBuilder._retry,
    ExtWaiting: TranscriptBuilder._wait,
    ExtNotify: TranscriptBuilder._notice,
}
