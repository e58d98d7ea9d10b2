"""Decoding shared by all APIs: server-sent events, lenient JSON, tool-call ids and arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar
from zlib import crc32

import msgspec

from zot.encoding import learned
from zot.errors import ProviderError, StreamBroken
from zot.messages import CallBlock, Message
from zot.providers.base import KnownCalls, StreamEvent
from zot.text import without_half_escapes

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A  # `in` is several times faster for a number than for bytes.
_DATA = b"data: "
#: Longer names are not looked for to be alike.
_NAME_BYTES = 128
_MAX_EVENT_BYTES = 16 * 1024 * 1024


class SseParser:
    """Cut a stream into events. Lines may end in LF, CRLF or CR, split anywhere."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._after_cr = False
        #: How most events begin, up to their data.
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
        """Return the data of whole events. Nearly always one is like the other: then all are cut at once."""
        usual = self._usual
        if whole.startswith(usual):
            alike = whole[len(usual) :].split(b"\n\n" + usual)
            # No more line ends than stand around the data: it has none in it, and nothing else is in between.
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
        # A CR ends its line at once; if an LF comes next, with these bytes or the following, it belongs to it.
        if self._after_cr and data:
            data, self._after_cr = data.removeprefix(b"\n"), False
        self._after_cr = self._after_cr or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _beginning(block: bytes) -> bytes:
    """Return how an event begins, up to its data: those around it nearly always do so, too."""
    name, end, rest = block.partition(b"\n")
    return name + end + _DATA if name.startswith(b"event: ") and rest.startswith(_DATA) else _DATA


def _payloads(events: bytes) -> list[bytes]:
    """Return the data of whole events, whatever they are like."""
    return [payload for block in events.split(b"\n\n") if (payload := _payload(block)) is not None]


def _payload(block: bytes) -> bytes | None:
    """Return the data of one event; None if it has none."""
    found: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found) if found else None


class StreamDecoder:
    """Turns the bytes of one streamed reply into events; which ones, each API says in `_feed`."""

    def __init__(self) -> None:
        self._sse = SseParser()
        self.progress = 0
        #: True when the service has sent the event after which nothing follows.
        self.is_complete = False
        self.failure: ProviderError | None = None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that ``data`` completes. Raise ProviderError for an error inside the stream."""
        events: list[StreamEvent] = []
        try:
            self._feed(data, events)
        except ProviderError as error:
            if not events:
                raise
            self.failure = error  # What was said before it must be heard first.
        return events

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that ``data`` completes."""
        raise NotImplementedError


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
