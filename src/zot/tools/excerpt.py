"""What of a text a model is shown: the beginning and the end, if it does not fit."""

from __future__ import annotations

from zot.tools.specs import MAX_BYTES, MAX_LINES
from zot.tools.text_encoding import UTF_8

_CONTINUATION = bytes(range(0x80, 0xC0))


class Excerpt:
    """The beginning and the end of a byte stream, within the budget. Does no I/O; its memory is bounded."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> None:
        self._half_bytes = max_bytes // 2
        self._half_lines = max_lines // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._bytes = 0
        self._lines = 0

    @property
    def is_complete(self) -> bool:
        """True while everything so far fits into the budget."""
        return not self.overflows_with(b"")

    def overflows_with(self, data: bytes) -> bool:
        """Tell if something will have been left out once ``data`` has been taken."""
        lines = self._lines + data.count(b"\n")
        return self._bytes + len(data) > 2 * self._half_bytes or lines > 2 * self._half_lines

    def whole(self) -> bytes:
        """Return the stream as it came; only while it is complete."""
        return bytes(self._head + self._tail)

    def feed(self, data: bytes) -> None:
        """Take the next part of the stream."""
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        room = self._half_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Forgetting only now and then keeps the cost linear when data comes byte by byte.
        if len(self._tail) > 4 * self._half_bytes:
            del self._tail[: -self._half_bytes]

    def skip(self, size: int, lines: int) -> None:
        """Only count a part, of which it is known that it will be left out: far from both ends of the stream."""
        self._bytes += size
        self._lines += lines

    def text(self, whereabouts: str | None = None) -> str:
        """Return what was kept, invalid UTF-8 replaced, with a note where something was left out, and where it is."""
        if self._bytes > 2 * self._half_bytes:
            head, tail = bytes(self._head), bytes(self._tail[-self._half_bytes :])
        else:
            head = tail = self.whole()
            if self.is_complete:
                return head.decode(errors="replace")
        head, tail = _first_lines(head, self._half_lines), _last_lines(tail, self._half_lines)
        left_bytes = self._bytes - len(head) - len(tail)
        left_lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        gap = "" if head.endswith(b"\n") else "\n"
        place = "" if whereabouts is None else f"; {whereabouts}"
        note = f"{gap}[... {left_bytes} bytes, {left_lines} lines left out{place} ...]\n"
        return UTF_8.decode_start(head) + note + tail.decode(errors="replace")


def end_of_line(data: bytes, count: int) -> int:
    """Return the position behind the ``count``-th line end in ``data``, -1 if there are fewer."""
    position = 0
    for _ in range(count):
        position = data.find(b"\n", position) + 1
        if position == 0:
            return -1
    return position


def _first_lines(data: bytes, count: int) -> bytes:
    end = end_of_line(data, count)
    if end == -1:
        end = data.rfind(b"\n") + 1
        # Whole lines read best, but a line that is itself too long would take everything with it.
        if end <= len(data) // 2:
            return data
    return data[:end]


def _last_lines(data: bytes, count: int) -> bytes:
    start = len(data)
    for _ in range(count + 1):
        start = data.rfind(b"\n", 0, start)
        if start == -1:
            break
    if start == -1:
        start = data.find(b"\n")
        if not -1 < start < len(data) // 2:
            return data.lstrip(_CONTINUATION)
    return data[start + 1 :]
