"""Tool arguments come from a model: checked once, here, before a tool sees them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from zot.errors import ToolFailed
from zot.learned import learned

T = TypeVar("T", bound=msgspec.Struct)


def decode_args(args: dict[str, Any], kind: type[T]) -> T:
    """Return ``args`` as a ``kind``. Raise ToolFailed that names the field and what was expected."""
    try:
        return msgspec.convert(args, learned(kind), strict=True)
    except msgspec.ValidationError as exc:
        raise ToolFailed(f"invalid arguments: {exc}") from exc


def to_utf8(text: str, field: str) -> bytes:
    """Return ``text`` as bytes. Raise ToolFailed if it holds half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise ToolFailed(f"invalid arguments: {field} has a lone surrogate at character {exc.start}") from exc
