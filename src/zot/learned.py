"""Types that are read, learned by one thread at a time.

msgspec learns a class when it is first read, and runs Python meanwhile: a second thread that reads the same class for
the first time finds it half learned, and the process crashes. So whoever reads a class says `learned`, or has a
`decoder` made here, unless that is done while its module is loaded and no other reads it.
"""

from __future__ import annotations

from _thread import RLock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_guard = RLock()
_known: set[Any] = set()


def learned(kind: T) -> T:
    """Return a type that can be read in any thread from here on."""
    if kind not in _known:
        with _guard:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return what reads a type, in any thread."""
    with _guard:
        return msgspec.json.Decoder(kind)
