"""Reading a vendor's JSON: strict where we rely on it, forgiving where vendors differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from zot.errors import StreamBroken
from zot.learned import learned
from zot.surrogates import without_half_escapes

T = TypeVar("T")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Tags(msgspec.Struct):
    """The kinds an event claims to be: its own, and that of the delta inside."""

    type: str = ""
    delta: Any = None


class EventReader(Generic[T]):
    """Reads the events of one API. ``kinds`` are the types it has classes for; events of others are no error."""

    def __init__(self, decoder: msgspec.json.Decoder[T], kinds: Iterable[str]) -> None:
        self.decode = decoder.decode
        self._kinds = frozenset(kinds)

    def decode_with_care(self, payload: bytes) -> T | None:
        """Decode what `decode` refused; None if it is of a kind we do not know.

        Half an emoji (a lone surrogate escape) becomes U+FFFD instead of costing the whole reply. Raise
        StreamBroken if it is not JSON, or not what its own type promises.
        """
        clean = without_half_escapes(payload.decode("utf-8", "replace").encode())
        try:
            return self.decode(clean)
        except _UNREADABLE as problem:
            if self._is_unknown(clean):
                return None
            raise StreamBroken(f"the service sent an event that cannot be read: {problem}") from problem

    def _is_unknown(self, payload: bytes) -> bool:
        try:
            tags = msgspec.json.decode(payload, type=learned(_Tags))
        except _UNREADABLE:
            return False
        inner = tags.delta.get("type") if isinstance(tags.delta, dict) else None
        return any(kind is not None and kind not in self._kinds for kind in (tags.type, inner))
