"""Anthropic Messages: request encoding and stream decoding."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast, get_args

import msgspec

from zot.config.vendors import ImageLimits
from zot.encoding import UNREADABLE, encode
from zot.errors import ContentRefused, StreamBroken
from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import (
    CallBlock,
    Counters,
    ImageBlock,
    Message,
    ResultBlock,
    Stop,
    TextBlock,
    ThinkingBlock,
    ToolSpec,
    TranscriptBlock,
)
from zot.providers.api_errors import stream_error
from zot.providers.base import (
    Decoder,
    HttpRequest,
    ModelReply,
    ModelRequest,
    Reasoning,
    StreamEvent,
    fits,
    omitted_image_text,
    own_blocks,
)
from zot.providers.sse import CallIds, EventReader, SseParser, acceptable_id, acceptable_name, finished_call

_STOPS: Mapping[str, Stop] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "pause_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}

_THINKING_TOKENS: Mapping[Reasoning, int] = {"low": 2048, "medium": 8192, "high": 16384}
_ROOM_BEYOND_THINKING = 4096
#: The API accepts at most 5 MB of base64, 100 images, and 32 MB in all.
_IMAGES = ImageLimits(3_750_000, 100, 20_000_000)
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_CACHE = {"cache_control": {"type": "ephemeral"}}


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Head(msgspec.Struct, gc=False):
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Part(msgspec.Struct, gc=False):
    """A content block at its start; its fields depend on its type."""

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
        cast("str", kind.__struct_config__.tag)
        for kind in (*get_args(_Frame), _Text, _Json, _Thought, _Signature, _Citation)
    ),
)


class _Open:
    """A content block in progress."""

    __slots__ = ("closed", "part", "pieces", "signature")

    def __init__(self, part: _Part) -> None:
        self.part = part
        self.pieces: list[str] = [first] if (first := part.text or part.thinking) else []
        self.signature = part.signature
        self.closed = False


class AnthropicDecoder(Decoder):
    """Decoder of one streamed reply."""

    def __init__(self, ids: CallIds) -> None:
        super().__init__()
        self._sse = SseParser()
        self._open: dict[int, _Open] = {}
        self._call_ids = ids
        self._usage = _Usage()
        self._stop_reason: str | None = None

    def finish(self) -> list[StreamEvent]:
        """Raise StreamBroken if the reply is incomplete, ContentRefused if the model refused."""
        if self._stop_reason is None:
            raise StreamBroken("the answer ended without its final event")
        if self._stop_reason == "refusal":
            raise ContentRefused("the model refused to answer this", code="refusal")
        return []

    def reply(self) -> ModelReply:
        """Return the reply so far, without incomplete tool calls."""
        content = tuple(block for _, part in sorted(self._open.items()) if (block := _finished(part)) is not None)
        usage = self._usage
        counters = Counters(
            usage.input_tokens or 0,
            usage.output_tokens or 0,
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
            0.0,
        )
        return ModelReply(content, counters, _STOPS.get(self._stop_reason or "", "end_turn"))

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            frame: _Frame | None
            try:
                frame = _reader.decode(payload)
            except UNREADABLE:
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
            raise StreamBroken("a delta for a block that was never started")
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
                raise stream_error(fault.type, fault.message)
            case _:
                pass

    def _count(self, usage: _Usage) -> None:
        # Usage may be reported twice and grows; the last value of each counter wins.
        for name in _Usage.__struct_fields__:
            if getattr(usage, name):
                setattr(self._usage, name, getattr(usage, name))


def _finished(opened: _Open) -> TranscriptBlock | None:
    """Return the block if it is valid in a transcript."""
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


class AnthropicMessages:
    """The Messages API, at Anthropic's address or a compatible one."""

    def __init__(self, *, base_url: str, origin: str) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/messages"
        self._origin = origin
        self._appended = partial(_appended, origin)

    def request(self, request: ModelRequest, key: str) -> HttpRequest:
        """Return the HTTP request for one streamed reply."""
        return HttpRequest(
            url=self._url,
            headers={
                "x-api-key": key,
                "anthropic-version": "2023-06-01",
                "content-type": "application/json",
                "accept": "text/event-stream",
            },
            body=self._body(request),
        )

    def decoder(self, request: ModelRequest) -> Decoder:
        """Return a decoder for the reply to a request."""
        return AnthropicDecoder(CallIds(request.messages, request.encoded.calls))

    def _body(self, request: ModelRequest) -> bytes:
        """Return the request body, made of cached and newly encoded parts."""
        head: dict[str, Any] = {"model": request.model, "max_tokens": request.max_tokens, "stream": True}
        budget = _THINKING_TOKENS.get(request.reasoning)
        if budget is not None and _may_think(request.messages, self._origin):
            head["thinking"] = {"type": "enabled", "budget_tokens": budget}
            head["max_tokens"] = max(request.max_tokens, budget + _ROOM_BEYOND_THINKING)
        if request.system:
            head["system"] = [{"type": "text", "text": request.system, **_CACHE}]
        if request.tools:
            head["tools"] = list(_tools(request.tools))
        # Copies the conversation only once: a long one is a megabyte.
        return b"".join([encode(head)[:-1], b',"messages":[', *self._messages(request), b"]}"])

    def _messages(self, request: ModelRequest) -> Iterator[bytes | bytearray]:
        """Yield the encoded messages: roles alternate, none is empty, the end is marked for caching."""
        messages = request.encoded.images.of(request.messages, _IMAGES)
        marked, content = _marked(messages)
        text, role = request.encoded.text(messages[:marked], self._appended)
        yield text
        for index, message in enumerate(messages[marked:]):
            piece, role = self._appended(message, role) if index else _joined(message, content, role)
            yield piece
        if role:
            yield b"]}"


def _may_think(messages: Sequence[Message], origin: str) -> bool:
    """True if the API allows thinking: during tool use, only if the model began its turn with a thought.

    It did not if another model began the turn, or thinking was off.
    """
    opening: Message | None = None
    has_results = False
    for message in reversed(messages):
        if message.role == "tool":
            has_results = True
        elif message.role == "assistant":
            if not has_results:
                return True  # Its turn is complete: a new one begins.
            opening = message
        elif opening is not None:
            break
    if opening is None:
        return True
    first = next((shaped for block in own_blocks(opening, origin) if (shaped := _block(block)) is not None), None)
    return first is not None and first["type"] in _THOUGHTS


def _tools(tools: tuple[ToolSpec, ...]) -> Iterator[dict[str, Any]]:
    for tool in tools:
        cache = _CACHE if tool is tools[-1] else {}
        yield {"name": tool.name, "description": tool.description, "input_schema": tool.schema, **cache}


def _marked(messages: Sequence[Message]) -> tuple[int, bytes]:
    """Return the index of the newest message that is not the model's, and its content marked for caching."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role != "assistant" and (content := _content(messages[index].content, cache=True)):
            return index, content
    return len(messages), b""


def _appended(origin: str, message: Message, role: str) -> tuple[bytes, str]:
    return _joined(message, _content(own_blocks(message, origin)), role)


def _joined(message: Message, content: bytes, role: str) -> tuple[bytes, str]:
    """Return the continuation of a message list whose last message, of ``role``, is open; and the role open then."""
    if not content:
        return b"", role
    speaker = "assistant" if message.role == "assistant" else "user"
    if speaker == role:
        return b"," + content, role
    return b'%s{"role":"%s","content":[%s' % (b"]}," if role else b"", speaker.encode(), content), speaker


def _content(content: Sequence[TranscriptBlock], *, cache: bool = False) -> bytes:
    """Return the blocks of a message, separated by commas, without brackets; b"" if none is left."""
    blocks = [shaped for block in content if (shaped := _block(block)) is not None]
    # The API refuses a message that ends in a thought.
    while blocks and blocks[-1]["type"] in _THOUGHTS:
        del blocks[-1]
    if cache and blocks:
        blocks[-1].update(_CACHE)
    return encode(blocks)[1:-1]


def _block(block: TranscriptBlock) -> dict[str, Any] | None:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case ImageBlock():
            return _image(block)
        case ThinkingBlock(redacted=data) if data:
            return {"type": "redacted_thinking", "data": data}
        case ThinkingBlock(text=text, signature=signature):
            # The API accepts thinking only with its signature; an aborted thought has none.
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case CallBlock(id=id_, name=name, args=args):
            return {"type": "tool_use", "id": acceptable_id(id_), "name": acceptable_name(name), "input": args or {}}
        case ResultBlock(call_id=call_id, is_error=is_error, content=content):
            parts = [part for item in content if (part := _block(item)) is not None]
            if is_error and any(part["type"] == "image" for part in parts):
                # The API accepts only text in an error result.
                parts, is_error = [{"type": "text", "text": "[error]"}, *parts], False
            return {
                "type": "tool_result",
                "tool_use_id": acceptable_id(call_id),
                "content": parts or [{"type": "text", "text": "(no output)"}],
                "is_error": is_error,
            }


def _image(block: ImageBlock) -> dict[str, Any]:
    if not fits(block, _IMAGES):
        return {"type": "text", "text": omitted_image_text(block)}
    source = {"type": "base64", "media_type": block.mime_type, "data": b64encode(block.data).decode()}
    return {"type": "image", "source": source}
