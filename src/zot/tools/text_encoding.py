"""Text encodings: detection, incremental decoding, search for line ends."""

from __future__ import annotations

import codecs

import msgspec

#: A file with a NUL character in this much of its beginning is UTF-16, UTF-32 or binary.
PROBE_BYTES = 8 * 1024

_HIGH_BYTES = bytes(range(0x80, 0x100))
#: Control characters that do not occur in text, unlike terminal escapes and form feeds.
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\b\t\n\v\f\r\x1b"})
_MOST_CONTROLS = 0.05
#: Minimum share of ASCII in text with NUL characters.
_LEAST_ASCII = 0.4
_Decoder = codecs.getincrementaldecoder("utf-8")


class Encoding(msgspec.Struct, frozen=True):
    """Text encoding. ``name`` is for people; characters take multiples of ``unit`` bytes."""

    name: str
    codec: str
    bom: bytes = b""
    unit: int = 1

    def encode(self, text: str) -> bytes:
        """Encode ``text`` without byte order mark. Raise UnicodeEncodeError."""
        return text.encode(self.codec)

    def decode(self, data: bytes) -> str:
        """Decode ``data``, with U+FFFD for invalid bytes."""
        return data.decode(self.codec, "replace")

    def decode_start(self, data: bytes) -> str:
        """Decode ``data``, dropping an incomplete last character."""
        return codecs.getincrementaldecoder(self.codec)("replace").decode(data)


UTF_8 = Encoding("UTF-8", "utf-8")
BROKEN_UTF_8 = Encoding("UTF-8 with invalid bytes", "utf-8")
LATIN_1 = Encoding("Latin-1", "latin-1")
WINDOWS_1252 = Encoding("Windows-1252", "cp1252")

#: Order matters: the mark of UTF-32 LE begins with that of UTF-16 LE.
_MARKED = (
    Encoding("UTF-8 with BOM", "utf-8", codecs.BOM_UTF8),
    Encoding("UTF-32 LE with BOM", "utf-32-le", codecs.BOM_UTF32_LE, 4),
    Encoding("UTF-32 BE with BOM", "utf-32-be", codecs.BOM_UTF32_BE, 4),
    Encoding("UTF-16 LE with BOM", "utf-16-le", codecs.BOM_UTF16_LE, 2),
    Encoding("UTF-16 BE with BOM", "utf-16-be", codecs.BOM_UTF16_BE, 2),
)
_UNMARKED_WIDE = (Encoding("UTF-16 LE", "utf-16-le", unit=2), Encoding("UTF-16 BE", "utf-16-be", unit=2))


def detect(data: bytes, *, is_whole: bool = True) -> Encoding | None:
    """Return the encoding of a file from its content, or from its first `PROBE_BYTES`; None if it is binary.

    Marks and NUL characters prove an encoding. Without them, bytes that are not UTF-8 are assumed to be in the 8-bit
    encoding of Western Europe, which is a guess.
    """
    for encoding in _MARKED:
        if data.startswith(encoding.bom):
            return encoding
    start = data[:PROBE_BYTES]
    if b"\0" in start:
        return _wide(start)
    found = detect_narrow(data, is_whole=is_whole)
    if found is not UTF_8 and _share(start, _CONTROLS) > _MOST_CONTROLS:
        return None
    return found


def detect_narrow(data: bytes, *, is_whole: bool = True) -> Encoding:
    """Return the encoding of text with ASCII characters of one byte each; a part of a file suffices.

    Text with a few invalid bytes is still UTF-8: other encodings are rarely valid UTF-8 by accident.
    """
    try:
        codecs.utf_8_decode(data, "strict", is_whole)
    except UnicodeDecodeError:
        valid = data.decode(errors="ignore").encode()
        if _count(valid, _HIGH_BYTES) > len(data) - len(valid):
            return BROKEN_UTF_8
        return _eight_bit(data)
    return UTF_8


def _eight_bit(data: bytes) -> Encoding:
    """Choose by the bytes 80 to 9F: printable in Windows-1252, hardly ever used in Latin-1."""
    if not _count(data, bytes(range(0x80, 0xA0))):
        return LATIN_1
    return LATIN_1 if _count(data, b"\x81\x8d\x8f\x90\x9d") else WINDOWS_1252


def _wide(start: bytes) -> Encoding | None:
    """Return the encoding of UTF-16 text without a mark; None if it is not such text.

    In the wrong byte order, ASCII characters become others; binary numbers become control characters.
    """
    if len(start) % 2:
        return None
    for encoding in _UNMARKED_WIDE:
        try:
            text = codecs.getincrementaldecoder(encoding.codec)().decode(start)
        except UnicodeDecodeError:
            continue
        ascii_only = text.encode("ascii", "ignore")
        if len(ascii_only) >= _LEAST_ASCII * len(text) and not _count(ascii_only, _CONTROLS):
            return encoding
    return None


def _share(data: bytes, which: bytes) -> float:
    return _count(data, which) / len(data) if data else 0.0


def _count(data: bytes, which: bytes) -> int:
    return len(data) - len(data.translate(None, which))


def find(data: bytes, wanted: bytes, unit: int, start: int = 0, end: int | None = None) -> int:
    """Return the first position of ``wanted`` at a multiple of ``unit`` within the limits; -1 if there is none."""
    at = data.find(wanted, start, end)
    while at != -1 and at % unit:
        at = data.find(wanted, at + 1, end)
    return at


def count(data: bytes, wanted: bytes, unit: int) -> int:
    """Return the number of occurrences of ``wanted``, found as by `find`, without overlap."""
    if unit == 1:
        return data.count(wanted)
    found, at = 0, find(data, wanted, unit)
    while at != -1:
        found += 1
        at = find(data, wanted, unit, at + len(wanted))
    return found


def count_ends(data: bytes, lf: bytes) -> int:
    return count(data, lf, len(lf))


class Utf8:
    """Incremental decoder. Replaces invalid bytes, after which ``is_valid`` is false."""

    def __init__(self) -> None:
        self.is_valid = True
        self._decoder = _Decoder("strict")

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """Return the text that ``data`` completes."""
        try:
            return self._decoder.decode(data, final)
        except UnicodeDecodeError:
            self.is_valid = False
            lenient = _Decoder("replace")
            lenient.setstate(self._decoder.getstate())
            self._decoder = lenient
            return lenient.decode(data, final)


def to_units(data: bytes, encoding: Encoding) -> str:
    """Return ``data`` as a string of one character per whole unit; `from_units` is the inverse."""
    match encoding.unit:
        case 1:
            return data.decode("latin-1")
        case 2:
            count, (low, high) = len(data) // 2, _order(encoding)
            wide = bytearray(4 * count)
            wide[0::4], wide[1::4] = data[low : 2 * count : 2], data[high : 2 * count : 2]
            # Outside of the surrogates, which are not valid characters.
            wide[2::4] = b"\1" * count
            return wide.decode("utf-32-le")
        case _:
            return data[: len(data) // 4 * 4].decode(encoding.codec, "replace")


def from_units(units: str, encoding: Encoding) -> bytes:
    """Return the bytes of `to_units`."""
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
