"""What an extension wrote, fit to be quoted in its log."""

from __future__ import annotations

from typing import Final

from zot.text import printable

_CLIP: Final = 200
#: More of a line is never quoted.
QUOTED_BYTES: Final = 4 * _CLIP


def with_line(reason: str, line: bytes) -> str:
    """Return a reason with the line that it is about, if there is one."""
    return f"{reason}: {clipped(line[:QUOTED_BYTES].decode('utf-8', 'replace'))}" if line else reason


def clipped(text: str) -> str:
    """Return the beginning of what others wrote."""
    shown = printable(text[: _CLIP + 1])
    return shown if len(shown) <= _CLIP else shown[:_CLIP] + "..."
