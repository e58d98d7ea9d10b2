"""How much of many lines is shown: as much as so many rows of the screen hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from rich.cells import cell_len, chop_cells

#: What it says, and its style.
Line: TypeAlias = tuple[str, str]


def height(lines: Iterable[Line], width: int) -> int:
    """Return how many rows lines take, if each is broken wherever a row ends: hardly less than if words stay whole."""
    return sum(_rows(text, width) for text, _ in lines)


def first(lines: Sequence[Line], rows: int, width: int) -> list[Line]:
    """Return the beginning of lines, as much as so many rows hold."""
    shown: list[Line] = []
    for text, style in lines:
        if rows <= 0:
            break
        taken = _rows(text, width)
        # No more of a long line is looked at than can be shown.
        shown.append((text if taken <= rows else "".join(chop_cells(text[: rows * width], width)[:rows]), style))
        rows -= taken
    return shown


def last(lines: Sequence[Line], rows: int, width: int) -> list[Line]:
    """Return the end of lines, as much as so many rows hold."""
    shown: list[Line] = []
    for text, style in reversed(lines):
        if rows <= 0:
            break
        taken = _rows(text, width)
        shown.append((text if taken <= rows else _end(text, rows, width), style))
        rows -= taken
    return shown[::-1]


def _end(text: str, rows: int, width: int) -> str:
    """Return the end of a line, from where one of its rows begins: while it grows, its rows stay as they are."""
    most = rows * width - -cell_len(text) % width
    return "".join(chop_cells(text[-most:], width)[-rows:])


def _rows(text: str, width: int) -> int:
    if 2 * len(text) <= width:  # No character takes more than two cells, and most lines are short.
        return 1
    cells = len(text) if text.isascii() else cell_len(text)
    return max(1, -(-cells // width))
