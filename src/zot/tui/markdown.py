"""Markdown as lines of a terminal, made while it is still being written: what is finished is drawn once."""

from __future__ import annotations

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
    return [Strip(line) for line in out.render_lines(renderable, options, pad=False)]


class Flow:
    """The lines of a text that grows at its end. Blocks that can no longer change are kept; the last is drawn anew."""

    def __init__(self) -> None:
        self._key: tuple[int, str] = (0, "")
        self._stable = 0
        self._done: list[Strip] = []

    def lines(self, text: str, width: int, look: Look) -> list[Strip]:
        """Return the lines of ``text``, which begins with what it was the last time."""
        if self._key != (width, look.code_theme):
            self._key, self._stable, self._done = (width, look.code_theme), 0, []
        tail = text[self._stable :]
        starts = [*_starts(tail)] or [0]
        for begin, end in pairwise(starts):
            self._done += [*_block(tail[begin:end], width, look), Strip([])]
        last = tail[starts[-1] :]
        self._stable += starts[-1]
        return self._done + (_block(last, width, look) if last.strip() else [])


def _block(text: str, width: int, look: Look) -> list[Strip]:
    lines = drawn(_markdown(text, look), width, ascii_only=not look.unicode)
    while lines and not lines[-1].text.strip():
        lines.pop()
    while lines and not lines[0].text.strip():
        lines.pop(0)
    return lines


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

    return MarkdownIt().enable("strikethrough").enable("table")


def _markdown(text: str, look: Look) -> RenderableType:
    made: RenderableType = _ours()(text, code_theme=look.code_theme, hyperlinks=False)
    return made


@cache
def _ours() -> Any:
    """Return Markdown as we draw it: code on the terminal's own background, headings at the left."""
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.padding import Padding
    from rich.syntax import Syntax

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = Syntax(
                str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True, background_color="default"
            )
            yield Padding(code, (0, 0, 0, 2))

    class Left(Heading):
        LEVEL_ALIGN = {}  # noqa: RUF012  (as the class above has it)

    class Ours(Markdown):
        elements = {**Markdown.elements, "fence": Code, "code_block": Code, "heading_open": Left}  # noqa: RUF012

    return Ours


def blank() -> Strip:
    """Return a line with nothing in it."""
    return Strip([])


def with_prefix(lines: list[Strip], first: Segment, others: Segment) -> list[Strip]:
    """Return the lines, each behind a prefix."""
    return [Strip([others if number else first, *line]) for number, line in enumerate(lines)]
