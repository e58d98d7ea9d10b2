"""Bytes of any encoding as a string with one character for each unit of it.

In there the methods of strings find only what stands at a unit, as fast as they are: in the bytes of UTF-16 the halves
of two neighbours may look like a line end, millions of times. Such a string is not the text, only its shape.
"""

from __future__ import annotations

from zot.tools.text_encoding import Encoding


def to_units(data: bytes, encoding: Encoding) -> str:
    """Return the whole units of ``data``; `from_units` is the way back."""
    match encoding.unit:
        case 1:
            return data.decode("latin-1")
        case 2:
            count, (low, high) = len(data) // 2, _order(encoding)
            wide = bytearray(4 * count)
            wide[0::4], wide[1::4] = data[low : 2 * count : 2], data[high : 2 * count : 2]
            # Moved out of the range where half of a character is no character.
            wide[2::4] = b"\1" * count
            return wide.decode("utf-32-le")
        case _:
            return data[: len(data) // 4 * 4].decode(encoding.codec, "replace")


def from_units(units: str, encoding: Encoding) -> bytes:
    """Return the bytes that `to_units` was given."""
    match encoding.unit:
        case 1:
            return units.encode("latin-1")
        case 2:
            wide, (low, high) = units.encode("utf-32-le"), _order(encoding)
            data = bytearray(2 * len(units))
            data[low::2], data[high::2] = wide[0::4], wide[1::4]
            return bytes(data)
        case _:
            return units.encode(encoding.codec)


def _order(encoding: Encoding) -> tuple[int, int]:
    return (0, 1) if encoding.encode("\n")[0] else (1, 0)
