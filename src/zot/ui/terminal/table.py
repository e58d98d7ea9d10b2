"""A table in the terminal: one for all of its rows, also while more of them come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

_EDGE, _BETWEEN = Segment(" "), Segment("  ")
_RULE: Final = "─"
_DIM = Style(dim=True)
_BOLD = Style(bold=True)


class Row(msgspec.Struct):
    """The cells of a row, and its lines in columns of some widths."""

    cells: Sequence[Text]
    widths: tuple[int, ...] = ()
    lines: list[Strip] = []

    def drawn(self, widths: tuple[int, ...], before: Segment, console: Console) -> list[Strip]:
        """Return its lines: the same as the last time, if the columns are as wide as they were."""
        if self.widths != widths:
            self.widths = widths
            self.lines = [Strip([before, *line]) for line in _lines(self.cells, widths, console)]
        return self.lines


class Table:
    """A head, and rows to which more can be added. Columns are as wide as all of them need, or as there is room."""

    def __init__(self, head: Sequence[Text], rows: Sequence[Row] = (), *, before: Segment | None = None) -> None:
        """``before`` stands at the beginning of each line."""
        self._before = before or Segment("")
        self._head = Row([_headed(cell) for cell in head])
        self._rows: list[Row] = []
        self._needs = [cell.cell_len for cell in head]
        self.extend(rows)

    def extend(self, rows: Sequence[Row]) -> None:
        """There are more rows."""
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
    """Return how wide columns are: those that need most get less, if there is not room for all."""
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
