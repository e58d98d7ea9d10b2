"""Server-sent events of model APIs: splitting, lenient JSON, tool-call ids and arguments. Does no I/O."""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from zot.encoding import UNREADABLE, explain, thread_safe_type
from zot.errors import StreamBroken
from zot.messages import CallBlock, Message
from zot.providers.base import CallIdCache
from zot.text import replace_surrogate_escapes

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A  # `in` is several times faster for a number than for bytes.
_DATA = b"data: "
#: Longest event name that the fast path recognises.
_NAME_BYTES = 128
_MAX_EVENT_BYTES = 16 * 1024 * 1024


class SseParser:
    """Incremental parser of server-sent events. Lines may end in LF, CRLF or CR, split anywhere."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._after_cr = False
        #: The usual prefix of an event, up to its data.
        self._usual = _DATA

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that ``data`` completes; events without data are skipped."""
        if self._at_start:
            data = self._without_bom(data)
        if self._after_cr or b"\r" in data:
            data = self._with_lf_only(data)
        if not self._may_complete(data):
            self._keep(data)
            return []
        whole, _, rest = b"".join([*self._pieces, data]).rpartition(b"\n\n")
        self._pieces, self._size = [], 0
        self._keep(rest)
        return self._payloads(whole)

    def _payloads(self, whole: bytes) -> list[bytes]:
        """Return the data of whole events. Nearly always all have the same prefix: then one split suffices."""
        usual = self._usual
        if whole.startswith(usual):
            alike = whole[len(usual) :].split(b"\n\n" + usual)
            # Exactly the line ends around the data: none inside it, and no other fields in between.
            if whole.count(b"\n") == len(alike) * (usual.count(b"\n") + 2) - 2:
                return alike
        middle = whole.rfind(b"\n\n", 0, len(whole) // 2) + 1
        self._usual = usual = _beginning(whole[middle : middle + _NAME_BYTES].lstrip(b"\n"))
        first, *others = whole.split(b"\n\n" + usual)
        found = _payloads(first)
        for other in others:
            if _LF in other:
                found += _payloads(usual + other)
            else:
                found.append(other)
        return found

    def _may_complete(self, data: bytes) -> bool:
        return b"\n\n" in data or (data.startswith(b"\n") and bool(self._pieces) and self._pieces[-1].endswith(b"\n"))

    def _keep(self, data: bytes) -> None:
        if data:
            self._pieces.append(data)
            self._size += len(data)
            if self._size > _MAX_EVENT_BYTES:
                raise StreamBroken(f"one event of the stream is longer than {_MAX_EVENT_BYTES} bytes")

    def _without_bom(self, data: bytes) -> bytes:
        data = b"".join([*self._pieces, data])
        self._pieces, self._size = [], 0
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._keep(data)
            return b""
        self._at_start = False
        return data.removeprefix(_BOM)

    def _with_lf_only(self, data: bytes) -> bytes:
        # A CR ends its line at once; an LF right after it, even in the next bytes, belongs to the same line end.
        if self._after_cr and data:
            data, self._after_cr = data.removeprefix(b"\n"), False
        self._after_cr = self._after_cr or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class ResumableSse(SseParser):
    """Parser that also keeps where a stream can be taken up again: ``last_id``, after ``retry_ms`` if that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.last_id = ""
        self.retry_ms: int | None = None

    def _payloads(self, whole: bytes) -> list[bytes]:
        for line in whole.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.strip()
            if name == b"id" and b"\0" not in value and value.isascii():
                self.last_id = value.decode()
            elif name == b"retry" and value.isdigit() and len(value) < 10:
                self.retry_ms = int(value)
        return super()._payloads(whole)


def _beginning(block: bytes) -> bytes:
    """Return the prefix of an event, up to its data; its neighbours nearly always share it."""
    name, end, rest = block.partition(b"\n")
    return name + end + _DATA if name.startswith(b"event: ") and rest.startswith(_DATA) else _DATA


def _payloads(events: bytes) -> list[bytes]:
    """Return the data of whole events of any form."""
    return [payload for block in events.split(b"\n\n") if (payload := _payload(block)) is not None]


def _payload(block: bytes) -> bytes | None:
    """Return the data of one event; None if it has none."""
    found: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found) if found else None


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
