"""Where a text stands in a file, by bytes, and which bytes its replacement changes. Linear in the file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from zot.tools.diff import Change, lines_in_common
from zot.tools.text_encoding import Encoding
from zot.tools.units import to_units

_BLOCK = 8192


class Match(NamedTuple):
    """The bytes of a file that are a text."""

    start: int
    end: int


class FileText:
    """The content of a file, and the encoding in which text is looked for in it and put into it."""

    def __init__(self, data: bytes, encoding: Encoding) -> None:
        self.data = data
        self.encoding = encoding
        self._lf = self._as_units("\n")
        self._crlf = self._as_units("\r\n")

    def line_number(self, position: int) -> int:
        """Return the number of the line that has ``position``."""
        return self.units.count(self._lf, 0, position // self.encoding.unit) + 1

    def matches(self, old: str) -> Iterator[Match]:
        """Find ``old`` from the beginning on, also where matches overlap. Raise UnicodeEncodeError.

        Unless ``old`` speaks of CR itself, its line ends stand for those the file has.
        """
        wanted, unit = self._as_units(old), self.encoding.unit
        plain = None if "\r" in old or "\n" not in old else self._plain
        within = self.units if plain is None else plain.text
        at = within.find(wanted)
        while at != -1:
            start, end = at, at + len(wanted)
            if plain is not None:
                start, end = plain.to_file(start), plain.to_file(end)
            yield Match(start * unit, end * unit)
            at = within.find(wanted, at + 1)

    def change(self, match: Match, old: str, new: str) -> Change:
        """Return how ``old`` at ``match`` becomes ``new``. Raise UnicodeEncodeError.

        Lines that both have at their beginning or end stay as they are in the file, with the line ends they have
        there. New lines end as those do that they replace, or else as their neighbours do.
        """
        if "\r" in old or "\r" in new:
            return Change(*match, self.encoding.encode(new))
        head, tail = lines_in_common(old, new)
        start = self._moved(match.start, len(self._as_units(old[:head])))
        end = self._moved(match.end, -len(self._as_units(old[len(old) - tail :])))
        text = new[head : len(new) - tail]
        if self._has_crlf(start, end):
            text = text.replace("\n", "\r\n")
        return Change(start, end, self.encoding.encode(text))

    @cached_property
    def units(self) -> str:
        """The content, see `to_units`."""
        return to_units(self.data, self.encoding)

    @cached_property
    def _plain(self) -> _Plain | None:
        return _Plain(self.units, self._crlf, self._lf) if self._crlf in self.units else None

    def _as_units(self, text: str) -> str:
        return to_units(self.encoding.encode(text), self.encoding)

    def _moved(self, position: int, count: int) -> int:
        """Return the position that is ``count`` units further, where CRLF counts as one."""
        unit = self.encoding.unit
        if not count or self._plain is None:
            return position + count * unit
        return self._plain.to_file(self._plain.from_file(position // unit) + count) * unit

    def _has_crlf(self, start: int, end: int) -> bool:
        """Tell if lines that take the place of these bytes should end in CRLF.

        Decided by the line end there or behind, or else before; where nothing is replaced the other way round.
        """
        unit = self.encoding.unit
        behind = self.units.find(self._lf, start // unit)
        before = self.units.rfind(self._lf, 0, end // unit)
        at = next((at for at in ((behind, before) if end > start else (before, behind)) if at != -1), 0)
        return at > 0 and self.units[at - 1] == self._crlf[0]


class _Plain:
    """A text with LF for every CRLF, and which position in it is which in the file.

    A pattern that takes either line end would not be linear. The number of CRLFs up to the beginning of each block is
    known, so that only one block is counted to find a position.
    """

    def __init__(self, units: str, crlf: str, lf: str) -> None:
        self.text = units.replace(crlf, lf)
        self._units = units
        self._crlf = crlf
        self._starts = [0]
        for at in range(0, len(units), _BLOCK):
            self._starts.append(self._starts[-1] + _BLOCK - self._dropped(at, at + _BLOCK))

    def from_file(self, position: int) -> int:
        """Return where a position of the file is in the plain text."""
        block = position // _BLOCK
        return self._starts[block] + position % _BLOCK - self._dropped(block * _BLOCK, position)

    def to_file(self, position: int) -> int:
        """Return where a position of the plain text is in the file: at a line end, before its CR."""
        block = max(bisect_left(self._starts, position) - 1, 0)
        low, high = block * _BLOCK, min((block + 1) * _BLOCK, len(self._units))
        while low < high:
            middle = (low + high) // 2
            if self.from_file(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low

    def _dropped(self, start: int, end: int) -> int:
        """Return how many of these units are missing in the plain text: the CRs before an LF."""
        return self._units.count(self._crlf, start, end + 1)
