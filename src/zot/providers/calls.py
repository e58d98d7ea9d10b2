"""The tool calls of a reply: an id that somebody can answer to, and arguments that are an object or said to be none."""

from __future__ import annotations

from typing import Any

import msgspec

from zot.messages import CallBlock

#: Deeper arguments are no use to any tool, and whoever encodes them again would run out of stack.
_MAX_NESTING = 100


class CallIds:
    """The ids of one reply's calls, no two of them the same."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, given: str) -> str:
        """Return the id under which a call is known: as the service gave it, or a made-up one if that cannot be."""
        call_id, number = given, len(self._taken)
        while not call_id or call_id in self._taken:
            number += 1
            call_id = f"call_{number}"
        self._taken.add(call_id)
        return call_id


def finished_call(call_id: str, name: str, text: str, given: dict[str, Any] | None = None) -> CallBlock:
    """Return the call whose arguments were written as ``text``; blank means those ``given`` with it, or none at all.

    What is not a JSON object is kept as it was written and never run as something else. One object in an array is
    taken for the object: some models write it so.
    """
    args = _object(text) if text.strip() else given or {}
    if args is None or _is_too_deep(args):
        return CallBlock(call_id, name, None, malformed=text)
    return CallBlock(call_id, name, args)


def is_object(text: str) -> bool:
    """True if ``text`` is a JSON object as a whole."""
    return text.lstrip()[:1] == "{" and _object(text) is not None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else None


def _is_too_deep(args: dict[str, Any]) -> bool:
    """Look level by level, not by recursion: what this finds would break that."""
    level: list[Any] = [args]
    for _ in range(_MAX_NESTING):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True
