"""Known changes of a text: made, and shown as a diff, in time and memory linear in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zot.tools.encoding import UTF_8, Encoding
from zot.tools.lines import line_end, line_start, split

CONTEXT_LINES = 3
MAX_ROW_CHARACTERS = 500


class Change(NamedTuple):
    """The bytes from ``start`` to ``end`` become ``new``."""

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


def diff(data: bytes, changes: Sequence[Change], encoding: Encoding = UTF_8) -> Iterator[bytes]:
    """Show what ``changes`` do to the lines of ``data``, row by row, as UTF-8, each ended by LF.

    A row begins with a blank, ``-`` or ``+``; three lines around each change are shown, and ``...`` stands for
    what is left out between them and behind the last.
    """
    return _Diff(data, changes, encoding).rows()


def common_start(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items two sequences have in common at their beginning."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return count
    return min(len(one), len(other))


class _Diff:
    def __init__(self, data: bytes, changes: Sequence[Change], encoding: Encoding) -> None:
        self._data = data
        self._changes = changes
        self._encoding = encoding
        self._lf = encoding.encode("\n")

    def rows(self) -> Iterator[bytes]:
        blocks = list(self._blocks())
        for number, block in enumerate(blocks):
            before = blocks[number - 1] if number else None
            after = blocks[number + 1] if number + 1 < len(blocks) else None
            yield from self._show(b" ", self._context_before(block, before))
            yield from self._show(b"-", self._data[block.start : block.end])
            yield from self._show(b"+", block.new)
            context_end = self._down(block.end, after.start if after else len(self._data))
            yield from self._show(b" ", self._data[block.end : context_end])
            if context_end < (self._up(after.start, context_end) if after else len(self._data)):
                yield b"...\n"

    def _context_before(self, block: Change, before: Change | None) -> bytes:
        """Return the lines above a block that the context below the block before has not shown."""
        shown = self._down(before.end, block.start) if before else 0
        return self._data[self._up(block.start, shown) : block.start]

    def _blocks(self) -> Iterator[Change]:
        """Widen changes to whole lines, and make one of those that touch the same line."""
        changes, position = self._changes, 0
        while position < len(changes):
            group = [changes[position]]
            start, end = self._whole_lines(group[0])
            while position + len(group) < len(changes) and changes[position + len(group)].start < end:
                group.append(changes[position + len(group)])
                end = self._whole_lines(group[-1])[1]
            position += len(group)
            moved = [Change(one.start - start, one.end - start, one.new) for one in group]
            yield self._trimmed(Change(start, end, apply(self._data[start:end], moved)))

    def _whole_lines(self, change: Change) -> tuple[int, int]:
        return line_start(self._data, self._lf, change.start), line_end(self._data, self._lf, change.end)

    def _trimmed(self, block: Change) -> Change:
        """Take away the whole lines at both ends that the change leaves as they are."""
        old, new = split(self._data[block.start : block.end], self._lf), split(block.new, self._lf)
        head = common_start(old, new)
        tail = common_start(old[head:][::-1], new[head:][::-1])
        start = block.start + sum(map(len, old[:head]))
        end = block.end - sum(map(len, old[len(old) - tail :]))
        return Change(start, end, b"".join(new[head : len(new) - tail]))

    def _show(self, prefix: bytes, data: bytes) -> Iterator[bytes]:
        for line in split(data, self._lf):
            text = self._encoding.decode(line.removeprefix(self._encoding.bom)).rstrip("\r\n")
            if len(text) > MAX_ROW_CHARACTERS:
                text = f"{text[:MAX_ROW_CHARACTERS]}..."
            yield prefix + text.encode() + b"\n"

    def _up(self, position: int, limit: int) -> int:
        """Go up from the start of a line, as far as the context reaches but not above ``limit``."""
        for _ in range(CONTEXT_LINES):
            if position <= limit:
                break
            position = line_start(self._data, self._lf, position - len(self._lf), limit)
        return max(position, limit)

    def _down(self, position: int, limit: int) -> int:
        for _ in range(CONTEXT_LINES):
            if position >= limit:
                break
            position = line_end(self._data, self._lf, position, limit)
        return position
