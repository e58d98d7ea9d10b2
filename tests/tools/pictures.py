"""Images, and their headers alone, as small as they can be."""

from __future__ import annotations

import struct
import zlib

KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp")


def image(mime_type: str, width: int, height: int) -> bytes:
    """Return the first bytes of an image of this type and size."""
    match mime_type:
        case "image/png":
            return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)
        case "image/jpeg":
            return jpeg(width, height)
        case "image/gif":
            return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0)
        case _:
            return webp_lossy(width, height)


def whole(mime_type: str, width: int, height: int) -> bytes:
    """An image that has its end."""
    start = image(mime_type, width, height)
    match mime_type:
        case "image/png":
            pixels = png_chunk(b"IDAT", b"x")
            return start + struct.pack(">I", zlib.crc32(start[12:])) + pixels + png_chunk(b"IEND", b"")
        case "image/jpeg":
            return start + bytes(9) + b"\xff\xda\0\x02" + b"\x12\xff\0\x34" + b"\xff\xd9"
        case "image/gif":
            return start + b"!\xf9\x04\0\0\0\0\0" + b"," + bytes(9) + b"\x02\x02\x4c\x01\0" + b";"
        case _:
            return webp(b"VP8 ", start[20:] + b"pixels")


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(width: int, height: int, *, between: bytes = b"", frame: int = 0xC0) -> bytes:
    """A JPEG file with ``between`` its start and its frame."""
    return b"\xff\xd8" + between + struct.pack(">BBHBHHB", 0xFF, frame, 17, 8, height, width, 3)


def segment(marker: int, size: int) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, size + 2) + b"\xff\xc0" * (size // 2)


def webp(kind: bytes, payload: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(payload)) + payload
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def webp_lossy(width: int, height: int) -> bytes:
    # The two upper bits of each side are a scale, and no part of it.
    return webp(b"VP8 ", b"\x30\x01\0\x9d\x01\x2a" + struct.pack("<HH", width | 0x4000, height | 0x8000))


def webp_lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def webp_extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", b"\x10\0\0\0" + sides)
