"""The stream of Gemini streamGenerateContent: bytes in, events and the reply out. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from zot.errors import ContentRefused, ServiceFailed, StreamBroken
from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import CallBlock, Counters, Stop, TextBlock, ThinkingBlock, TranscriptBlock
from zot.providers.base import Reply, StreamEvent
from zot.providers.calls import CallIds, finished_call
from zot.providers.decoding_part import StreamDecoder
from zot.providers.payload import EventReader

_STOPS: Mapping[str, Stop] = {"MAX_TOKENS": "length"}
_REFUSED = frozenset(
    {
        "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII",
        "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
    }
)  # fmt: skip
_FAILED = frozenset({"OTHER", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS", "NO_IMAGE", "IMAGE_OTHER"})
#: The model wrote a call that its own service cannot read, or of a tool that it was not offered.
_UNUSABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})
#: Such calls look like `print(default_api.read(...))`, `call:default_api:read{...}` or `read(...)`.
_CALLED = re.compile(r"\b(?!print\()([A-Za-z_][\w-]{0,63})[({]")


class _FunctionCall(msgspec.Struct, gc=False):
    name: str = ""
    id: str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _Part(msgspec.Struct, gc=False, rename="camel"):
    """A piece of the reply; of the kinds that we do not know, all fields are absent."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Usage(msgspec.Struct, gc=False, rename="camel"):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class _Feedback(msgspec.Struct, gc=False, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Fault(msgspec.Struct, gc=False):
    status: str | None = None
    message: str | None = None
    code: int | str | None = None


class _Chunk(msgspec.Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    prompt_feedback: _Feedback | None = None
    error: _Fault | None = None


#: Chunks have no type; one that has is of a kind that is new since.
_reader: EventReader[_Chunk] = EventReader(msgspec.json.Decoder(_Chunk), kinds=("",))


class GeminiDecoder(StreamDecoder):
    """Turns the bytes of one streamed reply into events."""

    def __init__(self, ids: CallIds) -> None:
        super().__init__()
        self._ids = ids
        self._blocks: list[TranscriptBlock] = []
        self._open: Literal["text", "thinking"] | None = None
        self._pieces: list[str] = []
        self._usage = _Usage()
        self._reason = ""
        self._remark = ""

    def finish(self) -> list[StreamEvent]:
        """Return a call that the service itself could not read: the model must hear of it.

        Raise StreamBroken if the reply is not whole, ContentRefused or ServiceFailed if the service broke it off.
        """
        reason, remark = self._reason, f": {self._remark}" if self._remark else ""
        if not reason:
            raise StreamBroken("the answer ended without its final event")
        if reason in _REFUSED:
            raise ContentRefused(f"the service ended the answer ({reason}){remark}", code=reason)
        if reason in _FAILED:
            raise ServiceFailed(f"the service gave up on the answer ({reason}){remark}", code=reason)
        return self._unusable_call() if reason in _UNUSABLE else []

    def reply(self) -> Reply:
        """Return what has been received so far."""
        content = (*self._blocks, *self._opened())
        called = any(isinstance(block, CallBlock) for block in content)
        usage = self._usage
        cached, thought = usage.cached_content_token_count or 0, usage.thoughts_token_count or 0
        given = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
        counters = Counters(
            max(0, given - cached), (usage.candidates_token_count or 0) + thought, cached, 0, 0.0, reasoning=thought
        )
        return Reply(content, counters, _STOPS.get(self._reason, "tool_use" if called else "end_turn"))

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            chunk: _Chunk | None
            try:
                chunk = _reader.decode(payload)
            except (ValueError, RecursionError):
                chunk = _reader.decode_with_care(payload)
            if chunk is not None:
                self._take(chunk, events)
                # A chunk that says nothing is a ping.
                self.progress += bool(chunk.candidates)

    def _take(self, chunk: _Chunk, events: list[StreamEvent]) -> None:
        if chunk.usage_metadata is not None:
            self._count(chunk.usage_metadata)
        if chunk.error is not None or chunk.prompt_feedback is not None:
            _check(chunk)
        if not chunk.candidates:
            return
        candidate = chunk.candidates[0]  # Nobody asks for a second one.
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                if (
                    self._open == "text"
                    and part.text
                    and not (part.thought or part.thought_signature or part.function_call)
                ):
                    self._pieces.append(part.text)  # Nearly all of them are like this.
                    events.append(TextDelta(part.text))
                else:
                    self._take_part(part, events)
        if candidate.finish_reason:
            # Some servers say it with every chunk, so it is no end: the last one counts, when the body ends.
            self._reason, self._remark = candidate.finish_reason, candidate.finish_message or ""

    def _take_part(self, part: _Part, events: list[StreamEvent]) -> None:
        if part.function_call is not None:
            self._take_call(part.function_call, part.thought_signature or "", events)
            return
        if part.text:
            if part.thought:
                self._enter("thinking")
                events.append(ThinkingDelta(part.text))
            else:
                self._enter("text")
                events.append(TextDelta(part.text))
            self._pieces.append(part.text)
        if part.thought_signature:
            self._sign(part.thought_signature, thought=bool(part.thought))

    def _take_call(self, call: _FunctionCall, signature: str, events: list[StreamEvent]) -> None:
        text = bytes(call.args).decode(errors="replace")
        text = "" if text == "null" else text
        block = finished_call(self._ids.take(call.id or ""), call.name or "unknown", text, signature=signature)
        self._add_call(block, text, events)

    def _unusable_call(self) -> list[StreamEvent]:
        sent = self._remark or self._reason
        found = _CALLED.search(sent)
        events: list[StreamEvent] = []
        self._add_call(CallBlock(self._ids.take(""), found[1] if found else "unknown", None, sent), sent, events)
        return events

    def _add_call(self, call: CallBlock, text: str, events: list[StreamEvent]) -> None:
        self._leave()
        self._blocks.append(call)
        events.append(ToolUseStart(call.id, call.name))
        if text:
            events.append(ToolUseArgs(call.id, text))
        events.append(ToolUseEnd(call.id))

    def _enter(self, kind: Literal["text", "thinking"]) -> None:
        if self._open != kind:
            self._leave()
            self._open = kind

    def _leave(self) -> None:
        self._blocks += self._opened()
        self._open, self._pieces = None, []

    def _opened(self) -> tuple[TranscriptBlock, ...]:
        """Return the block that is being received, as far as it has come."""
        text = "".join(self._pieces)
        if not text:
            return ()
        return (TextBlock(text),) if self._open == "text" else (ThinkingBlock(text),)

    def _sign(self, signature: str, *, thought: bool) -> None:
        """Keep a signature: with the thought that it came with, or as a thought of its own behind the text."""
        text = "".join(self._pieces) if thought and self._open == "thinking" else ""
        if text:
            self._open, self._pieces = None, []
        self._leave()
        self._blocks.append(ThinkingBlock(text, signature))

    def _count(self, usage: _Usage) -> None:
        # Told with every chunk, and growing; the last number of each counter counts, once.
        known, self._usage = self._usage, usage
        if usage.prompt_token_count is None:
            usage.prompt_token_count = known.prompt_token_count
        if usage.cached_content_token_count is None:
            usage.cached_content_token_count = known.cached_content_token_count
        if usage.tool_use_prompt_token_count is None:
            usage.tool_use_prompt_token_count = known.tool_use_prompt_token_count
        if usage.candidates_token_count is None:
            usage.candidates_token_count = known.candidates_token_count
        if usage.thoughts_token_count is None:
            usage.thoughts_token_count = known.thoughts_token_count


def _check(chunk: _Chunk) -> None:
    """Raise what a chunk reports instead of an answer."""
    if (fault := chunk.error) is not None:
        from zot.providers.api_errors import in_stream  # Who asks for the first time waits for what is loaded.

        raise in_stream(fault.status or str(fault.code or ""), fault.message or "")
    feedback = chunk.prompt_feedback
    if feedback is not None and feedback.block_reason:
        why = f": {feedback.block_reason_message}" if feedback.block_reason_message else ""
        raise ContentRefused(
            f"the service refused the prompt ({feedback.block_reason}){why}", code=feedback.block_reason
        )
