"""Where a text stands in a file, by bytes, and which bytes its replacement changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zot.tools.changes import Change, common_start
from zot.tools.encoding import Encoding
from zot.tools.lines import count, count_ends, find, line_end, rfind, split


class Match(NamedTuple):
    """The bytes of a file that are a text."""

    start: int
    end: int


class FileText:
    """The content of a file, and the encoding in which text is looked for in it and put into it."""

    def __init__(self, data: bytes, encoding: Encoding) -> None:
        self.data = data
        self.encoding = encoding
        self._lf = encoding.encode("\n")
        self._crlf = encoding.encode("\r\n")

    def line_number(self, position: int) -> int:
        """Return the number of the line that has ``position``."""
        return count_ends(self.data[:position], self._lf) + 1

    def matches(self, old: str) -> Iterator[Match]:
        """Find ``old`` from the beginning on, also where matches overlap. Raise UnicodeEncodeError.

        Unless ``old`` speaks of CR itself, its line ends stand for those the file has.
        """
        if "\r" in old or "\n" not in old:
            return self._find(self.data, old)
        crlfs = count(self.data, self._crlf, self.encoding.unit)
        if not crlfs:
            return self._find(self.data, old)
        if crlfs == count_ends(self.data, self._lf):
            return self._find(self.data, old.replace("\n", "\r\n"))
        return self._find_with_any_line_end(old)

    def change(self, match: Match, old: str, new: str) -> Change:
        """Return how ``old`` at ``match`` becomes ``new``. Raise UnicodeEncodeError.

        Lines that both have at their beginning or end stay as they are in the file, with the line ends they have
        there. New lines end as those do that they replace, or else as their neighbours do.
        """
        if "\r" in old or "\r" in new:
            return Change(*match, self.encoding.encode(new))
        before, after = _lines(old), _lines(new)
        head = common_start(before, after)
        tail = common_start(before[head:][::-1], after[head:][::-1])
        start = self._down(match.start, head)
        end = self._down(start, len(before) - head - tail) if tail else match.end
        text = "".join(after[head : len(after) - tail])
        if self._has_crlf(start, end):
            text = text.replace("\n", "\r\n")
        return Change(start, end, self.encoding.encode(text))

    def _find(self, data: bytes, old: str) -> Iterator[Match]:
        wanted, unit = self.encoding.encode(old), self.encoding.unit
        at = find(data, wanted, unit)
        while at != -1:
            yield Match(at, at + len(wanted))
            at = find(data, wanted, unit, at + unit)

    def _find_with_any_line_end(self, old: str) -> Iterator[Match]:
        """Look where every CRLF is LF, and say where that is in the file. A pattern would not be linear."""
        plain = b"".join(self._with_lf(line) for line in split(self.data, self._lf))
        here = (0, 0)
        for found in self._find(plain, old):
            start, here = self._in_file(plain, found.start, here)
            end, _ = self._in_file(plain, found.end, here)
            yield Match(start, end)

    def _with_lf(self, line: bytes) -> bytes:
        return line.removesuffix(self._crlf) + self._lf if line.endswith(self._crlf) else line

    def _in_file(self, plain: bytes, position: int, here: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return where a position in ``plain`` is in the file, and where its line begins in both.

        ``here`` is the beginning of a line above, in both.
        """
        ours, theirs = here
        while ours < (end := line_end(plain, self._lf, ours)) <= position:
            ours, theirs = end, line_end(self.data, self._lf, theirs)
        return theirs + position - ours, (ours, theirs)

    def _down(self, position: int, lines: int) -> int:
        for _ in range(lines):
            position = line_end(self.data, self._lf, position)
        return position

    def _has_crlf(self, start: int, end: int) -> bool:
        """Tell if lines that take the place of these bytes should end in CRLF.

        Decided by the line end there or behind, or else before; where nothing is replaced the other way round.
        """
        unit = self.encoding.unit
        behind, before = find(self.data, self._lf, unit, start), rfind(self.data, self._lf, unit, 0, end)
        at = next((at for at in ((behind, before) if end > start else (before, behind)) if at != -1), 0)
        return at > 0 and self.data[at - unit : at] == self._crlf[:unit]


def _lines(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
