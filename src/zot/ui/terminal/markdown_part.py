"""Markdown as lines of a terminal."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from zot.ui.readable import escaped
from zot.ui.terminal.looks import Look
from zot.ui.terminal.table import Row, Table

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
    "markdown.table.header": "none",
}


_INDENT = Segment("  ")
#: What is drawn for the marks of lists, quotes and rules where only ASCII can be shown.
_ASCII_MARKS = str.maketrans({"•": "*", "▌": "|", "─": "-", "━": "-", "…": "."})


@cache
def console() -> Console:
    """Return what lays text out. Nothing is ever written with it."""
    return Console(
        width=80, force_terminal=True, color_system="truecolor", legacy_windows=False, highlight=False, markup=False,
        theme=Theme(_STYLES),
    )  # fmt: skip


@cache
def _options() -> ConsoleOptions:
    return console().options


def drawn(renderable: RenderableType, width: int, *, ascii_only: bool = False) -> list[Strip]:
    """Return the lines of something, at most so wide."""
    out = console()
    options = _options().update(width=max(1, width), height=None)
    if ascii_only:
        options = options.copy()
        options.encoding = "ascii"
    lines = [Strip(line) for line in out.render_lines(renderable, options, pad=False)]
    return for_ascii(lines) if ascii_only else lines


def for_ascii(lines: list[Strip]) -> list[Strip]:
    """Return the lines with marks that every terminal has."""
    return [Strip([Segment(one.text.translate(_ASCII_MARKS), one.style) for one in line]) for line in lines]


@cache
def _parser() -> Any:
    from markdown_it import MarkdownIt  # Only an answer needs it.

    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def parsed(text: str) -> list[Any]:
    """Return the tokens of a text, as `markdown_it` has them. An entity may stand for what would not be seen."""
    tokens: list[Any] = _parser().parse(text)
    for child in (child for token in tokens for child in token.children or ()):
        child.content = escaped(child.content)
    return tokens


def code(text: str, language: str, width: int, look: Look) -> list[Strip]:
    """Return the lines of code in colours, a little to the right. What is too long is continued below."""
    from rich.syntax import Syntax

    syntax = Syntax("", language or "text", theme=look.code_theme, background_color="default")
    lines, room = syntax.highlight(f"{text}\n").split("\n"), max(1, width - 2)
    return with_prefix([strip for line in lines for strip in _folded(line, room)], _INDENT, _INDENT)


def plain_line(text: str, style: str, width: int) -> list[Strip]:
    """Return a line of one style, continued below if it is too long."""
    if cell_len(text) > width:
        return drawn(Text(text, style=style), width)
    return [Strip([Segment(text, Style.parse(style))])]


def _folded(line: Text, width: int) -> list[Strip]:
    if cell_len(line.plain) > width:
        return drawn(line, width)
    return [Strip(line.render(console()))]


def rows_of(text: str) -> list[Row]:
    """Return the rows of a table that is all of a text, its head first."""
    rows: list[Row] = []
    drawn(_ours()(text, code_theme="", rows=rows), 80)
    return rows


def markdown(text: str, look: Look) -> RenderableType:
    """Return a text as it is drawn. The line ends of a paragraph stay where they are: most who write them mean them."""
    made: RenderableType = _ours()(text, code_theme=look.code_theme)
    return made


@cache
def _ours() -> Any:
    """Return Markdown as we draw it: code on the terminal's own background, headings at the left."""
    from rich.markdown import CodeBlock, Heading, Markdown, TableElement

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            look = Look(code_theme=str(self.theme))
            for strip in code(str(self.text).rstrip(), self.lexer_name, options.max_width, look):
                yield from strip
                yield Segment.line()

    class Left(Heading):
        LEVEL_ALIGN = {}  # noqa: RUF012  (as the class above has it)

    class Grid(TableElement):
        taken: list[Row] | None = None

        @classmethod
        def create(cls, markdown: Any, token: Any) -> Grid:
            made = cls()
            made.taken = markdown.rows
            return made

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            found = [self.header.row if self.header else None, *(self.body.rows if self.body else ())]
            head, *rows = (Row([cell.content for cell in row.cells] if row else []) for row in found)
            if self.taken is not None:
                self.taken += [head, *rows]
                return
            for strip in Table(head.cells, rows).lines(options.max_width, console):
                yield from strip
                yield Segment.line()

    class Ours(Markdown):
        def __init__(self, text: str, *, code_theme: str, rows: list[Row] | None = None) -> None:
            self.rows = rows  # Where those of a table are wanted, instead of its lines.
            # Theirs makes a parser of its own each time, which takes longer than what it is for.
            self.markup, self.code_theme, self.hyperlinks = text, code_theme, False
            self.justify, self.style = None, "none"
            self.inline_code_lexer, self.inline_code_theme = None, code_theme
            self.parsed = parsed(text)  # A tag is text like any other: theirs would be left out.
            for child in (child for token in self.parsed for child in token.children or ()):
                if child.type == "softbreak":
                    child.type = "hardbreak"

        elements = {  # noqa: RUF012
            **Markdown.elements, "fence": Code, "code_block": Code, "heading_open": Left, "table_open": Grid,
        }  # fmt: skip

    return Ours


def with_prefix(lines: list[Strip], first: Segment, others: Segment) -> list[Strip]:
    """Return the lines, each behind a prefix."""
    return [Strip([others if number else first, *line]) for number, line in enumerate(lines)]
