"""The name of a daemon's pipe on Windows: other programs compute it from the data directory, so must we.

It has SipHash-1-3 with zero keys of the path as Rust's standard library feeds it to its default hasher. Rust does not
promise that this stays as it is: to name the pipe (`ZEROCLAW_SOCKET`) is the only robust way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = (1 << 64) - 1
_DRIVE = re.compile(rb"(\\\\\?\\)?([A-Za-z]):")
_SHARE = re.compile(rb"\\\\([^\\/?.][^\\/]*)[\\/]([^\\/]+)")
#: What Rust calls the kinds of beginnings that a path may have.
_IS_VERBATIM_DRIVE, _IS_SHARE, _IS_DRIVE = 2, 4, 5


def pipe_name(data_dir: str) -> str:
    """Return the name of the pipe that belongs to a data directory."""
    beginning, rest = _beginning(data_dir.encode("utf-8", "surrogatepass"))
    number = path_hash(rest.replace(b"\\", b"/").split(b"/"), beginning)
    return rf"\\.\pipe\zeroclaw-{number:x}"


def path_hash(components: Iterable[bytes], beginning: bytes = b"") -> int:
    """Return what Rust's default hasher makes of a path: its beginning, such as a drive, and its components."""
    fed, word = [beginning], 0
    for component in components:
        if component in (b"", b"."):
            continue
        fed.append(component)
        word = _turned((word + len(component)) & _WORD, 62)
    return siphash13(b"".join(fed) + word.to_bytes(8, "little"))


def siphash13(data: bytes) -> int:
    """Return SipHash-1-3 of ``data`` with zero keys."""
    state = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    whole = len(data) & ~7
    last = data[whole:].ljust(7, b"\0") + bytes([len(data) & 0xFF])
    for piece in (*(data[at : at + 8] for at in range(0, whole, 8)), last):
        word = int.from_bytes(piece, "little")
        a, b, c, d = state
        a, b, c, d = _mixed(a, b, c, d ^ word)
        state = (a ^ word, b, c, d)
    a, b, c, d = state
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = _mixed(a, b, c, d)
    return a ^ b ^ c ^ d


def _mixed(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & _WORD
    b = _turned(b, 13) ^ a
    a = _turned(a, 32)
    c = (c + d) & _WORD
    d = _turned(d, 16) ^ c
    a = (a + d) & _WORD
    d = _turned(d, 21) ^ a
    c = (c + b) & _WORD
    b = _turned(b, 17) ^ c
    return a, b, _turned(c, 32), d


def _turned(word: int, left: int) -> int:
    return (word << left | word >> (64 - left)) & _WORD


def _beginning(path: bytes) -> tuple[bytes, bytes]:
    """Return what is fed for the drive or the share that a path begins with, and the rest of the path."""
    if match := _DRIVE.match(path):
        kind = _IS_VERBATIM_DRIVE if match[1] else _IS_DRIVE
        return kind.to_bytes(8, "little") + match[2].upper(), path[match.end() :]
    if match := _SHARE.match(path):
        names = (len(name).to_bytes(8, "little") + name for name in match.groups())
        return _IS_SHARE.to_bytes(8, "little") + b"".join(names), path[match.end() :]
    return b"", path
