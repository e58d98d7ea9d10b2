"""Images and other binary files: recognised by content, measured, checked against limits."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

#: Services limit the base64 form, which is a third longer, to 5 MB.
MAX_IMAGE_BYTES = 3_750_000
#: Services refuse a longer side, and with it the whole conversation.
MAX_IMAGE_SIDE = 8000

_NAMES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WebP"}
#: JPEG markers without a length, such as restarts.
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD8)})
#: JPEG frame markers; three numbers in their range have other meanings.
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_SCAN_MARKER = 0xDA
_STARTS = (
    (b"\x7fELF", "ELF program or library"),
    (b"MZ", "Windows program or library"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program or library"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"\0asm", "WebAssembly module"),
    (b"%PDF-1.", "PDF document"),
    (b"%PDF-2.", "PDF document"),
    (b"PK\x03\x04", "zip archive, or a document in one"),
    (b"\x1f\x8b", "gzip archive"),
    (b"BZh", "bzip2 archive"),
    (b"\xfd7zXZ\0", "xz archive"),
    (b"\x28\xb5\x2f\xfd", "zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "7-zip archive"),
    (b"!<arch>\n", "ar archive"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"PACK\0\0\0", "git pack"),
    (b"BM", "BMP image"),
    (b"II*\0", "TIFF image"),
    (b"MM\0*", "TIFF image"),
    (b"\0\0\x01\0", "icon"),
    (b"OggS\0", "Ogg media"),
    (b"fLaC\0", "FLAC audio"),
    (b"fLaC\x80", "FLAC audio"),
    (b"ID3", "MP3 audio"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM video"),
    (b"wOF2\0\1\0\0", "font"),
    (b"wOF2OTTO", "font"),
    (b"\0\x01\0\0\0", "font"),
)
_INNER = (
    (257, b"ustar", "tar archive"),
    (4, b"ftyp", "MP4 media, or a HEIF or AVIF image"),
    (8, b"WAVEfmt ", "WAV audio"),
    (8, b"AVI LIST", "AVI video"),
)
#: Signatures of at least this length are binary for certain. Shorter ones could begin a text.
_CERTAIN_BYTES = 4


class Size(NamedTuple):
    width: int
    height: int


def image_type(start: bytes) -> str | None:
    """Return the MIME type of an image by its first bytes; None if models do not support it."""
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    # Text may begin with these letters, but every GIF contains a NUL at the end of its blocks.
    if start.startswith((b"GIF87a", b"GIF89a")) and b"\0" in start:
        return "image/gif"
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    return None


def image_name(mime_type: str) -> str:
    """Return the common name of a MIME type."""
    return _NAMES[mime_type]


def image_size(data: bytes, mime_type: str) -> Size | None:
    """Return the size in pixels from the header; None if that is damaged."""
    try:
        size = _SIZES[mime_type](data)
    except struct.error:  # the header is cut off
        return None
    return size if size and size.width and size.height else None


def _png(data: bytes) -> Size | None:
    return Size(*struct.unpack_from(">II", data, 16)) if data[12:16] == b"IHDR" else None


def _gif(data: bytes) -> Size:
    return Size(*struct.unpack_from("<HH", data, 6))


def _webp(data: bytes) -> Size | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return Size(width & 0x3FFF, height & 0x3FFF)
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return Size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8X":
            sides = struct.unpack_from("3s3s", data, 24)
            return Size(*(int.from_bytes(side, "little") + 1 for side in sides))
        case _:
            return None


def _jpeg(data: bytes) -> Size | None:
    for marker, position in _jpeg_segments(data):
        if marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return Size(width, height)
    return None


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker and the position of each segment. Raise struct.error at the end."""
    position = 2
    while True:
        fill, marker = struct.unpack_from(">BB", data, position)
        if fill != 0xFF:
            return
        if marker == 0xFF:
            position += 1
        elif marker in _BARE_MARKERS:
            position += 2
        else:
            yield marker, position
            (length,) = struct.unpack_from(">H", data, position + 2)
            position += 2 + length


_SIZES = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp}


def is_complete(data: bytes, mime_type: str) -> bool:
    """Return whether an image is complete: services refuse one that was cut off.

    Checks only the structure, and the checksums if there are any; does not decode pixels.
    """
    try:
        return _ENDS[mime_type](data)
    except (struct.error, IndexError):  # cut off
        return False


def _png_ends(data: bytes) -> bool:
    position, has_pixels = 8, False
    while True:
        length, kind = struct.unpack_from(">I4s", data, position)
        (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
        # As decoders do: a wrong checksum matters only in a critical chunk, whose name begins with a capital.
        if kind[:1].isupper() and crc32(data[position + 4 : position + 8 + length]) != checksum:
            return False
        if kind == b"IEND":
            return has_pixels
        has_pixels = has_pixels or kind == b"IDAT"
        position += 12 + length


def _jpeg_ends(data: bytes) -> bool:
    """Search the end marker after the first scan: it cannot occur in the scan's data."""
    scan = next((position for marker, position in _jpeg_segments(data) if marker == _SCAN_MARKER), None)
    return scan is not None and data.find(b"\xff\xd9", scan) != -1


def _gif_ends(data: bytes) -> bool:
    position, has_pixels = 13 + _colours(data[10]), False
    while (block := data[position]) != 0x3B:
        if block == 0x2C:
            position += 11 + _colours(data[position + 9])
            has_pixels = True
        elif block == 0x21:
            position += 2
        else:
            return False
        while size := data[position]:
            position += size + 1
        position += 1
    return has_pixels


def _colours(flags: int) -> int:
    """Return the length of the colour table described by the flags of a GIF or of an image in it."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp_ends(data: bytes) -> bool:
    length: int = struct.unpack_from("<I", data, 4)[0]
    return len(data) >= length + 8


_ENDS = {"image/png": _png_ends, "image/jpeg": _jpeg_ends, "image/gif": _gif_ends, "image/webp": _webp_ends}


def kind_of(start: bytes) -> str | None:
    """Return the kind of a binary file by its first bytes; None if unknown."""
    for magic, kind in _STARTS:
        if start.startswith(magic):
            return kind
    for offset, magic, kind in _INNER:
        if start[offset : offset + len(magic)] == magic:
            return kind
    return None


def is_surely_binary(start: bytes) -> bool:
    """Return whether a file is certainly binary by its first bytes, even if the rest looks like text."""
    return any(len(magic) >= _CERTAIN_BYTES and start.startswith(magic) for magic, _ in _STARTS)
