"""The stream of Chat Completions: bytes in, events and the reply out, whoever's dialect it is. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from zot.errors import ContentRefused, Overloaded, ProviderError, ServiceFailed, StreamBroken
from zot.events import TextDelta, ThinkingDelta
from zot.messages import Stop, TextBlock, ThinkingBlock, TranscriptBlock
from zot.providers.base import Reply, StreamEvent
from zot.providers.failures import reported
from zot.providers.openai_chat_calls import OpenCall, OpenCalls
from zot.providers.openai_chat_frames import CallPiece, Chunk, Delta, Part, Usage
from zot.providers.payload import EventReader
from zot.providers.reasoning_details import sealed, thought_in
from zot.providers.sse import SseParser
from zot.providers.think_tags import ThinkTags

_STOPS: Mapping[str, Stop] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "length",
    "model_length": "length",
}
#: Ends that are none: which error, and what is said. What had been written is kept.
_FAILURES: Mapping[str, tuple[type[ProviderError], str]] = {
    "content_filter": (ContentRefused, "the content filter of the service ended the answer"),
    "refusal": (ContentRefused, "the model refused to answer this"),
    "insufficient_system_resource": (Overloaded, "the service ended the answer: it is overloaded"),
    "error": (ServiceFailed, "the service ended the answer with an error"),
}
_reader: EventReader[Chunk] = EventReader(msgspec.json.Decoder(Chunk), kinds=("",))


class _Said:
    """Text or a thought that is being received."""

    __slots__ = ("is_thought", "pieces")

    def __init__(self, *, is_thought: bool) -> None:
        self.is_thought = is_thought
        self.pieces: list[str] = []

    def finished(self) -> TranscriptBlock:
        text = "".join(self.pieces)
        return ThinkingBlock(text) if self.is_thought else TextBlock(text)


class ChatDecoder:
    """Turns the bytes of one streamed reply into events. With ``think_tags``, text may begin with a thought in tags."""

    def __init__(self, *, think_tags: bool = False) -> None:
        self._sse = SseParser()
        self._parts: list[_Said | OpenCall] = []
        self._text: _Said | None = None
        self._calls = OpenCalls()
        self._tags = ThinkTags() if think_tags else None
        self._details: list[dict[str, Any]] = []
        self._usage = Usage()
        self._refused = False
        self._stop_reason = ""
        self.progress = 0
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

    def finish(self) -> list[StreamEvent]:
        """Raise StreamBroken if the reply is not whole, ContentRefused and the like if it was ended by force."""
        if not self._stop_reason:
            raise StreamBroken("the answer ended without its final event")
        if (failure := _FAILURES.get(self._stop_reason)) is not None:
            kind, text = failure
            raise kind(text, code=self._stop_reason)
        return []

    def reply(self) -> Reply:
        """Return what has been received so far, without a half-written tool call."""
        content = [block for part in self._parts if (block := part.finished()) is not None]
        if seal := sealed(self._details):
            at = next((index for index, block in enumerate(content) if isinstance(block, ThinkingBlock)), None)
            if at is None:
                content.insert(0, ThinkingBlock(signature=seal))
            else:
                content[at] = msgspec.structs.replace(content[at], signature=seal)
        return Reply(tuple(content), self._usage.counters(), _STOPS.get(self._stop_reason, "end_turn"))

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            chunk: Chunk | None
            try:
                chunk = _reader.decode(payload)
            except (ValueError, RecursionError):
                if payload.strip() == b"[DONE]":
                    continue
                chunk = _reader.decode_with_care(payload)
            if chunk is not None and self._take(chunk, payload, events):
                self.progress += 1

    def _take(self, chunk: Chunk, payload: bytes, events: list[StreamEvent]) -> bool:
        """Take one chunk. Return whether it brought anything: some servers send empty ones to keep the line open."""
        choices = chunk.choices
        if chunk.error is not None or (not choices and chunk.message is not None):
            raise reported(payload)
        before = len(events)
        is_news = False
        if choices:
            choice = choices[0]
            delta = choice.delta or choice.message
            if delta is not None:
                is_news = self._take_delta(delta, events)
            if choice.finish_reason:
                is_news = True
                self._end(choice.finish_reason, events)
        if (usage := chunk.latest_usage()) is not None:
            is_news = True
            self._usage = usage
        return is_news or len(events) > before

    def _take_delta(self, delta: Delta, events: list[StreamEvent]) -> bool:
        """Take what was said. Return whether there was more than its events show."""
        if thought := delta.reasoning_content or delta.reasoning:
            self._think(thought, events)
        if details := delta.reasoning_details:
            self._details += details
            if not thought and (thought := thought_in(details)):
                self._think(thought, events)
        if text := delta.content:
            if isinstance(text, str):
                self._say(text, events)
            else:
                self._take_parts(text, events)
        if delta.refusal:
            self._say(delta.refusal, events)
            self._refused = True
        if delta.tool_calls:
            for piece in delta.tool_calls:
                self._take_call(piece, events)
        if delta.function_call is not None:
            self._take_call(CallPiece(index=0, function=delta.function_call), events)
        return bool(details or delta.tool_calls)

    def _take_parts(self, parts: list[Part], events: list[StreamEvent]) -> None:
        for part in parts:
            if thought := part.thought:
                self._think(thought, events)
            if part.text:
                self._say(part.text, events)

    def _say(self, text: str, events: list[StreamEvent]) -> None:
        if self._tags is not None:
            thought, text = self._tags.feed(text)
            if self._tags.is_over:
                self._tags = None
            if thought:
                self._append(thought, events, is_thought=True)
            if not text:
                return
        said = self._text
        if said is None or said.is_thought:
            self._append(text, events, is_thought=False)
        else:
            said.pieces.append(text)
            events.append(TextDelta(text))

    def _think(self, thought: str, events: list[StreamEvent]) -> None:
        self._append(thought, events, is_thought=True)

    def _append(self, text: str, events: list[StreamEvent], *, is_thought: bool) -> None:
        if self._text is None or self._text.is_thought is not is_thought:
            self._text = _Said(is_thought=is_thought)
            self._parts.append(self._text)
        self._text.pieces.append(text)
        events.append(ThinkingDelta(text) if is_thought else TextDelta(text))

    def _take_call(self, piece: CallPiece, events: list[StreamEvent]) -> None:
        self._release_tags(events)
        call = self._calls.take(piece, events)
        if call is not None:
            self._parts.append(call)
            self._text = None

    def _end(self, reason: str, events: list[StreamEvent]) -> None:
        self._release_tags(events)
        self._calls.close(events)
        # A refusal in words ends like any other answer; some servers end twice.
        self._stop_reason = self._stop_reason or ("refusal" if self._refused else reason)

    def _release_tags(self, events: list[StreamEvent]) -> None:
        """Nothing more can show whether what is held was a tag."""
        if self._tags is not None:
            thought, text = self._tags.finish()
            self._tags = None
            if thought:
                self._append(thought, events, is_thought=True)
            if text:
                self._append(text, events, is_thought=False)
