"""Some lines of a text: cut from a byte stream, within the budget, the rest only counted. Does no I/O."""

from __future__ import annotations

import codecs
from enum import Enum
from typing import NamedTuple

from zot.tools.lines import count_ends, find
from zot.tools.specs import MAX_BYTES
from zot.tools.text_encoding import LATIN_1, UTF_8, WINDOWS_1252, Encoding, detect_narrow

#: A longer line is cut, unless it is the only one wanted.
MAX_LINE_BYTES = 4096


class _Phase(Enum):
    SKIPPING = "before the window"
    TAKING = "in the window"
    COUNTING = "behind the window"


class _Line(NamedTuple):
    """The beginning of a line, and how long all of it is, with its line end."""

    kept: bytes
    length: int


class Window:
    """The lines ``first`` to ``first + limit - 1`` of a text, or as many of them as fit.

    Feed it the text from its beginning, in pieces that end between characters, then read its properties.
    """

    def __init__(self, encoding: Encoding, *, first: int, limit: int) -> None:
        self._encoding = encoding
        self._lf = encoding.encode("\n")
        self._first = first
        self._limit = limit
        self._most_of_a_line = MAX_BYTES if limit == 1 else MAX_LINE_BYTES
        self._phase = _Phase.SKIPPING if first > 1 else _Phase.TAKING
        self._lines: list[_Line] = []
        self._bytes = 0
        self._kept = bytearray()
        self._length = 0
        #: Lines that have ended, and if something stands behind the last end.
        self._ended = 0
        self._unended = False

    @property
    def is_full(self) -> bool:
        """True when what follows would only be counted."""
        return self._phase is _Phase.COUNTING

    @property
    def is_before(self) -> bool:
        """True as long as nothing of the window was there."""
        return self._phase is _Phase.SKIPPING

    @property
    def total(self) -> int:
        """How many lines have been fed. A last one without line end counts."""
        return self._ended + self._unended

    @property
    def last(self) -> int:
        """The number of the last line in the window."""
        return self._first - 1 + len(self._lines)

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        position = 0
        if self._phase is _Phase.SKIPPING:
            position = self._skip(data)
        if self._phase is _Phase.TAKING:
            position = self._take(data, position)
        if self._phase is _Phase.COUNTING:
            self._ended += count_ends(data[position:], self._lf)
        if data:
            self._unended = not data.endswith(self._lf)

    def finish(self) -> None:
        """Say that nothing follows."""
        if self._phase is _Phase.TAKING and self._length:
            self._end_line()

    def text(self) -> str:
        """Return the lines, each with a line end, and below them what is unusual about their bytes."""
        encoding = self._encoding
        if encoding.unit == 1 and not encoding.bom:
            encoding = detect_narrow(b"".join(_whole_characters(line) for line in self._lines))
        shown = [self._show(line, number, encoding) for number, line in enumerate(self._lines, self._first)]
        crlf = encoding.encode("\r\n")
        ends = {line.kept.endswith(crlf) for line in self._lines if line.kept.endswith(self._lf)}
        if ends == {True}:  # edit finds them by LF, too
            shown = [text[:-2] + "\n" if text.endswith("\r\n") else text for text in shown]
        return "".join(shown) + _remark(encoding, ends)

    def _skip(self, data: bytes) -> int:
        """Go to the window; return where in ``data`` it begins, or its end."""
        found = count_ends(data, self._lf)
        if self._ended + found < self._first - 1:
            self._ended += found
            return len(data)
        position = 0
        while self._ended < self._first - 1:
            position = find(data, self._lf, len(self._lf), position) + len(self._lf)
            self._ended += 1
        self._phase = _Phase.TAKING
        return position

    def _take(self, data: bytes, position: int) -> int:
        """Take lines until the window is full; return behind the last that was looked at."""
        while self._phase is _Phase.TAKING and position < len(data):
            at = find(data, self._lf, len(self._lf), position)
            end = len(data) if at == -1 else at + len(self._lf)
            self._kept += data[position : min(end, position + self._most_of_a_line - len(self._kept))]
            self._length += end - position
            position = end
            if at != -1:
                self._ended += 1
                self._end_line()
        return position

    def _end_line(self) -> None:
        # What is shown is UTF-8, in which a text may be longer than in the file.
        shown_bytes = len(self._encoding.decode(bytes(self._kept)).encode())
        if self._lines and self._bytes + shown_bytes > MAX_BYTES:
            self._phase = _Phase.COUNTING
            return
        self._lines.append(_Line(bytes(self._kept), self._length))
        self._bytes += shown_bytes
        self._kept.clear()
        self._length = 0
        if len(self._lines) == self._limit:
            self._phase = _Phase.COUNTING

    def _show(self, line: _Line, number: int, encoding: Encoding) -> str:
        kept = line.kept.removeprefix(encoding.bom) if number == 1 else line.kept
        if line.length == len(line.kept):
            text = encoding.decode(kept)
            return text if text.endswith("\n") else f"{text}\n"
        more = line.length - len(line.kept)
        hint = "" if self._limit == 1 else f"; offset={number} limit=1 shows {MAX_BYTES // 1024} KiB of it"
        return f"{encoding.decode_start(kept)}[... this line has {more} bytes more{hint}]\n"


def _whole_characters(line: _Line) -> bytes:
    """Return what was kept of a line without the character that the cut may have gone through."""
    if line.length == len(line.kept):
        return line.kept
    return line.kept[: codecs.utf_8_decode(line.kept, "replace", False)[1]]


def _remark(encoding: Encoding, ends: set[bool]) -> str:
    """Say what a text has that is not UTF-8 with LF; ``ends`` holds if a line end is CRLF, for each that is there."""
    parts = []
    if encoding in (LATIN_1, WINDOWS_1252):
        parts.append(f"not UTF-8, shown as {encoding.name}, which is a guess")
    elif encoding is not UTF_8:
        parts.append(encoding.name)
    if True in ends:
        parts.append("CRLF line ends" if ends == {True} else "CRLF and LF line ends")
    return f"[{', '.join(parts)}: edit keeps this, write does not]\n" if parts else ""
