"""Known changes of a text: made, and shown as a diff, in time and memory linear in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

CONTEXT_LINES = 3
MAX_ROW_CHARACTERS = 500


class Change(NamedTuple):
    """The bytes from ``start`` to ``end``, at least one, become ``new``."""

    start: int
    end: int
    new: bytes


def apply(data: bytes, changes: Sequence[Change]) -> bytes:
    """Return ``data`` with all ``changes`` made. They are in order and do not overlap."""
    parts, position = [], 0
    for change in changes:
        parts += [data[position : change.start], change.new]
        position = change.end
    return b"".join([*parts, data[position:]])


def diff(data: bytes, changes: Sequence[Change]) -> Iterator[bytes]:
    """Show what ``changes`` do to the lines of ``data``, row by row, each ended by LF.

    A row begins with a blank, ``-`` or ``+``; three lines around each change are shown, and ``...`` stands for
    what is left out between them and behind the last.
    """
    blocks = list(_blocks(data, changes))
    for number, block in enumerate(blocks):
        before = blocks[number - 1] if number else None
        after = blocks[number + 1] if number + 1 < len(blocks) else None
        yield from _rows(b" ", _context_before(data, block, before))
        yield from _rows(b"-", data[block.start : block.end])
        yield from _rows(b"+", block.new)
        context_end = _down(data, block.end, after.start if after else len(data))
        yield from _rows(b" ", data[block.end : context_end])
        if context_end < (_up(data, after.start, context_end) if after else len(data)):
            yield b"...\n"


def common_start(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items two sequences have in common at their beginning."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return count
    return min(len(one), len(other))


def _context_before(data: bytes, block: Change, before: Change | None) -> bytes:
    """Return the lines above a block that the context below the block before has not shown."""
    shown = _down(data, before.end, block.start) if before else 0
    return data[_up(data, block.start, shown) : block.start]


def _blocks(data: bytes, changes: Sequence[Change]) -> Iterator[Change]:
    """Widen changes to whole lines, and make one of those that touch the same line."""
    position = 0
    while position < len(changes):
        group = [changes[position]]
        start, end = _whole_lines(data, group[0])
        while position + len(group) < len(changes) and changes[position + len(group)].start < end:
            group.append(changes[position + len(group)])
            end = _whole_lines(data, group[-1])[1]
        position += len(group)
        moved = [Change(one.start - start, one.end - start, one.new) for one in group]
        yield _trimmed(data, Change(start, end, apply(data[start:end], moved)))


def _whole_lines(data: bytes, change: Change) -> tuple[int, int]:
    start = data.rfind(b"\n", 0, change.start) + 1
    end = data.find(b"\n", change.end) + 1
    return start, end or len(data)


def _trimmed(data: bytes, block: Change) -> Change:
    """Take away the whole lines at both ends that the change leaves as they are."""
    old, new = _lines(data[block.start : block.end]), _lines(block.new)
    head = common_start(old, new)
    tail = common_start(old[head:][::-1], new[head:][::-1])
    start = block.start + sum(map(len, old[:head]))
    end = block.end - sum(map(len, old[len(old) - tail :]))
    return Change(start, end, b"".join(new[head : len(new) - tail]))


def _lines(data: bytes) -> list[bytes]:
    """Cut at LF, which stays with its line. A last line without one counts."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _rows(prefix: bytes, data: bytes) -> Iterator[bytes]:
    for line in _lines(data):
        text = line.rstrip(b"\r\n").decode(errors="replace")
        if len(text) > MAX_ROW_CHARACTERS:
            text = f"{text[:MAX_ROW_CHARACTERS]}..."
        yield prefix + text.encode() + b"\n"


def _up(data: bytes, position: int, limit: int) -> int:
    """Go up from the start of a line, as far as the context reaches but not above ``limit``."""
    for _ in range(CONTEXT_LINES):
        if position <= limit:
            break
        position = data.rfind(b"\n", limit, position - 1) + 1 or limit
    return max(position, limit)


def _down(data: bytes, position: int, limit: int) -> int:
    for _ in range(CONTEXT_LINES):
        if position >= limit:
            break
        position = data.find(b"\n", position, limit) + 1 or limit
    return position
