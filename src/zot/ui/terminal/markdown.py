"""Markdown in the terminal, drawn incrementally while it streams."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from zot.text import escaped
from zot.ui.terminal.styles import Look

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult

_EDGE, _BETWEEN = Segment(" "), Segment("  ")
_RULE: Final = "─"
_DIM = Style(dim=True)
_BOLD = Style(bold=True)

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
#: ASCII replacements for the marks of lists, quotes and rules.
_ASCII_MARKS = str.maketrans({"•": "*", "▌": "|", "─": "-", "━": "-", "…": "."})

#: Long blocks are finished in pieces of this many lines, table rows, list items or characters of prose: drawing two
#: pieces must fit between two keys.
_LINES = 20
_ROWS = 15
_ITEMS = 20
_CHARACTERS = 1200

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,}) *([\w+#-]*)[^\n]*\n")
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r" {0,3}(\d+)")
#: Syntax that later text may close.
_OPEN = re.compile(r"\*(?!\s)|(?<!\w)_|`|~~|!?\[[^\]]*$|<|&\w*$|\\$")
#: Line ends tried for one before which prose no longer changes.
_TRIES = 3


class Row(msgspec.Struct):
    """The cells of a table row, and its lines at the last widths."""

    cells: Sequence[Text]
    widths: tuple[int, ...] = ()
    lines: list[Strip] = []

    def drawn(self, widths: tuple[int, ...], before: Segment, console: Console) -> list[Strip]:
        """Return its lines, cached while the column widths are the same."""
        if self.widths != widths:
            self.widths = widths
            self.lines = [Strip([before, *line]) for line in _lines(self.cells, widths, console)]
        return self.lines


class Table:
    """A table that grows row by row. Columns are as wide as their cells need, or as there is room."""

    def __init__(self, head: Sequence[Text], rows: Sequence[Row] = (), *, before: Segment | None = None) -> None:
        """``before`` starts each line."""
        self._before = before or Segment("")
        self._head = Row([_headed(cell) for cell in head])
        self._rows: list[Row] = []
        self._needs = [cell.cell_len for cell in head]
        self.extend(rows)

    def extend(self, rows: Sequence[Row]) -> None:
        self._rows += rows
        self._needs = _needs(self._needs, rows)

    def lines(self, width: int, console: Console, more: Sequence[Row] = ()) -> list[Strip]:
        """Return its lines. ``more`` are rows that may still change."""
        widths = _fitted(_needs(self._needs, more), width - 2 * len(self._needs))
        before = self._before
        rule = Strip([before, _EDGE, Segment(_RULE * (sum(widths) + 2 * len(widths) - 2), _DIM), _EDGE])
        body = (line for rows in (self._rows, more) for row in rows for line in row.drawn(widths, before, console))
        return [*self._head.drawn(widths, before, console), rule, *body]


def _headed(cell: Text) -> Text:
    head = cell.copy()
    head.stylize(_BOLD)
    return head


def _needs(needs: Sequence[int], rows: Sequence[Row]) -> list[int]:
    return [
        max([need, *(row.cells[column].cell_len for row in rows if column < len(row.cells))])
        for column, need in enumerate(needs)
    ]


def _fitted(needs: Sequence[int], room: int) -> tuple[int, ...]:
    """Return column widths that fit into ``room``, taken from the widest columns first."""
    widths = [max(1, need) for need in needs]
    over = sum(widths) - room
    while over > 0 and (widest := max(widths)) > 1:
        second = max((width for width in widths if width < widest), default=1)
        many = widths.count(widest)
        step = max(1, min(widest - second, over // many))
        for column in [at for at, width in enumerate(widths) if width == widest][: over if step == 1 else None]:
            widths[column] -= step
        over = sum(widths) - room
    return tuple(widths)


def _lines(cells: Sequence[Text], widths: tuple[int, ...], console: Console) -> Iterator[list[Segment]]:
    columns = [_wrapped(cell, width, console) for cell, width in zip(cells, widths, strict=False)]
    for number in range(max(map(len, columns), default=0)):
        parts: list[Segment] = []
        for column, cell, width in zip(columns, cells, widths, strict=False):
            parts += [_BETWEEN] if parts else [_EDGE]
            parts += _padded(column[number] if number < len(column) else Text(), cell, width, console)
        yield [*parts, _EDGE]


def _wrapped(cell: Text, width: int, console: Console) -> Sequence[Text]:
    return [cell] if cell.cell_len <= width else [*cell.wrap(console, width, justify="default", overflow="fold")]


def _padded(line: Text, cell: Text, width: int, console: Console) -> Iterator[Segment]:
    said = [part for part in line.render(console, end="") if part.text != "\n"]
    room = width - sum(part.cell_length for part in said)
    left = {"right": room, "center": room // 2}.get(cell.justify or "", 0)
    if left > 0:
        yield Segment(" " * left)
    yield from said
    if room - left > 0:
        yield Segment(" " * (room - left))


@cache
def console() -> Console:
    """Return the console that lays out text. It never writes."""
    return Console(
        width=80, force_terminal=True, color_system="truecolor", legacy_windows=False, highlight=False, markup=False,
        theme=Theme(_STYLES),
    )  # fmt: skip


@cache
def _options() -> ConsoleOptions:
    return console().options


def drawn(renderable: RenderableType, width: int, *, ascii_only: bool = False) -> list[Strip]:
    """Return the lines of a renderable at this width."""
    out = console()
    options = _options().update(width=max(1, width), height=None)
    if ascii_only:
        options = options.copy()
        options.encoding = "ascii"
    lines = [Strip(line) for line in out.render_lines(renderable, options, pad=False)]
    return for_ascii(lines) if ascii_only else lines


def for_ascii(lines: list[Strip]) -> list[Strip]:
    """Return the lines with ASCII marks."""
    return [Strip([Segment(one.text.translate(_ASCII_MARKS), one.style) for one in line]) for line in lines]


@cache
def _parser() -> Any:
    from markdown_it import MarkdownIt  # Imported lazily: slow to load.

    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def parsed(text: str) -> list[Any]:
    """Return the markdown-it tokens of a text, with invisible characters that entities decode to escaped."""
    tokens: list[Any] = _parser().parse(text)
    for child in (child for token in tokens for child in token.children or ()):
        child.content = escaped(child.content)
    return tokens


def code(text: str, language: str, width: int, look: Look) -> list[Strip]:
    """Return highlighted code as indented lines, long ones wrapped."""
    from rich.syntax import Syntax  # Imported lazily: slow to load.

    syntax = Syntax("", language or "text", theme=look.code_theme, background_color="default")
    lines, room = syntax.highlight(f"{text}\n").split("\n"), max(1, width - 2)
    return with_prefix([strip for line in lines for strip in _folded(line, room)], _INDENT, _INDENT)


def plain_line(text: str, style: str, width: int) -> list[Strip]:
    """Return a line of one style, wrapped if it is too long."""
    if cell_len(text) > width:
        return drawn(Text(text, style=style), width)
    return [Strip([Segment(text, Style.parse(style))])]


def _folded(line: Text, width: int) -> list[Strip]:
    if cell_len(line.plain) > width:
        return drawn(line, width)
    return [Strip(line.render(console()))]


def rows_of(text: str) -> list[Row]:
    """Return the rows of a text that is one table, its header first."""
    rows: list[Row] = []
    drawn(_markdown_class()(text, code_theme="", rows=rows), 80)
    return rows


def markdown(text: str, look: Look) -> RenderableType:
    """Return a text as a renderable. Keeps the line breaks of paragraphs: models mostly mean them."""
    made: RenderableType = _markdown_class()(text, code_theme=look.code_theme)
    return made


@cache
def _markdown_class() -> Any:
    """Return our Markdown class: code on the terminal's own background, headings at the left."""
    from rich.markdown import CodeBlock, Heading, Markdown, TableElement  # Imported lazily: slow to load.

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
            self.rows = rows  # If given, receives a table's rows instead of lines.
            # Rich would create a parser each time, which takes longer than parsing.
            self.markup, self.code_theme, self.hyperlinks = text, code_theme, False
            self.justify, self.style = None, "none"
            self.inline_code_lexer, self.inline_code_theme = None, code_theme
            self.parsed = parsed(text)  # Unlike Rich, shows HTML tags as text.
            for child in (child for token in self.parsed for child in token.children or ()):
                if child.type == "softbreak":
                    child.type = "hardbreak"

        elements = {  # noqa: RUF012
            **Markdown.elements, "fence": Code, "code_block": Code, "heading_open": Left, "table_open": Grid,
        }  # fmt: skip

    return Ours


def with_prefix(lines: list[Strip], first: Segment, others: Segment) -> list[Strip]:
    """Return the lines, each after a prefix."""
    return [Strip([others if number else first, *line]) for number, line in enumerate(lines)]


class _Block(msgspec.Struct):
    """A top-level block: its start, its token type, and the starts of its items if it is a list."""

    start: int
    kind: str
    points: list[int]


class Flow:
    """The lines of a text that grows at its end, each after ``before``.

    Unchanged lines stay the same objects. Only the last piece of a long block is drawn again.
    """

    def __init__(self) -> None:
        self._key: tuple[int, Look, Segment] | None = None
        self._begin()

    def _begin(self) -> None:
        #: The length of the text that is final, and its lines.
        self._stable = 0
        self._done: list[Strip] = []
        #: The opening line of code, or the header of a table, that the rest of a split block must be parsed with.
        self._lead = ""
        #: The final rows of a long table.
        self._table: Table | None = None

    def lines(self, text: str, width: int, look: Look, before: Segment | None = None) -> list[Strip]:
        """Return the lines of ``text``, which starts with the text of the last call."""
        key = (width, look, before or Segment(""))
        if self._key != key:
            self._key = key
            self._begin()
        tail, lead, base = self._lead + text[self._stable :], self._lead, self._stable - len(self._lead)
        last = tail
        blocks = [*_blocks(tail)]
        for number, block in enumerate(blocks):
            is_last = number + 1 == len(blocks)
            body = tail[block.start : None if is_last else blocks[number + 1].start]
            kept, lead = self._keep(block, body, "" if number else lead)
            last = (lead if kept else "") + body[kept:]
            if not is_last:
                self._done += [*self._drawn(last), *self._prefixed([Strip([])])]
                self._table = None
            elif kept or number:
                self._stable, self._lead = base + block.start + kept, lead
        return self._done + (self._drawn(last) if last.strip() else [])

    def _drawn(self, text: str) -> list[Strip]:
        return self._prefixed(self._block(text)) if self._table is None else self._rows(self._table, text)

    def _rows(self, table: Table, text: str) -> list[Strip]:
        """Return the lines of a table whose last rows are ``text``, which repeats the header."""
        assert self._key is not None
        width, look, _ = self._key
        lines = table.lines(width, console(), rows_of(text)[1:])
        return lines if look.unicode else for_ascii(lines)

    def _prefixed(self, lines: list[Strip]) -> list[Strip]:
        assert self._key is not None
        before = self._key[2]
        return with_prefix(lines, before, before) if before.text else lines

    def _block(self, text: str) -> list[Strip]:
        assert self._key is not None
        width, look, _ = self._key
        lines = drawn(markdown(text, look), width, ascii_only=not look.unicode)
        while lines and not lines[-1].text.strip():
            lines.pop()
        while lines and not lines[0].text.strip() and not _FENCE.match(text):
            lines.pop(0)
        return lines

    def _keep(self, block: _Block, body: str, lead: str) -> tuple[int, str]:
        """Finish the first pieces of a long block.

        Return their length, and the lead that the rest must be parsed with.
        """
        match block.kind:
            case "fence":
                return self._keep_code(body) or (0, lead)
            case "table_open":
                return self._keep_rows(body) or (0, lead)
            case "bullet_list_open" | "ordered_list_open":
                return self._keep_items(block, body), ""
            case "paragraph_open":
                return self._keep_prose(body), ""
            case _:
                return 0, lead

    def _keep_code(self, body: str) -> tuple[int, str] | None:
        fence = _FENCE.match(body)
        if fence is None or body.count("\n") < 2 * _LINES:
            return None
        assert self._key is not None
        width, look, _ = self._key
        kept = fence.end()
        for piece in _pieces(body[kept:].split("\n"), _LINES):
            # Blank lines at the ends of a piece belong to the code.
            self._done += self._prefixed(code(piece, fence[2], width, look))
            kept += len(piece) + 1
        return kept, fence[0]

    def _keep_rows(self, body: str) -> tuple[int, str] | None:
        """Only collect the rows: column widths depend on later ones."""
        rows = body.split("\n")
        head = "".join(f"{row}\n" for row in rows[:2])
        if len(rows) < 2 * _ROWS + 2:
            return None
        kept = len(head)
        for piece in _pieces(rows[2:], _ROWS):
            first, *more = rows_of(head + piece)
            self._table = self._table or Table(first.cells, before=self._key[2] if self._key else None)
            self._table.extend(more)
            kept += len(piece) + 1
        return kept, head

    def _keep_items(self, block: _Block, body: str) -> int:
        points = [at - block.start for at in block.points]
        kept = 0
        for number in range(_ITEMS, len(points) - _ITEMS + 1, _ITEMS):
            if block.kind == "ordered_list_open" and not _is_numbered(body, points, number):
                break  # Numbering would restart wrongly.
            self._done += self._drawn(body[kept : points[number]])
            kept = points[number]
        return kept

    def _keep_prose(self, body: str) -> int:
        if len(body) < 2 * _CHARACTERS:
            return 0
        lines = self._block(body)
        words = [found.start() for found in _WORD.finditer(body)]
        for count in range(len(lines) - 3, max(0, len(lines) - 3 - _TRIES), -1):
            said = sum(len(line.text.split()) for line in lines[:count])
            at = words[said] if said < len(words) else 0
            if at and body[at].isalpha() and self._is_settled(body[:at], lines[:count]):
                self._done += self._prefixed(lines[:count])
                return at
        return 0

    def _is_settled(self, text: str, lines: list[Strip]) -> bool:
        """True if ``text`` is drawn as these lines, whatever follows."""
        inline = next((token for token in parsed(text) if token.type == "inline"), None)
        if inline is None or any(_OPEN.search(one.content) for one in inline.children if one.type == "text"):
            return False
        return [line.text for line in self._block(text)] == [line.text for line in lines]


def _pieces(lines: list[str], count: int) -> Iterator[str]:
    """Yield pieces of ``count`` lines; leave one to two pieces."""
    for first in range(0, (len(lines) // count - 1) * count, count):
        yield "\n".join(lines[first : first + count])


def _is_numbered(body: str, points: list[int], number: int) -> bool:
    """True if a list item's own number matches its position."""
    first, this = _NUMBER.match(body, points[0]), _NUMBER.match(body, points[number])
    return first is not None and this is not None and int(this[1]) == int(first[1]) + number


def _blocks(text: str) -> Iterator[_Block]:
    """Yield the top-level blocks of a text."""
    if not text.strip():
        return
    offsets, at = [], 0
    for line in text.split("\n"):
        offsets.append(at)
        at += len(line) + 1
    block: _Block | None = None
    for token in parsed(text):
        if token.map is None or token.nesting < 0 or token.map[0] >= len(offsets):
            continue
        start = offsets[token.map[0]]
        if token.level == 0:
            if block is not None:
                yield block
            block = _Block(start, token.type, [])
        elif token.level == 1 and token.type == "list_item_open" and block is not None:
            block.points.append(start)
    if block is not None:
        yield block


def warm() -> None:
    """Load the modules that the first answer needs."""
    Flow().lines("# a\n\n```python\nb = 1\n```\n", 40, Look())
