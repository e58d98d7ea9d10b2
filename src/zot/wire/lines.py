"""Lines: how every byte stream of ours is cut into frames, and frames are read from lines. Does no I/O."""

from __future__ import annotations

from typing import Any, Final

#: Longest input line, in bytes, unless a dialect or a flag says otherwise.
MAX_LINE_BYTES: Final = 16 * 1024 * 1024


class TooLong:
    """Stands in the list of lines for one that was over the limit and has been discarded."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TooLong) and other.limit == self.limit

    def __hash__(self) -> int:
        return hash(self.limit)

    def __repr__(self) -> str:
        return f"TooLong({self.limit})"


class LineSplitter:
    """Cut a byte stream into lines ending in LF.

    One CR before the LF is dropped, blank lines are skipped. A line over the limit is reported once, as
    `TooLong`, as soon as that is known; the rest of it is thrown away as it comes.
    """

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit = max_line_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._discarding = False

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """Return the lines that ``data`` completes."""
        lines: list[bytes | TooLong] = []
        first, *rest = data.split(b"\n")
        self._extend(first, lines)
        for piece in rest:
            self._complete(lines)
            self._extend(piece, lines)
        return lines

    def finish(self) -> list[bytes | TooLong]:
        """The input has ended: return a last line that had no LF."""
        lines: list[bytes | TooLong] = []
        self._complete(lines)
        return lines

    def unread(self) -> bytes:
        """Return the bytes of the unfinished line, for whoever reads on in our place."""
        return b"".join(self._pieces)

    def _extend(self, piece: bytes, lines: list[bytes | TooLong]) -> None:
        if self._discarding or not piece:
            return
        self._size += len(piece)
        # One byte of grace: it may be the CR that does not count.
        if self._size > self._limit + 1:
            self._reject(lines)
        else:
            self._pieces.append(piece)

    def _complete(self, lines: list[bytes | TooLong]) -> None:
        line = b"".join(self._pieces)
        if line.endswith(b"\r"):
            line = line[:-1]
        if self._discarding:
            self._discarding = False
        elif len(line) > self._limit:
            lines.append(TooLong(self._limit))
        elif line and not line.isspace():
            lines.append(line)
        self._pieces, self._size = [], 0

    def _reject(self, lines: list[bytes | TooLong]) -> None:
        lines.append(TooLong(self._limit))
        self._pieces, self._size, self._discarding = [], 0, True


#: The letters of "type" as escapes, of which at least one is needed to hide the word.
_ESCAPED_LETTERS: Final = (b"\\u0074", b"\\u0079", b"\\u0070", b"\\u0065")


def may_repeat_type(line: bytes) -> bool:
    """True if the word stands twice in the line; spelled with escapes, it may."""
    return line.count(b'"type"') > 1 or any(escape in line for escape in _ESCAPED_LETTERS)


def repeats_type(line: bytes) -> bool:
    """True if the frame itself, not something inside it, has two types. Raise ValueError, RecursionError."""
    import json  # Rare: the word must stand twice in the line.

    def keys(pairs: list[tuple[str, Any]]) -> list[str]:
        return [key for key, _ in pairs]

    names: list[str] = json.loads(line, object_pairs_hook=keys, parse_int=str, parse_float=str, strict=False)
    return names.count("type") > 1
