"""The stream of Chat Completions: bytes in, events and the reply out, whoever's dialect it is. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from zot.errors import ContentRefused, Overloaded, ProviderError, ServiceFailed, StreamBroken
from zot.events import TextDelta, ThinkingDelta
from zot.messages import Stop, TextBlock, ThinkingBlock, TranscriptBlock
from zot.providers.base import Reply, StreamEvent
from zot.providers.calls import CallIds
from zot.providers.decoding_part import StreamDecoder
from zot.providers.openai_chat_calls import OpenCall, OpenCalls
from zot.providers.openai_chat_frames import CallPiece, Choice, Chunk, Delta, Part, Usage
from zot.providers.payload import EventReader
from zot.providers.reasoning_details import sealed, thought_in
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
_NOTHING = Choice()
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


class ChatDecoder(StreamDecoder):
    """Turns the bytes of one streamed reply into events. With ``think_tags``, text may begin with a thought in tags."""

    def __init__(self, ids: CallIds, *, think_tags: bool = False) -> None:
        super().__init__()
        self._parts: list[_Said | OpenCall] = []
        self._open: _Said | None = None
        self._calls = OpenCalls(ids)
        self._tags = ThinkTags() if think_tags else None
        self._details: list[dict[str, Any]] = []
        self._usage = Usage()
        self._refused = False
        self._stop_reason = ""

    def finish(self) -> list[StreamEvent]:
        """Return what was still open. Raise StreamBroken if the reply is not whole, and what ended it by force."""
        if not self._stop_reason:
            raise StreamBroken("the answer ended without its final event")
        if (failure := _FAILURES.get(self._stop_reason)) is not None:
            kind, text = failure
            raise kind(text, code=self._stop_reason)
        events: list[StreamEvent] = []
        self._calls.close(events)  # Calls that came behind the end count, too.
        return events

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
                    self.is_complete = True
                    continue
                chunk = _reader.decode_with_care(payload)
            if chunk is None:
                continue
            if chunk.error or (chunk.message and not chunk.choices):
                from zot.providers.api_errors import reported  # Who asks for the first time waits for what is loaded.

                raise reported(payload)
            choice = chunk.choices[0] if chunk.choices else _NOTHING
            delta = choice.delta or choice.message
            said = self._open
            # Nearly all of them are like this: more of the text that is being said, and nothing else.
            if (
                said is not None
                and delta is not None
                and type(text := delta.content) is str
                and text
                and not said.is_thought
                and not self._tags
                and not (delta.reasoning_content or delta.reasoning or delta.reasoning_details)
                and not (delta.tool_calls or delta.refusal or delta.function_call)
            ):
                said.pieces.append(text)
                events.append(TextDelta(text))
                is_news = True
            else:
                # Some servers send empty chunks to keep the line open: those are no progress.
                is_news = delta is not None and self._take_delta(delta, events)
            if choice.finish_reason:
                is_news = True
                self._end(choice.finish_reason, events)
            groq = chunk.x_groq
            if (usage := chunk.usage or choice.usage or (None if groq is None else groq.usage)) is not None:
                is_news = True
                self._usage = usage
            self.progress += is_news

    def _take_delta(self, delta: Delta, events: list[StreamEvent]) -> bool:
        """Take what was said. Return whether there was anything."""
        before = len(events)
        if thought := delta.reasoning_content or delta.reasoning:
            self._append(thought, events, is_thought=True)
        if delta.reasoning_details:
            self._take_details(delta.reasoning_details, events, is_told=bool(thought))
        if text := delta.content:
            self._say(text, events)
        if delta.refusal:
            self._refused = True
            self._say(delta.refusal, events)
        if delta.tool_calls:
            for piece in delta.tool_calls:
                self._take_call(piece, events)
        if delta.function_call is not None:
            self._take_call(CallPiece(index=0, function=delta.function_call), events)
        return len(events) > before or bool(delta.tool_calls or delta.reasoning_details or text)

    def _take_details(self, details: list[dict[str, Any]], events: list[StreamEvent], *, is_told: bool) -> None:
        """Keep sealed thoughts; what can be read of them is said unless it was already."""
        self._details += details
        if not is_told and (thought := thought_in(details)):
            self._append(thought, events, is_thought=True)

    def _take_parts(self, parts: list[Part], events: list[StreamEvent]) -> None:
        for part in parts:
            if thought := part.thought:
                self._append(thought, events, is_thought=True)
            if part.text:
                self._say(part.text, events)

    def _say(self, text: str | list[Part], events: list[StreamEvent]) -> None:
        if not isinstance(text, str):
            self._take_parts(text, events)
        elif self._tags is not None:
            self._say_tagged(*self._tags.feed(text), events)
        elif self._open is not None and not self._open.is_thought:
            self._open.pieces.append(text)
            events.append(TextDelta(text))
        else:
            self._append(text, events, is_thought=False)

    def _say_tagged(self, thought: str, text: str, events: list[StreamEvent]) -> None:
        if thought:
            self._append(thought, events, is_thought=True)
        if text:
            self._append(text, events, is_thought=False)
        if self._tags is not None and self._tags.is_over:
            self._tags = None

    def _append(self, text: str, events: list[StreamEvent], *, is_thought: bool) -> None:
        if self._open is None or self._open.is_thought is not is_thought:
            self._open = _Said(is_thought=is_thought)
            self._parts.append(self._open)
        self._open.pieces.append(text)
        events.append(ThinkingDelta(text) if is_thought else TextDelta(text))

    def _take_call(self, piece: CallPiece, events: list[StreamEvent]) -> None:
        self._release_tags(events)
        call = self._calls.take(piece, events)
        if call is not None:
            self._parts.append(call)
            self._open = None

    def _end(self, reason: str, events: list[StreamEvent]) -> None:
        self._release_tags(events)
        self._calls.close(events)
        # A refusal in words ends like any other answer; some servers end twice.
        self._stop_reason = self._stop_reason or ("refusal" if self._refused else reason)

    def _release_tags(self, events: list[StreamEvent]) -> None:
        """Nothing more can show whether what is held was a tag."""
        if self._tags is not None:
            self._say_tagged(*self._tags.finish(), events)
