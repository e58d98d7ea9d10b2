"""The sealed thoughts of OpenRouter: they arrive in pieces and must be given back whole, as they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_READABLE = ("text", "summary")
#: What grows from piece to piece; of everything else the last word counts.
_GROWING = (*_READABLE, "data")


class _Whole:
    """One thought while it is put together."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._growing: dict[str, list[str]] = {}

    def is_continued_by(self, piece: dict[str, Any]) -> bool:
        """Whether a piece is more of it: the same kind, the same number, and no other id."""
        same = all(self._last.get(name) == piece.get(name) for name in ("type", "index"))
        return same and (piece.get("id") is None or self._last.get("id") in (None, piece["id"]))

    def take(self, piece: dict[str, Any]) -> None:
        for name, value in piece.items():
            if name in _GROWING and isinstance(value, str):
                self._growing.setdefault(name, []).append(value)
            elif value is not None or name not in self._last:
                self._last[name] = value

    def joined(self) -> dict[str, Any]:
        return {**self._last, **{name: "".join(texts) for name, texts in self._growing.items()}}


def thought_in(pieces: Iterable[dict[str, Any]]) -> str:
    """Return what can be read in some pieces."""
    return "".join(text for piece in pieces for name in _READABLE if isinstance(text := piece.get(name), str))


def sealed(pieces: Iterable[dict[str, Any]]) -> str:
    """Return all pieces of a reply, put together, as one text; "" if there are none."""
    thoughts: list[_Whole] = []
    for piece in pieces:
        thought = next((known for known in reversed(thoughts) if known.is_continued_by(piece)), None)
        if thought is None:
            thought = _Whole()
            thoughts.append(thought)
        thought.take(piece)
    return msgspec.json.encode([thought.joined() for thought in thoughts]).decode() if thoughts else ""


def unsealed(text: str) -> list[Any]:
    """Return what `sealed` made into a text; an empty list if it is somebody else's seal."""
    try:
        return msgspec.json.decode(text, type=list[Any])
    except msgspec.MsgspecError:
        return []
