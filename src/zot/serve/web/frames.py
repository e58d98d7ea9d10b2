"""Text frames of a WebSocket, many at a time. Does no I/O."""

from __future__ import annotations

#: A text that is complete; a length of so much and more does not fit into one byte.
_TEXT = b"\x81"
_MANY = 126


def text_frames(lines: bytes) -> bytes:
    """Return each line that is not blank as one frame of a server."""
    pieces: list[bytes] = []
    for line in lines.split(b"\n"):
        if line:
            pieces.append(_head(len(line)))
            pieces.append(line)
    return b"".join(pieces)


def _head(size: int) -> bytes:
    if size < _MANY:
        return _TEXT + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")
