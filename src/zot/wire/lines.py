"""Newline-delimited framing shared by all protocols, and checks on JSON frames. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from zot.encoding import UNREADABLE, explain, standard_json
from zot.errors import ProtocolError

#: Longest input line in bytes, unless a protocol or a flag sets another limit.
MAX_LINE_BYTES: Final = 16 * 1024 * 1024

#: The letters of "type" as JSON escapes: a key spelled with escapes contains at least one of them.
_ESCAPED_LETTERS: Final = (b"\\u0074", b"\\u0079", b"\\u0070", b"\\u0065")
#: Longest frame with repeated or escaped keys that is checked key by key, which is slow.
_MAX_KEY_CHECK_BYTES: Final = 128 * 1024


class TooLong:
    """Placeholder for a line that exceeded the limit and was discarded."""

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

    One CR before the LF is dropped, blank lines are skipped. A line over the limit is reported once, as `TooLong`, as
    soon as it exceeds the limit; the rest of it is discarded as it arrives.
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
        """End the input: return a last line that had no LF."""
        lines: list[bytes | TooLong] = []
        self._complete(lines)
        return lines

    def unread(self) -> bytes:
        """Return the bytes of the unfinished line, for another reader that takes over the stream."""
        return b"".join(self._pieces)

    def _extend(self, piece: bytes, lines: list[bytes | TooLong]) -> None:
        if self._discarding or not piece:
            return
        self._size += len(piece)
        # One byte of grace: it may be the CR, which does not count.
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


def has_more_values(line: bytes, limit: int, *, piece_bytes: int = 64 * 1024) -> bool:
    """True if the JSON in ``line`` has more than ``limit`` values and keys, estimated from its punctuation.

    Decoding takes time proportional to their number and blocks the event loop; counting punctuation is cheap.
    """
    if _punctuation(line) <= limit:
        return False  # Punctuation inside strings counts too, so this is an upper bound.
    found, in_text = 0, False
    for piece in _pieces(line, piece_bytes):
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found += _punctuation(b"".join(parts[1 if in_text else 0 :: 2]))
        if found > limit:
            return True
        in_text ^= len(parts) % 2 == 0
    return False


def _punctuation(text: bytes) -> int:
    return text.count(b",") + text.count(b"{") + text.count(b"[")


def _pieces(line: bytes, size: int) -> Iterator[bytes]:
    """Yield ``line`` in pieces, none of which ends within an escape."""
    start = 0
    while start < len(line):
        end = start + size
        while line[end - 1 : end] == b"\\":
            end += 1
        yield line[start:end]
        start = end


def may_repeat_type(line: bytes) -> bool:
    """True if the key "type" may occur twice in the line: a quick test, which `refuse_repeated_type` makes exact."""
    return line.count(b'"type"') > 1 or any(escape in line for escape in _ESCAPED_LETTERS)


def refuse_repeated_type(line: bytes, *, noun: str) -> None:
    """Raise ProtocolError if the frame's top level has two "type" keys. ``noun`` names the frame in the message."""
    if _has_one_type(line):
        return
    if len(line) > _MAX_KEY_CHECK_BYTES:
        raise ProtocolError(f"not a {noun}: the frame repeats or hides its keys")

    def keys(pairs: list[tuple[str, Any]]) -> list[str]:
        return [key for key, _ in pairs]

    try:
        names: list[str] = standard_json().loads(
            line, object_pairs_hook=keys, parse_int=str, parse_float=str, strict=False
        )
    except (ValueError, RecursionError) as problem:  # json may be stricter than the typed decode was.
        raise ProtocolError(not_an_object(line, problem, noun=noun)) from None
    if names.count("type") > 1:
        raise ProtocolError(f"not a {noun}: the frame has more than one type")


def _has_one_type(line: bytes) -> bool:
    """True if every further "type" is inside the frame's values; False if the frame cannot be decoded."""
    # Lone surrogates would fail the decode, and their values do not matter here.
    line = line.replace(b"\\ud", b"\\u0").replace(b"\\uD", b"\\u0")
    try:
        values = [bytes(value) for value in msgspec.json.decode(line, type=dict[str, msgspec.Raw]).values()]
    except UNREADABLE:
        return False

    def outside(word: bytes) -> int:
        return line.count(word) - sum(value.count(word) for value in values)

    return outside(b'"type"') <= 1 and not any(escape in line and outside(escape) for escape in _ESCAPED_LETTERS)


def not_an_object(line: bytes, problem: Exception, *, noun: str) -> str:
    """Return the error message for a line that is no JSON object."""
    if line.startswith(b"\xef\xbb\xbf"):
        return "not a JSON object: the line begins with a byte order mark"
    if isinstance(problem, RecursionError):
        return f"not a {noun}: the JSON is nested too deeply"
    if isinstance(problem, UnicodeDecodeError):
        return f"not a {noun}: invalid UTF-8 at byte {problem.start}"
    return f"not a JSON object: {explain(problem)}"
