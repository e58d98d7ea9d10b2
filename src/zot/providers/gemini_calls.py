"""The calls of a conversation with Gemini: which tool each was of, and ids for those that came without one."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from zot.messages import CallBlock
from zot.surrogates import without_half_escapes

_OURS = re.compile(r"call_(\d{1,9})")
#: Deeper arguments are no use to any tool, and whoever encodes them again would run out of stack.
_MAX_NESTING = 100


class Calls:
    """Learns from the messages as they are encoded. The API names the tool with each result, which we do not."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._last = 0

    def add(self, call: CallBlock) -> None:
        """Remember a call of the conversation."""
        self._names[call.id] = call.name
        if (ours := _OURS.fullmatch(call.id)) is not None:
            self._last = max(self._last, int(ours[1]))

    def name(self, call_id: str) -> str:
        """Return the tool that was called; the id itself if nobody called it."""
        return self._names.get(call_id, call_id)

    def new_id(self, given: str) -> str:
        """Return an id that is new to the conversation: as the service gave it, unless nobody could answer to that."""
        call_id = re.sub("[^a-zA-Z0-9_-]", "_", given)
        while not call_id or call_id in self._names:
            self._last += 1
            call_id = f"call_{self._last}"
        return call_id


def finished_call(call_id: str, name: str, text: str, signature: str) -> CallBlock:
    """Return the call whose arguments came as the JSON ``text``; without any it is called with none.

    What is no object, or too deep, is kept as it was written and has no arguments: it must never be run.
    """
    args = _arguments(text) if text else {}
    return CallBlock(call_id, name, args, "" if args is not None else text, signature)


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        # Half an emoji becomes U+FFFD instead of costing the call.
        args = msgspec.json.decode(without_half_escapes(text.encode()), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None
    return None if _is_too_deep(args) else args


def _is_too_deep(args: dict[str, Any]) -> bool:
    """Look level by level, not by recursion: what this finds would break that."""
    level: list[Any] = [args]
    for _ in range(_MAX_NESTING):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True
