"""Markdown that is drawn while it is still being written: what can no longer change is drawn once, and then kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from rich.segment import Segment
from textual.strip import Strip

from zot.ui.terminal.looks import Look
from zot.ui.terminal.markdown_part import code, console, drawn, for_ascii, markdown, parsed, rows_of, with_prefix
from zot.ui.terminal.table import Table

#: Long blocks are kept in pieces of so many lines of code, rows of a table, points of a list, or characters of prose:
#: drawing two of them is what may take place between two keys.
_LINES = 20
_ROWS = 15
_POINTS = 20
_CHARACTERS = 1200

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,}) *([\w+#-]*)[^\n]*\n")
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r" {0,3}(\d+)")
#: What may be the beginning of something that ends further on.
_OPEN = re.compile(r"\*(?!\s)|(?<!\w)_|`|~~|!?\[[^\]]*$|<|&\w*$|\\$")
#: So many ends of lines are tried for one behind which prose no longer changes.
_TRIES = 3


class _Block(msgspec.Struct):
    """An outermost block of a text: where it begins, what it is, and where its points begin, if it is a list."""

    start: int
    kind: str
    points: list[int]


class Flow:
    """The lines of a text that grows at its end, each behind ``before``.

    A line that is there again is the same object as it was. Of a long block only the last piece is drawn anew.
    """

    def __init__(self) -> None:
        self._key: tuple[int, Look, Segment] | None = None
        self._begin()

    def _begin(self) -> None:
        #: How much of the text is drawn for good, and its lines.
        self._stable = 0
        self._done: list[Strip] = []
        #: What makes the rest of the text what it is, if a block began before it: the first line of code or of a table.
        self._lead = ""
        #: The rows of a long table that no longer change.
        self._table: Table | None = None

    def lines(self, text: str, width: int, look: Look, before: Segment | None = None) -> list[Strip]:
        """Return the lines of ``text``, which begins with what it was the last time."""
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
                self._done += [*self._drawn(last), *self._behind([Strip([])])]
                self._table = None
            elif kept or number:
                self._stable, self._lead = base + block.start + kept, lead
        return self._done + (self._drawn(last) if last.strip() else [])

    def _drawn(self, text: str) -> list[Strip]:
        return self._behind(self._block(text)) if self._table is None else self._rows(self._table, text)

    def _rows(self, table: Table, text: str) -> list[Strip]:
        """Return the lines of a table whose last rows are this text, which has the head of the table, too."""
        assert self._key is not None
        width, look, _ = self._key
        lines = table.lines(width, console(), rows_of(text)[1:])
        return lines if look.unicode else for_ascii(lines)

    def _behind(self, lines: list[Strip]) -> list[Strip]:
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
        """Keep the first pieces of a long block.

        Return how much of it that is, and what must stand before the rest.
        """
        match block.kind:
            case "fence":
                return self._keep_code(body) or (0, lead)
            case "table_open":
                return self._keep_rows(body) or (0, lead)
            case "bullet_list_open" | "ordered_list_open":
                return self._keep_points(block, body), ""
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
            self._done += self._behind(code(piece, fence[2], width, look))
            kept += len(piece) + 1
        return kept, fence[0]

    def _keep_rows(self, body: str) -> tuple[int, str] | None:
        """The rows that are kept are drawn with those to come: all have the same columns."""
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

    def _keep_points(self, block: _Block, body: str) -> int:
        points = [at - block.start for at in block.points]
        kept = 0
        for number in range(_POINTS, len(points) - _POINTS + 1, _POINTS):
            if block.kind == "ordered_list_open" and not _is_numbered(body, points, number):
                break  # They would be counted from another number.
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
                self._done += self._behind(lines[:count])
                return at
        return 0

    def _is_settled(self, text: str, lines: list[Strip]) -> bool:
        """True if a text is drawn as these lines, whatever follows."""
        inline = next((token for token in parsed(text) if token.type == "inline"), None)
        if inline is None or any(_OPEN.search(one.content) for one in inline.children if one.type == "text"):
            return False
        return [line.text for line in self._block(text)] == [line.text for line in lines]


def _pieces(lines: list[str], count: int) -> Iterator[str]:
    """Yield pieces of so many lines; between one and two of them are left."""
    for first in range(0, (len(lines) // count - 1) * count, count):
        yield "\n".join(lines[first : first + count])


def _is_numbered(body: str, points: list[int], number: int) -> bool:
    """True if a point of a list says which one it is."""
    first, this = _NUMBER.match(body, points[0]), _NUMBER.match(body, points[number])
    return first is not None and this is not None and int(this[1]) == int(first[1]) + number


def _blocks(text: str) -> Iterator[_Block]:
    """Yield the outermost blocks of a text."""
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
    """Load what the first answer would have to wait for."""
    Flow().lines("# a\n\n```python\nb = 1\n```\n", 40, Look())
