"""Lists of a page: in each other, numbered from anywhere, of tasks, with and without room between their points."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from zot.ui.block import RULE, Block, dedented, indent_of, next_said

_ITEM = re.compile(r"([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|$)")
_TASK = re.compile(r"\[([ xX])\][ \t]+(?=\S)")
_BOX = '<input type="checkbox" disabled>'
_TICKED = '<input type="checkbox" checked disabled>'


class _Item(msgspec.Struct):
    """The lines of a point, and the line behind them."""

    body: list[str]
    end: int


def begins_item(line: str, *, within_text: bool = False) -> bool:
    """True if a point begins here. Not every number ``within_text`` is meant so."""
    found = _ITEM.match(line)
    if found is None or indent_of(line) > 3:
        return False
    return not within_text or ((found[2] in "-*+" or found[2][:-1] == "1") and bool(found[4]))


def read_list(
    lines: list[str], at: int, inner: Callable[[list[str]], list[Block]], starts: Callable[[str], bool]
) -> tuple[Block, int]:
    """Return a list, and the line behind it. ``inner`` makes blocks of lines, ``starts`` tells where one begins."""
    mark = _mark(lines[at])
    items: list[_Item] = []
    first, end, has_room = at, at, False
    while at < len(lines) and _mark(lines[at]) == mark:
        items.append(_item(lines, at, starts))
        end = items[-1].end
        at = next_said(lines, end)
        has_room = has_room or (at > end and at < len(lines) and _mark(lines[at]) == mark)
    tasks = [_TASK.match(item.body[0]) for item in items]
    made = [inner([item.body[0][task.end() if task else 0 :], *item.body[1:]])
            for item, task in zip(items, tasks, strict=True)]  # fmt: skip
    has_room = has_room or any(block.is_apart for blocks in made for block in blocks[:-1])
    points = (_point(blocks, task, has_room=has_room) for blocks, task in zip(made, tasks, strict=True))
    number = "" if mark in "-*+" else lines[first].split(mark)[0].strip().lstrip("0") or "0"
    start = f' start="{number}"' if number not in ("", "1") else ""
    return Block("ol" if number else "ul", "".join(points), attributes=start), end


def _mark(line: str) -> str:
    """Return what the points of one list have in common; "" if none begins here."""
    found = _ITEM.match(line)
    return found[2][-1] if found and not RULE.match(line) else ""


def _item(lines: list[str], at: int, starts: Callable[[str], bool]) -> _Item:
    found = _ITEM.match(lines[at])
    assert found is not None
    own, blanks = indent_of(lines[at]), len(found[3] or "")
    column = own + len(found[2]) + (blanks if 1 <= blanks <= 4 else 1)
    item = _Item([found[4] or ""], at + 1)
    while (at := next_said(lines, item.end)) < len(lines):
        line = lines[at]
        if indent_of(line) >= min(column, own + 2):  # Many put what is below a number two columns to the right.
            item.body += [*[""] * (at - item.end), dedented(line, column)]
        elif at == item.end and item.body[-1].strip() and not starts(line) and not _mark(line):
            item.body.append(line.strip())  # A paragraph whose further lines are not indented.
        else:
            break
        item.end = at + 1
    return item


def _point(blocks: Sequence[Block], task: re.Match[str] | None, *, has_room: bool) -> str:
    parts = [block.inner if block.tag == "p" and not has_room else block.whole for block in blocks]
    if task is None:
        return f"<li>{''.join(parts)}</li>"
    return f'<li class="task">{_BOX if task[1] == " " else _TICKED}{"".join(parts)}</li>'
