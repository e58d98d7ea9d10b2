"""Decoding shared by all APIs: lenient JSON, tool-call ids and arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar
from zlib import crc32

import msgspec

from zot.encoding import UNREADABLE, explain, thread_safe_type
from zot.errors import StreamBroken
from zot.messages import CallBlock, Message
from zot.providers.base import CallIdCache
from zot.text import replace_surrogate_escapes

T = TypeVar("T")

#: Deeper arguments help no tool, and encoding them again would overflow the stack.
_MAX_NESTING = 100
_USUAL_ID = "[a-zA-Z0-9_-]{1,64}"
_NOT_IN_A_NAME = "[^a-zA-Z0-9_-]"
_MAX_NAME = 64


class _Tags(msgspec.Struct):
    """The types an event claims: its own, and that of its delta."""

    type: str = ""
    delta: Any = None


class EventReader(Generic[T]):
    """Decoder of one API's events. ``kinds`` are the known types; events of other types are ignored."""

    def __init__(self, decoder: msgspec.json.Decoder[T], kinds: Iterable[str]) -> None:
        self.decode = decoder.decode
        self._kinds = frozenset(kinds)

    def decode_with_care(self, payload: bytes) -> T | None:
        """Decode a payload that `decode` refused; None if its type is unknown.

        A lone surrogate escape (half an emoji) becomes U+FFFD instead of failing the reply. Raise StreamBroken if
        it is not JSON, or violates its own type.
        """
        clean = replace_surrogate_escapes(payload.decode("utf-8", "replace").encode())
        try:
            return self.decode(clean)
        except UNREADABLE as problem:
            if self._is_unknown(clean):
                return None
            raise StreamBroken(f"the service sent an event that cannot be read: {explain(problem)}") from problem

    def _is_unknown(self, payload: bytes) -> bool:
        try:
            tags = msgspec.json.decode(payload, type=thread_safe_type(_Tags))
        except UNREADABLE:
            return False
        inner = tags.delta.get("type") if isinstance(tags.delta, dict) else None
        return any(kind is not None and kind not in self._kinds for kind in (tags.type, inner))


class CallIds:
    """Assigns ids to a reply's calls, unique within the conversation.

    Some services restart their numbering with each reply, and every API refuses duplicate ids in a request.
    """

    def __init__(self, messages: Sequence[Message] = (), known: CallIdCache | None = None) -> None:
        """``known`` caches the ids of earlier requests' messages."""
        self._messages = messages
        self._known = known or CallIdCache()
        self._taken: set[str] | None = None

    def take(self, given: str) -> str:
        """Return the id for a call: the service's own, or a generated one if that is empty or taken."""
        if self._taken is None:  # Scanned lazily: most replies have no calls.
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
    """Return the call with arguments ``text``; if blank, with those ``given``, or none.

    Text that is not a JSON object is kept verbatim and never run. One object in an array counts as the object: some
    models write that.
    """
    args = _object(text) if text.strip() else given or {}
    if args is None or _is_too_deep(args):
        return CallBlock(call_id, name, None, malformed=text, signature=signature)
    return CallBlock(call_id, name, args, signature=signature)


def is_object(text: str) -> bool:
    """True if ``text`` is a JSON object as a whole."""
    return text.lstrip()[:1] == "{" and _object(text) is not None


def acceptable_id(call_id: str, pattern: str = _USUAL_ID) -> str:
    """Return an id that an API accepts; ids of other services are replaced by a short hash."""
    return call_id if re.fullmatch(pattern, call_id) else f"c{crc32(call_id.encode(errors='replace')):08x}"


def acceptable_name(name: str) -> str:
    """Return a tool name that every API accepts: a model may have called a nonexistent tool."""
    return re.sub(_NOT_IN_A_NAME, "_", name)[:_MAX_NAME] or "unknown"


def _object(text: str) -> dict[str, Any] | None:
    try:
        # A lone surrogate becomes U+FFFD instead of failing the call.
        value = msgspec.json.decode(replace_surrogate_escapes(text.encode(errors="replace")))
    except UNREADABLE:
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else None


def _is_too_deep(args: dict[str, Any]) -> bool:
    """Check level by level: recursion would fail on the input this detects."""
    level: list[Any] = [args]
    for _ in range(_MAX_NESTING):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True
