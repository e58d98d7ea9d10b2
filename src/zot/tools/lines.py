"""Where lines end, in text of any encoding.

``lf`` is LF in that encoding. Its length is the unit of the text, and only what stands at a multiple of the unit is
a line end: the halves of two neighbours may look like one.
"""

from __future__ import annotations


def find(data: bytes, wanted: bytes, unit: int, start: int = 0, end: int | None = None) -> int:
    """Return where ``wanted`` is first found at a multiple of ``unit``, wholly within the limits; -1 if nowhere."""
    at = data.find(wanted, start, end)
    while at != -1 and at % unit:
        at = data.find(wanted, at + 1, end)
    return at


def count(data: bytes, wanted: bytes, unit: int) -> int:
    """Return how often ``wanted`` is found, as `find` does, without overlap."""
    if unit == 1:
        return data.count(wanted)
    found, at = 0, find(data, wanted, unit)
    while at != -1:
        found += 1
        at = find(data, wanted, unit, at + len(wanted))
    return found


def count_ends(data: bytes, lf: bytes) -> int:
    """Return how many line ends there are."""
    return count(data, lf, len(lf))
