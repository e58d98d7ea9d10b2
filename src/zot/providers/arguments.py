"""What a model wrote to call a tool: an id that can be answered to, and arguments that can be run, or neither."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from zot.messages import CallBlock

#: Deeper arguments are no use to any tool, and whoever encodes them again would run out of stack.
_MAX_NESTING = 100


class CallIds:
    """The ids of the calls in one reply."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, given: str) -> str:
        """Return the id under which a call is known: as the service gave it, unless nobody could answer to that."""
        call_id = re.sub("[^a-zA-Z0-9_-]", "_", given)
        number = len(self._taken)
        while not call_id or call_id in self._taken:
            number += 1
            call_id = f"call_{number}"
        self._taken.add(call_id)
        return call_id


def call_block(call_id: str, name: str, text: str, *, given: dict[str, Any] | None = None) -> CallBlock:
    """Return the call whose arguments are ``text``, or ``given`` where they came as an object and there is no text.

    What is no JSON object, or too deep, is kept as it was written and has no arguments: it must never be run.
    """
    args: dict[str, Any] | None = given or {}
    if text.strip():
        try:
            args = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            args = None
    if args is None or _is_too_deep(args):
        return CallBlock(call_id, name, None, malformed=text)
    return CallBlock(call_id, name, args)


def _is_too_deep(args: dict[str, Any]) -> bool:
    """Look level by level, not by recursion: what this finds would break that."""
    level: list[Any] = [args]
    for _ in range(_MAX_NESTING):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True
