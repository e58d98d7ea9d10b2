"""Diffs: apply known changes to a text and show them, in linear time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import NamedTuple, TypeAlias

from zot.tools.text_encoding import UTF_8, Encoding, detect, from_units, to_units

CONTEXT_LINES = 3
MAX_ROW_CHARACTERS = 500
#: Limit of lines shown at each end of a long piece.
MAX_PIECE_LINES = 1000

_STEP = 4096
_NO_LINE_END = b"\\ No newline at end of file\n"
#: Limit of compared lines: more may take very long.
MAX_COMPARED_LINES = 50_000


class Change(NamedTuple):
    """Replacement of the bytes from ``start`` to ``end`` by ``new``."""

    start: int
    end: int
    new: bytes


class Skipped(NamedTuple):
    """Rows of a diff that are counted but not shown."""

    size: int
    lines: int


Row: TypeAlias = bytes | Skipped


def apply(data: bytes, changes: Sequence[Change]) -> bytes:
    """Return ``data`` with all ``changes``, which are in order and do not overlap."""
    parts, position = [], 0
    for change in changes:
        parts += [data[position : change.start], change.new]
        position = change.end
    return b"".join([*parts, data[position:]])


def diff(units: str, changes: Sequence[Change], encoding: Encoding = UTF_8) -> Iterator[Row]:
    """Yield the rows of a unified diff of ``changes``, as UTF-8, each ended by LF.

    Shows CR as ``\\r`` where only line ends change. The middle of a very long piece is only counted.
    """
    return _Diff(units, changes, encoding).rows()


def common_start(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    at, length = 0, min(len(one), len(other))
    while at < length and one[at : at + _STEP] == other[at : at + _STEP]:
        at += _STEP
    while at < length and one[at] == other[at]:
        at += 1
    return min(at, length)


def lines_in_common(one: str, other: str, lf: str = "\n") -> tuple[int, int]:
    """Return the lengths of the common whole lines at the beginning and at the end; without overlap."""
    head = common_start(one, other)
    if head < max(len(one), len(other)):
        head = one.rfind(lf, 0, head) + 1
    left, right = one[head:], other[head:]
    tail = _common_end(left, right)
    if not all(_is_line_start(text, len(text) - tail, lf) for text in (left, right)):
        tail = len(left) - (left.find(lf, len(left) - tail) + 1 or len(left))
    return head, tail


def _common_end(one: str, other: str) -> int:
    at, length, left, right = 0, min(len(one), len(other)), len(one), len(other)
    while at + _STEP <= length and one[left - at - _STEP : left - at] == other[right - at - _STEP : right - at]:
        at += _STEP
    while at < length and one[left - at - 1] == other[right - at - 1]:
        at += 1
    return at


def _is_line_start(text: str, at: int, lf: str) -> bool:
    return at == 0 or text[at - 1] == lf


class _Block(NamedTuple):
    """Replaced whole lines, in units."""

    start: int
    end: int
    new: str


class _Diff:
    def __init__(self, units: str, changes: Sequence[Change], encoding: Encoding) -> None:
        self._text = units
        self._changes = changes
        self._encoding = encoding
        self._lf = to_units(encoding.encode("\n"), encoding)
        self._cr = to_units(encoding.encode("\r"), encoding)
        self._bom = to_units(encoding.bom, encoding)
        #: Current position, its line number, and the growth of the new text up to it in lines.
        self._at, self._number, self._shift = 0, 1, 0

    def rows(self) -> Iterator[Row]:
        blocks = [block for block in self._blocks() if block.new or block.end > block.start]
        hunk: list[_Block] = []
        for block in blocks:
            if hunk and self._up(block.start, hunk[-1].end) > self._down(hunk[-1].end):
                yield from self._hunk(hunk)
                hunk = []
            hunk.append(block)
        if hunk:
            yield from self._hunk(hunk)

    def _hunk(self, blocks: Sequence[_Block]) -> Iterator[Row]:
        """Show adjacent blocks with their context."""
        start, end = self._up(blocks[0].start, 0), self._down(blocks[-1].end)
        yield self._header(start, end, blocks)
        position = start
        for block in blocks:
            old = self._text[block.start : block.end]
            differ = self._has_crlf(old) != self._has_crlf(block.new)
            yield from self._show(b" ", self._text[position : block.start])
            yield from self._show(b"-", old, with_cr=differ)
            yield from self._show(b"+", block.new, with_cr=differ)
            position = block.end
        yield from self._show(b" ", self._text[position:end])

    def _header(self, start: int, end: int, blocks: Sequence[_Block]) -> bytes:
        self._number += self._text.count(self._lf, self._at, start)
        self._at = start
        old = self._count(self._text[start:end])
        more = sum(self._count(block.new) - self._count(self._text[block.start : block.end]) for block in blocks)
        row = f"@@ -{_span(self._number, old)} +{_span(self._number + self._shift, old + more)} @@\n"
        self._shift += more
        return row.encode()

    def _blocks(self) -> Iterator[_Block]:
        """Extend changes to whole lines, and merge those that touch the same line."""
        unit, group = self._encoding.unit, list[_Block]()
        start = end = 0
        for change in self._changes:
            first, last = change.start // unit, change.end // unit
            if group and first >= end:
                yield self._merged(start, end, group)
                group = []
            if not group:
                start = self._text.rfind(self._lf, 0, first) + 1
                end = start
            if not group or last > end:
                end = self._text.find(self._lf, last) + 1 or len(self._text)
            group.append(_Block(first, last, to_units(change.new, self._encoding)))
        if group:
            yield self._merged(start, end, group)

    def _merged(self, start: int, end: int, group: Sequence[_Block]) -> _Block:
        """Return the changed lines of a group, without unchanged ones at both ends."""
        parts, position = [], start
        for one in group:
            parts += [self._text[position : one.start], one.new]
            position = one.end
        new = "".join([*parts, self._text[position:end]])
        head, tail = lines_in_common(self._text[start:end], new, self._lf)
        return _Block(start + head, end - tail, new[head : len(new) - tail])

    def _show(self, prefix: bytes, piece: str, *, with_cr: bool = False) -> Iterator[Row]:
        lines = self._count(piece)
        if lines <= 2 * MAX_PIECE_LINES:
            yield from self._show_lines(prefix, piece, with_cr=with_cr)
            return
        head, tail = self._nth_line(piece, MAX_PIECE_LINES), self._nth_last_line(piece, MAX_PIECE_LINES)
        left = lines - 2 * MAX_PIECE_LINES
        size = len(self._decode(piece[head:tail]).encode())
        yield from self._show_lines(prefix, piece[:head], with_cr=with_cr)
        yield Skipped(size + left, left)
        yield from self._show_lines(prefix, piece[tail:], with_cr=with_cr)

    def _show_lines(self, prefix: bytes, piece: str, *, with_cr: bool) -> Iterator[bytes]:
        position = 0
        while position < len(piece):
            end = piece.find(self._lf, position) + 1 or len(piece)
            yield prefix + self._row(piece[position:end], with_cr=with_cr).encode() + b"\n"
            if piece[end - 1] != self._lf:
                yield _NO_LINE_END
            position = end

    def _row(self, line: str, *, with_cr: bool) -> str:
        # No character takes more than four units.
        text = self._decode(line[: 4 * MAX_ROW_CHARACTERS + 8].removeprefix(self._bom))
        text, ended = text.removesuffix("\n"), text.endswith("\n")
        if ended and text.endswith("\r"):
            text = f"{text[:-1]}\\r" if with_cr else text[:-1]
        return f"{text[:MAX_ROW_CHARACTERS]}..." if len(text) > MAX_ROW_CHARACTERS else text

    def _decode(self, units: str) -> str:
        return self._encoding.decode(from_units(units, self._encoding))

    def _has_crlf(self, piece: str) -> bool:
        return self._cr + self._lf in piece

    def _count(self, piece: str) -> int:
        """Return the number of lines, an unterminated last one included."""
        return piece.count(self._lf) + (bool(piece) and piece[-1] != self._lf)

    def _nth_line(self, piece: str, count: int) -> int:
        position = 0
        for _ in range(count):
            position = piece.find(self._lf, position) + 1
        return position

    def _nth_last_line(self, piece: str, count: int) -> int:
        position = len(piece)
        for _ in range(count):
            position = piece.rfind(self._lf, 0, position - 1) + 1
        return position

    def _up(self, position: int, limit: int) -> int:
        """Return the start of the context above a line, but not above ``limit``."""
        for _ in range(CONTEXT_LINES):
            if position > limit:
                position = self._text.rfind(self._lf, limit, position - 1) + 1 or limit
        return position

    def _down(self, position: int) -> int:
        for _ in range(CONTEXT_LINES):
            if position < len(self._text):
                position = self._text.find(self._lf, position) + 1 or len(self._text)
        return position


def _span(number: int, count: int) -> str:
    """Return a range of a hunk header; an empty one names the line before it."""
    if not count:
        return f"{number - 1},0"
    return f"{number}" if count == 1 else f"{number},{count}"


def unified(one: bytes | None, other: bytes | None, path: str) -> Iterator[str]:
    """Yield the rows of a unified diff, each ended by LF; None is no file. Binary files are only said to differ."""
    names = "/dev/null" if one is None else f"a/{path}", "/dev/null" if other is None else f"b/{path}"
    left, right = _lines(one or b""), _lines(other or b"")
    if left is None or right is None:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
    elif len(left) + len(right) > MAX_COMPARED_LINES:
        yield f"Files {names[0]} and {names[1]} differ, and are too long to be compared\n"
    else:
        for row in unified_diff(left, right, *names):
            yield row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[str] | None:
    """Return the lines of a text with their ends; None for binary data."""
    encoding = detect(data)
    if encoding is None:
        return None
    *lines, last = encoding.decode(data.removeprefix(encoding.bom)).split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]
