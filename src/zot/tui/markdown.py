"""Markdown as lines of a terminal, made while it is still being written: what is finished is drawn once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment
from rich.theme import Theme
from textual.strip import Strip

from zot.tui.looks import Look

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult

_STYLES = {
    "markdown.code": "cyan",
    "markdown.code_block": "none",
    "markdown.h1": "bold underline",
    "markdown.h2": "bold",
    "markdown.h3": "bold italic",
    "markdown.block_quote": "dim italic",
    "markdown.hr": "dim",
    "markdown.item.bullet": "bold blue",
    "markdown.item.number": "bold blue",
    "markdown.link": "underline blue",
    "markdown.link_url": "underline blue",
    "markdown.list": "none",
    "markdown.table.header": "bold",
    "markdown.table.border": "dim",
}


#: What is drawn for the marks of lists, quotes and rules where only ASCII can be shown.
_ASCII_MARKS = str.maketrans({"•": "*", "▌": "|", "─": "-", "━": "-", "…": "."})
#: Code that is still being written is kept in pieces of so many lines.
_PIECE_LINES = 40
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,}) *([\w+#-]*)[^\n]*\n")


@cache
def console() -> Console:
    """Return what lays text out. Nothing is ever written with it."""
    return Console(
        width=80, force_terminal=True, color_system="truecolor", legacy_windows=False, highlight=False, markup=False,
        theme=Theme(_STYLES),
    )  # fmt: skip


def drawn(renderable: RenderableType, width: int, *, ascii_only: bool = False) -> list[Strip]:
    """Return the lines of something, at most so wide."""
    out = console()
    options = out.options.update(width=max(1, width), height=None)
    if ascii_only:
        options = options.copy()
        options.encoding = "ascii"
    lines = out.render_lines(renderable, options, pad=False)
    if ascii_only:
        lines = [[Segment(one.text.translate(_ASCII_MARKS), one.style) for one in line] for line in lines]
    return [Strip(line) for line in lines]


class Flow:
    """The lines of a text that grows at its end. What can no longer change is kept; the last block is drawn anew.

    Code is kept in pieces, however long its block gets: each is coloured on its own.
    """

    def __init__(self, *, breaks: bool = False) -> None:
        """``breaks``: the line ends of a paragraph stay where they are."""
        self._breaks = breaks
        self._key: tuple[int, str] = (0, "")
        self._begin()

    def _begin(self) -> None:
        self._stable = 0
        self._done: list[Strip] = []
        #: The line that began the code in which the rest of the text begins; "" if it begins with a block.
        self._fence = ""

    def lines(self, text: str, width: int, look: Look) -> list[Strip]:
        """Return the lines of ``text``, which begins with what it was the last time."""
        if self._key != (width, look.code_theme):
            self._key = (width, look.code_theme)
            self._begin()
        prefix = self._fence
        tail = prefix + text[self._stable :]
        starts = [*_starts(tail)] or [0]
        for begin, end in pairwise(starts):
            self._done += [*self._block(tail[begin:end], width, look), Strip([])]
            self._fence = ""
        if starts[-1]:
            self._stable += starts[-1] - len(prefix)
        last = self._keep_code(tail[starts[-1] :], width, look)
        return self._done + (self._block(last, width, look) if last.strip() else [])

    def _block(self, text: str, width: int, look: Look) -> list[Strip]:
        lines = drawn(_markdown(text, look, breaks=self._breaks), width, ascii_only=not look.unicode)
        while lines and not lines[-1].text.strip():
            lines.pop()
        while lines and not lines[0].text.strip() and not _FENCE.match(text):
            lines.pop(0)
        return lines

    def _keep_code(self, last: str, width: int, look: Look) -> str:
        """Keep all but the newest lines of a block of code; return what is left, as a block of its own."""
        fence = _FENCE.match(last)
        if fence is None or last.count("\n") < 2 * _PIECE_LINES:
            return last
        lines = last.split("\n")
        pieces = (len(lines) - 1) // _PIECE_LINES - 1
        for number in range(pieces):
            first = 1 + number * _PIECE_LINES
            piece = "\n".join(lines[first : first + _PIECE_LINES])
            # Blank lines at the ends of a piece belong to the code.
            self._done += drawn(_code(piece, fence[2], look), width, ascii_only=not look.unicode)
            self._stable += len(piece) + 1
        if not self._fence:
            self._stable += len(lines[0]) + 1
        self._fence = f"{lines[0]}\n"
        return self._fence + "\n".join(lines[1 + pieces * _PIECE_LINES :])


def _starts(text: str) -> Iterator[int]:
    """Yield where the outermost blocks of a text begin."""
    if not text.strip():
        return
    lines = text.split("\n")
    offsets, at = [], 0
    for line in lines:
        offsets.append(at)
        at += len(line) + 1
    for token in _parser().parse(text):
        if token.level == 0 and token.nesting >= 0 and token.map is not None and token.map[0] < len(offsets):
            yield offsets[token.map[0]]


def warm() -> None:
    """Load what the first answer would have to wait for."""
    Flow().lines("# a\n\n```python\nb = 1\n```\n", 40, Look())


@cache
def _parser() -> Any:
    from markdown_it import MarkdownIt  # Only an answer needs it.

    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def _code(text: str, language: str, look: Look) -> RenderableType:
    return _highlighted(text, language or "text", look.code_theme)


def _highlighted(code: str, language: str, theme: str) -> RenderableType:
    from rich.padding import Padding
    from rich.syntax import Syntax

    return Padding(Syntax(code, language, theme=theme, word_wrap=True, background_color="default"), (0, 0, 0, 2))


def _markdown(text: str, look: Look, *, breaks: bool) -> RenderableType:
    made: RenderableType = _ours()(text, code_theme=look.code_theme, breaks=breaks)
    return made


@cache
def _ours() -> Any:
    """Return Markdown as we draw it: code on the terminal's own background, headings at the left."""
    from rich.markdown import CodeBlock, Heading, Markdown

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield _highlighted(str(self.text).rstrip(), self.lexer_name, self.theme)

    class Left(Heading):
        LEVEL_ALIGN = {}  # noqa: RUF012  (as the class above has it)

    class Ours(Markdown):
        def __init__(self, text: str, *, code_theme: str, breaks: bool) -> None:
            super().__init__("", code_theme=code_theme, hyperlinks=False)
            self.markup = text
            self.parsed = _parser().parse(text)  # A tag is text like any other: theirs would be left out.
            for child in (child for token in self.parsed if breaks for child in token.children or ()):
                if child.type == "softbreak":
                    child.type = "hardbreak"

        elements = {**Markdown.elements, "fence": Code, "code_block": Code, "heading_open": Left}  # noqa: RUF012

    return Ours


def blank() -> Strip:
    """Return a line with nothing in it."""
    return Strip([])


def with_prefix(lines: list[Strip], first: Segment, others: Segment) -> list[Strip]:
    """Return the lines, each behind a prefix."""
    return [Strip([others if number else first, *line]) for number, line in enumerate(lines)]
