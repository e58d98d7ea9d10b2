"""Tool calls, received and sent back: an id that somebody can answer to, and arguments that are an object or said to
be none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from zot.messages import CallBlock, Message
from zot.providers.known_calls import KnownCalls
from zot.surrogates import without_half_escapes

#: Deeper arguments are no use to any tool, and whoever encodes them again would run out of stack.
_MAX_NESTING = 100
_USUAL_ID = "[a-zA-Z0-9_-]{1,64}"
_NOT_IN_A_NAME = "[^a-zA-Z0-9_-]"
_MAX_NAME = 64


class CallIds:
    """The ids of a reply's calls, no two of them the same, and none that the conversation before it has.

    Some services number the calls of each reply anew, and every API refuses a request in which two have one id.
    """

    def __init__(self, messages: Sequence[Message] = (), known: KnownCalls | None = None) -> None:
        """``known`` has the ids of the messages of earlier requests, so that they need not be looked for again."""
        self._messages = messages
        self._known = known or KnownCalls()
        self._taken: set[str] | None = None

    def take(self, given: str) -> str:
        """Return the id under which a call is known: as the service gave it, or a made-up one if that cannot be."""
        if self._taken is None:  # Most replies call nothing, and then nobody need look.
            self._taken = self._known.of(self._messages)
        call_id, number = given, len(self._taken)
        while not call_id or call_id in self._taken:
            number += 1
            call_id = f"call_{number}"
        self._taken.add(call_id)
        return call_id


def finished_call(
    call_id: str, name: str, text: str, given: dict[str, Any] | None = None, *, signature: str = ""
) -> CallBlock:
    """Return the call whose arguments were written as ``text``; blank means those ``given`` with it, or none at all.

    What is not a JSON object is kept as it was written and never run as something else. One object in an array is
    taken for the object: some models write it so.
    """
    args = _object(text) if text.strip() else given or {}
    if args is None or _is_too_deep(args):
        return CallBlock(call_id, name, None, malformed=text, signature=signature)
    return CallBlock(call_id, name, args, signature=signature)


def is_object(text: str) -> bool:
    """True if ``text`` is a JSON object as a whole."""
    return text.lstrip()[:1] == "{" and _object(text) is not None


def acceptable_id(call_id: str, pattern: str = _USUAL_ID) -> str:
    """Return an id as an API takes it back. Other services have ids that it refuses; what stands for one is short."""
    return call_id if re.fullmatch(pattern, call_id) else f"c{crc32(call_id.encode(errors='replace')):08x}"


def acceptable_name(name: str) -> str:
    """Return a tool's name as every API takes it: a model may have called what could not exist."""
    return re.sub(_NOT_IN_A_NAME, "_", name)[:_MAX_NAME] or "unknown"


def _object(text: str) -> dict[str, Any] | None:
    try:
        # Half an emoji becomes U+FFFD instead of costing the call.
        value = msgspec.json.decode(without_half_escapes(text.encode(errors="replace")))
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
