"""The stream of Anthropic Messages: bytes in, events and the reply out. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast, get_args

import msgspec

from zot.errors import ContentRefused, StreamBroken
from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import Counters, Stop, TextBlock, ThinkingBlock, TranscriptBlock
from zot.providers.base import Reply, StreamEvent
from zot.providers.calls import CallIds, finished_call
from zot.providers.decoding_part import StreamDecoder
from zot.providers.payload import EventReader

_STOPS: Mapping[str, Stop] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "pause_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Head(msgspec.Struct, gc=False):
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Part(msgspec.Struct, gc=False):
    """A content block as it begins; which fields it has depends on its type."""

    type: str
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    input: dict[str, Any] | None = None


class _Text(msgspec.Struct, tag="text_delta", gc=False):
    text: str


class _Json(msgspec.Struct, tag="input_json_delta", gc=False):
    partial_json: str


class _Thought(msgspec.Struct, tag="thinking_delta", gc=False):
    thinking: str


class _Signature(msgspec.Struct, tag="signature_delta", gc=False):
    signature: str


class _Citation(msgspec.Struct, tag="citations_delta", gc=False):
    pass


class _MessageStart(msgspec.Struct, tag="message_start", gc=False):
    message: _Head


class _BlockStart(msgspec.Struct, tag="content_block_start", gc=False):
    index: int
    content_block: _Part


class _BlockDelta(msgspec.Struct, tag="content_block_delta", gc=False):
    index: int
    delta: _Text | _Json | _Thought | _Signature | _Citation


class _BlockStop(msgspec.Struct, tag="content_block_stop", gc=False):
    index: int


class _Ending(msgspec.Struct, gc=False):
    stop_reason: str | None = None


class _MessageDelta(msgspec.Struct, tag="message_delta", gc=False):
    delta: _Ending
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _MessageStop(msgspec.Struct, tag="message_stop", gc=False):
    pass


class _Ping(msgspec.Struct, tag="ping", gc=False):
    pass


class _Fault(msgspec.Struct, gc=False):
    type: str = "api_error"
    message: str = ""


class _ErrorEvent(msgspec.Struct, tag="error", gc=False):
    error: _Fault


_Frame: TypeAlias = (
    _MessageStart | _BlockStart | _BlockDelta | _BlockStop | _MessageDelta | _MessageStop | _Ping | _ErrorEvent
)
_reader: EventReader[_Frame] = EventReader(
    msgspec.json.Decoder(_Frame),
    kinds=(
        cast(str, kind.__struct_config__.tag)
        for kind in (*get_args(_Frame), _Text, _Json, _Thought, _Signature, _Citation)
    ),
)


class _Open:
    """A content block that is being received."""

    __slots__ = ("closed", "part", "pieces", "signature")

    def __init__(self, part: _Part) -> None:
        self.part = part
        self.pieces: list[str] = [first] if (first := part.text or part.thinking) else []
        self.signature = part.signature
        self.closed = False


class AnthropicDecoder(StreamDecoder):
    """Turns the bytes of one streamed reply into events."""

    def __init__(self, ids: CallIds) -> None:
        super().__init__()
        self._open: dict[int, _Open] = {}
        self._call_ids = ids
        self._usage = _Usage()
        self._stop_reason: str | None = None

    def finish(self) -> list[StreamEvent]:
        """Raise StreamBroken if the reply is not whole, ContentRefused if the model would not give one."""
        if self._stop_reason is None:
            raise StreamBroken("the answer ended without its final event")
        if self._stop_reason == "refusal":
            raise ContentRefused("the model refused to answer this", code="refusal")
        return []

    def reply(self) -> Reply:
        """Return what has been received so far, without a half-written tool call."""
        content = tuple(block for _, part in sorted(self._open.items()) if (block := _finished(part)) is not None)
        usage = self._usage
        counters = Counters(
            usage.input_tokens or 0,
            usage.output_tokens or 0,
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
            0.0,
        )
        return Reply(content, counters, _STOPS.get(self._stop_reason or "", "end_turn"))

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            frame: _Frame | None
            try:
                frame = _reader.decode(payload)
            except (ValueError, RecursionError):
                frame = _reader.decode_with_care(payload)
            if type(frame) is _BlockDelta:
                self._take_delta(frame, events)
            elif type(frame) is _Ping:
                continue
            elif frame is not None:
                self._take(frame, events)
            self.progress += 1

    def _take_delta(self, frame: _BlockDelta, events: list[StreamEvent]) -> None:
        part = self._open.get(frame.index)
        if part is None:
            raise StreamBroken("a delta for a block that never began")
        delta = frame.delta
        if type(delta) is _Text:
            part.pieces.append(delta.text)
            events.append(TextDelta(delta.text))
        elif type(delta) is _Json:
            part.pieces.append(delta.partial_json)
            if delta.partial_json:
                events.append(ToolUseArgs(part.part.id, delta.partial_json))
        elif type(delta) is _Thought:
            part.pieces.append(delta.thinking)
            events.append(ThinkingDelta(delta.thinking))
        elif type(delta) is _Signature:
            part.signature += delta.signature

    def _take(self, frame: _Frame, events: list[StreamEvent]) -> None:
        match frame:
            case _MessageStart(message=message):
                self._count(message.usage)
            case _BlockStart(index=index, content_block=part):
                self._open[index] = _Open(part)
                if part.type == "tool_use":
                    part.id = self._call_ids.take(part.id)
                    events.append(ToolUseStart(part.id, part.name))
                elif part.text:
                    events.append(TextDelta(part.text))
            case _BlockStop(index=index):
                if (opened := self._open.get(index)) is not None:
                    opened.closed = True
                    if opened.part.type == "tool_use":
                        events.append(ToolUseEnd(opened.part.id))
            case _MessageDelta(delta=ending, usage=usage):
                self._count(usage)
                self._stop_reason = ending.stop_reason or self._stop_reason
            case _MessageStop():
                self.is_complete = True
            case _ErrorEvent(error=fault):
                from zot.providers.api_errors import in_stream  # Who asks for the first time waits for what is loaded.

                raise in_stream(fault.type, fault.message)
            case _:
                pass

    def _count(self, usage: _Usage) -> None:
        # Usage may be told twice and grows; the last number of each counter counts, once.
        for name in _Usage.__struct_fields__:
            if getattr(usage, name):
                setattr(self._usage, name, getattr(usage, name))


def _finished(opened: _Open) -> TranscriptBlock | None:
    """Return the block if it can stand in a transcript as it is."""
    text = "".join(opened.pieces)
    match opened.part.type:
        case "text":
            return TextBlock(text) if text else None
        case "thinking":
            return ThinkingBlock(text=text, signature=opened.signature) if text or opened.signature else None
        case "redacted_thinking":
            return ThinkingBlock(redacted=opened.part.data)
        case "tool_use" if opened.closed:
            return finished_call(opened.part.id, opened.part.name, text, opened.part.input)
        case _:
            return None
