"""JSON encoding of frames, and msgspec decoders that are safe to build from several threads."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from zot.text import replace_surrogates

#: Exceptions that decoding JSON can raise: not JSON or not of the type, not UTF-8, nested too deeply.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)

_encoder = msgspec.json.Encoder()

T = TypeVar("T")

_guard = RLock()
_known: set[Any] = set()


def encode(frame: Any) -> bytes:
    """Return one frame as its line of JSON, without the LF. A lone surrogate becomes U+FFFD."""
    try:
        return _encoder.encode(frame)
    except UnicodeEncodeError:
        return _encoder.encode(_without_surrogates(msgspec.to_builtins(frame)))


def encode_lines(frames: Sequence[Any]) -> bytes:
    """Return several frames as lines, each ending in LF."""
    try:
        return _encoder.encode_lines(frames)
    except UnicodeEncodeError:
        return b"".join(encode(frame) + b"\n" for frame in frames)


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


def thread_safe_type(kind: T) -> T:
    """Return ``kind`` after building its msgspec decoder under a lock, so any thread may decode it."""
    if kind not in _known:
        with _guard:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for ``kind``, built under a lock."""
    with _guard:
        return msgspec.json.Decoder(kind)
