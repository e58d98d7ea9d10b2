"""Tables of a page."""

from __future__ import annotations

import re

from zot.ui.block import Block
from zot.ui.words import words

_RULE = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_PIPE = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")


def begins_table(lines: list[str], at: int) -> bool:
    """True if the head of a table stands here, and its rule below."""
    if at + 1 >= len(lines) or "|" not in lines[at] or "|" not in lines[at + 1]:
        return False
    rule = lines[at + 1].strip()
    return _RULE.fullmatch(rule) is not None and len(_cells(lines[at])) == len(_cells(rule))


def read_table(lines: list[str], at: int) -> tuple[Block, int]:
    """Return a table, and the line behind it."""
    head, sides = _cells(lines[at]), [_side(cell) for cell in _cells(lines[at + 1])]
    end = at + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    rows = "".join(_row(_fitted(line, len(head)), sides, "td") for line in lines[at + 2 : end])
    body = f"<tbody>{rows}</tbody>" if rows else ""
    table = f"<table><thead>{_row(head, sides, 'th')}</thead>{body}</table>"
    return Block("div", table, attributes=' class="table"'), end


def _cells(row: str) -> list[str]:
    cells = _PIPE.split(row.strip())
    if not cells[0]:
        del cells[0]
    if len(cells) > 1 and not cells[-1].strip():
        del cells[-1]
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _fitted(row: str, count: int) -> list[str]:
    """Return the cells of a row, as many as its head has: nothing of it is left out."""
    cells = _cells(row)
    if len(cells) > count:  # Many forget that a bar within code ends a cell, too.
        cells = _cells(_CODE.sub(lambda code: _PIPE.sub(r"\\|", code[0]), row))
    cells += [""] * (count - len(cells))
    return [*cells[: count - 1], " | ".join(cells[count - 1 :])]


def _side(cell: str) -> str:
    match cell[:1], cell[-1:]:
        case ":", ":":
            return ' class="centre"'
        case _, ":":
            return ' class="right"'
        case _:
            return ""


def _row(cells: list[str], sides: list[str], tag: str) -> str:
    made = (f"<{tag}{side}>{words(cell)}</{tag}>" for cell, side in zip(cells, sides, strict=True))
    return f"<tr>{''.join(made)}</tr>"
