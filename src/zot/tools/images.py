"""Images as a model can take them: known by their content, measured from their headers, within limits."""

from __future__ import annotations

import struct
from typing import NamedTuple

#: Services count the base64 form, which is a third longer, against a limit of 5 MB.
MAX_IMAGE_BYTES = 3_750_000
#: A side longer than this is refused by a service, and with it the whole conversation.
MAX_IMAGE_SIDE = 8000

_NAMES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WebP"}
#: JPEG markers without a length: restarts and the like.
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD8)})
#: JPEG frames of any kind; three numbers in their range mean something else.
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


class Size(NamedTuple):
    width: int
    height: int


def image_type(start: bytes) -> str | None:
    """Return the MIME type of an image that begins so; None if it is none that models understand."""
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    return None


def image_name(mime_type: str) -> str:
    """Return what people call that type."""
    return _NAMES[mime_type]


def image_size(data: bytes, mime_type: str) -> Size | None:
    """Return the size in pixels that the header says; None if it is damaged."""
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
    """Go from segment to segment to the first frame."""
    position = 2
    while True:
        fill, marker = struct.unpack_from(">BB", data, position)
        if fill != 0xFF:
            return None
        if marker == 0xFF:
            position += 1
        elif marker in _BARE_MARKERS:
            position += 2
        elif marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return Size(width, height)
        else:
            (length,) = struct.unpack_from(">H", data, position + 2)
            position += 2 + length


_SIZES = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp}
