"""A tool call in the transcript: what it is about, what it says while it runs, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

from rich.cells import cell_len
from rich.segment import Segment
from rich.text import Text
from textual.strip import Strip

from zot.ui.about import summary
from zot.ui.readable import counted, one_line
from zot.ui.terminal.about import changes
from zot.ui.terminal.call_text import called_with
from zot.ui.terminal.entries_part import DIM, Entry
from zot.ui.terminal.looks import Look, frank, safe, written
from zot.ui.terminal.markdown_part import drawn, plain_line, with_prefix
from zot.ui.terminal.rows import Line, first, height, last

State: TypeAlias = Literal["writing", "waiting", "running", "done", "failed"]

_COLOURS: dict[State, str] = {
    "writing": "dim",
    "waiting": "yellow",
    "running": "yellow",
    "done": "green",
    "failed": "red",
}
#: How many rows of a folded call are shown, and how many of one that is not: more than our own tools return.
_FOLDED_ROWS = 6
_UNFOLDED_ROWS = 5000
#: So many of those of a command are its last: how it ended stands there.
_LAST_ROWS = 1
#: What stands left of them.
_INDENT = 4
#: How much of what a tool says while it runs is kept.
_LIVE_CHARACTERS = 64 * 1024


class CallEntry(Entry):
    """One call of a tool."""

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
        # The head is one more, and how much is hidden another.
        return min(super().estimate(width), self._limit + 2)

    def write(self, delta: str) -> None:
        """The model writes more of its arguments."""
        self._raw += delta
        self.touch()

    def called(self, args: dict[str, Any] | None) -> None:
        """Its arguments are complete."""
        self._args, self.state = args, "running"
        self.touch()

    def wait(self, *, waits: bool) -> None:
        """Somebody must approve it, or has decided."""
        if self.state in ("waiting", "running"):
            self.state = "waiting" if waits else "running"
            self.touch()

    def progress(self, text: str) -> None:
        """It says something while it runs."""
        self._live = (self._live + text)[-_LIVE_CHARACTERS:]
        self.touch()

    def finish(self, text: str, *, is_error: bool, extension: str = "") -> None:
        """It is over."""
        self._result, self._extension = written(text), safe(extension)
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
        if self.state == "failed":  # Where there are no colours it must be seen, too.
            return look.failed
        return look.call if is_whole else look.folded if self.folded else look.unfolded

    @property
    def _limit(self) -> int:
        return _FOLDED_ROWS if self.folded else _UNFOLDED_ROWS

    def _cut(self, body: list[Line], width: int) -> tuple[list[Line], int, list[Line]]:
        """Return what to show, how many rows are not, and what to show below: of a call that runs only the newest are.

        A line may be as long as many: rows of the screen count.
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
        """Return what the call is about, in one line."""
        where = f" ({self._extension})" if self._extension else ""
        if self._args is None:
            return one_line(self._raw, 200) + where
        return one_line(summary(self._args), 300) + where

    def _is_named(self, width: int) -> bool:
        """True if the head, in a line of that width, tells all of what the call is about."""
        about = self._raw.strip() if self._args is None else summary(self._args)
        head = self._head()
        return head.startswith(frank(about)) and cell_len(f"  {self.name}  {head}") <= width

    def _body(self, *, is_named: bool = False) -> Iterator[Line]:
        """Yield the lines below the head, each with its style."""
        args = self._args or {}
        command = args.get("command")
        if not self.folded:
            yield from called_with(args, is_named=is_named)
        elif self.state != "failed":
            yield from changes(args)
        text = self._result if self._result is not None else written(self._live)
        if isinstance(command, str):  # The model is told which command it was; here it stands above.
            text = text.removeprefix(f"$ {written(command)}\n\n")
        if text and not (self.state == "done" and self.folded and _is_quiet(self.name, args)):
            style = "red" if self.state == "failed" else "dim"
            yield from ((line, style) for line in text.rstrip("\n").split("\n"))


def _is_quiet(name: str, args: dict[str, Any]) -> bool:
    """True if what a tool returned says little beside what it was called with."""
    return name in ("read", "skill") or "edits" in args or "content" in args


def _indented(lines: Iterable[Line], width: int, look: Look) -> list[Strip]:
    prefix = Segment(f"  {look.bar} ", DIM)
    return [
        strip
        for text, style in lines
        for strip in with_prefix(plain_line(text or " ", style, width - _INDENT), prefix, prefix)
    ]
