"""Gemini generateContent: request encoding and stream decoding."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from zot.config.vendors import ImageLimits
from zot.encoding import UNREADABLE, encode
from zot.errors import ContentRefused, ServiceFailed, StreamBroken
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

_STOPS: Mapping[str, Stop] = {"MAX_TOKENS": "length"}
_REFUSED = frozenset(
    {
        "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII",
        "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
    }
)  # fmt: skip
_FAILED = frozenset({"OTHER", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS", "NO_IMAGE", "IMAGE_OTHER"})
#: The model wrote a call that the service cannot parse, or called a tool it was not offered.
_UNUSABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})
#: Such calls look like `print(default_api.read(...))`, `call:default_api:read{...}` or `read(...)`.
_CALLED = re.compile(r"\b(?!print\()([A-Za-z_][\w-]{0,63})[({]")

_PartJson: TypeAlias = dict[str, Any]

#: A request has at most 20 MB. Larger files must be uploaded first, which is not supported.
_IMAGES = ImageLimits(
    7_000_000, 500, 13_000_000, frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
)
#: Google's documented placeholder for the signature of another model's call.
_NO_SIGNATURE = "skip_thought_signature_validator"

_NUMBER = re.compile(r"gemini-(\d+)(?:\.(\d+))?(?![\d.])")
#: Generation of an alias such as gemini-flash-latest.
_NEWEST = (3, 0)

_BUDGETS: Mapping[Reasoning, int] = {"low": 2048, "medium": 8192, "high": 16384}
#: The smallest budget of 2.5 Pro: its thinking cannot be turned off.
_LEAST_OF_PRO = 128
_LEVELS: Mapping[Reasoning, str] = {"off": "LOW", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}
#: Models from generation 3 on always think. All accept LOW; these accept MINIMAL, and one lacks MEDIUM.
_WITH_MINIMAL = ("gemini-3-flash", "gemini-3.1-flash-lite", "gemini-3.5-flash-lite", "gemini-3.6-flash")
_WITHOUT_MEDIUM = ("gemini-3-pro",)

#: Thinking counts as output, so the limit of a short answer must leave room for it.
_ROOM_BEYOND_BUDGET = 4096
_ROOM: Mapping[str, int] = {"MINIMAL": 4096, "LOW": 8192, "MEDIUM": 16384, "HIGH": 32768}


class _FunctionCall(msgspec.Struct, gc=False):
    name: str = ""
    id: str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _Part(msgspec.Struct, gc=False, rename="camel"):
    """A piece of the reply; all fields are absent for unknown kinds."""

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


#: Known chunks have no type; any type is unknown.
_reader: EventReader[_Chunk] = EventReader(msgspec.json.Decoder(_Chunk), kinds=("",))


class GeminiDecoder(Decoder):
    """Decoder of one streamed reply."""

    def __init__(self, ids: CallIds) -> None:
        super().__init__()
        self._sse = SseParser()
        self._ids = ids
        self._blocks: list[TranscriptBlock] = []
        self._open: Literal["text", "thinking"] | None = None
        self._pieces: list[str] = []
        self._usage = _Usage()
        self._reason = ""
        self._remark = ""

    def finish(self) -> list[StreamEvent]:
        """Return a call that the service could not parse, so that the model gets an error result.

        Raise StreamBroken if the reply is incomplete, ContentRefused or ServiceFailed if the service ended it.
        """
        reason, remark = self._reason, f": {self._remark}" if self._remark else ""
        if not reason:
            raise StreamBroken("the answer ended without its final event")
        if reason in _REFUSED:
            raise ContentRefused(f"the service ended the answer ({reason}){remark}", code=reason)
        if reason in _FAILED:
            raise ServiceFailed(f"the service gave up on the answer ({reason}){remark}", code=reason)
        return self._unusable_call() if reason in _UNUSABLE else []

    def reply(self) -> ModelReply:
        """Return the reply so far."""
        content = (*self._blocks, *self._opened())
        called = any(isinstance(block, CallBlock) for block in content)
        usage = self._usage
        cached, thought = usage.cached_content_token_count or 0, usage.thoughts_token_count or 0
        given = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
        counters = Counters(
            max(0, given - cached), (usage.candidates_token_count or 0) + thought, cached, 0, 0.0, reasoning=thought
        )
        return ModelReply(content, counters, _STOPS.get(self._reason, "tool_use" if called else "end_turn"))

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            chunk: _Chunk | None
            try:
                chunk = _reader.decode(payload)
            except UNREADABLE:
                chunk = _reader.decode_with_care(payload)
            if chunk is not None:
                self._take(chunk, events)
                # A chunk without candidates is a ping.
                self.progress += bool(chunk.candidates)

    def _take(self, chunk: _Chunk, events: list[StreamEvent]) -> None:
        if chunk.usage_metadata is not None:
            self._count(chunk.usage_metadata)
        if chunk.error is not None or chunk.prompt_feedback is not None:
            _check(chunk)
        if not chunk.candidates:
            return
        candidate = chunk.candidates[0]  # Only one is requested.
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                if (
                    self._open == "text"
                    and part.text
                    and not (part.thought or part.thought_signature or part.function_call)
                ):
                    self._pieces.append(part.text)  # Fast path: nearly all parts.
                    events.append(TextDelta(part.text))
                else:
                    self._take_part(part, events)
        if candidate.finish_reason:
            # Some servers send it with every chunk, so it does not end the reply: the last one counts.
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
        """Return the block in progress, as far as received."""
        text = "".join(self._pieces)
        if not text:
            return ()
        return (TextBlock(text),) if self._open == "text" else (ThinkingBlock(text),)

    def _sign(self, signature: str, *, thought: bool) -> None:
        """Record a signature: on its thought, or as a separate thinking block after the text."""
        text = "".join(self._pieces) if thought and self._open == "thinking" else ""
        if text:
            self._open, self._pieces = None, []
        self._leave()
        self._blocks.append(ThinkingBlock(text, signature))

    def _count(self, usage: _Usage) -> None:
        # Reported with every chunk, and growing; the last value of each counter wins.
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
    """Raise the error that a chunk reports."""
    if (fault := chunk.error) is not None:
        raise stream_error(fault.status or str(fault.code or ""), fault.message or "")
    feedback = chunk.prompt_feedback
    if feedback is not None and feedback.block_reason:
        why = f": {feedback.block_reason_message}" if feedback.block_reason_message else ""
        raise ContentRefused(
            f"the service refused the prompt ({feedback.block_reason}){why}", code=feedback.block_reason
        )


def seals_calls(model: str) -> bool:
    """True if the model refuses its own calls without the signature of their thought."""
    return (_generation(model) or (0, 0)) >= (3, 0)


def thinking(model: str, reasoning: Reasoning) -> tuple[dict[str, Any], int]:
    """Return the ``thinkingConfig``, which may be empty, and the least output tokens it needs."""
    generation = _generation(model)
    shown = {} if reasoning == "off" else {"includeThoughts": True}
    if generation is None or generation < (2, 5):
        return shown, 0
    if generation < (3, 0):
        budget = _BUDGETS.get(reasoning, _LEAST_OF_PRO if "-pro" in model else 0)
        return {"thinkingBudget": budget, **shown}, budget and budget + _ROOM_BEYOND_BUDGET
    level = _level(model, reasoning)
    return {"thinkingLevel": level, **shown}, _ROOM[level]


def _level(model: str, reasoning: Reasoning) -> str:
    if reasoning == "off" and model.startswith(_WITH_MINIMAL):
        return "MINIMAL"
    if reasoning == "medium" and model.startswith(_WITHOUT_MEDIUM):
        return "HIGH"
    return _LEVELS[reasoning]


def _generation(model: str) -> tuple[int, int] | None:
    """Return (2, 5) for gemini-2.5-pro; None for other families and unnumbered models."""
    found = _NUMBER.match(model)
    if found is None:
        return _NEWEST if model.startswith("gemini-") and model.endswith("-latest") else None
    return int(found[1]), int(found[2] or 0)


class GeminiGenerateContent:
    """The generateContent API, at Google's address or a compatible one."""

    def __init__(self, *, base_url: str, origin: str) -> None:
        self._base = base_url.rstrip("/").removesuffix("/v1beta").removesuffix("/v1")
        self._appended = partial(_appended, origin, seals=False)
        self._appended_sealed = partial(_appended, origin, seals=True)

    def request(self, request: ModelRequest, key: str) -> HttpRequest:
        """Return the HTTP request for one streamed reply. The key is in a header, never in the URL."""
        model = quote(request.model.removeprefix("models/"), safe="")
        return HttpRequest(
            url=f"{self._base}/v1beta/models/{model}:streamGenerateContent?alt=sse",
            headers={
                **({"x-goog-api-key": key} if key else {}),
                "content-type": "application/json",
                "accept": "text/event-stream",
            },
            body=self._body(request),
        )

    def decoder(self, request: ModelRequest) -> Decoder:
        """Return a decoder for the reply to a request."""
        return GeminiDecoder(CallIds(request.messages, request.encoded.calls))

    def _body(self, request: ModelRequest) -> bytes:
        """Return the request body, made of cached and newly encoded parts."""
        config, least = thinking(request.model, request.reasoning)
        generation: dict[str, Any] = {"maxOutputTokens": max(request.max_tokens, least)}
        if config:
            generation["thinkingConfig"] = config
        head: dict[str, Any] = {"generationConfig": generation}
        if request.system:
            head["systemInstruction"] = {"parts": [{"text": request.system}]}
        if request.tools:
            head["tools"] = [{"functionDeclarations": [*_declarations(request.tools)]}]
        appended = self._appended_sealed if seals_calls(request.model) else self._appended
        contents, state = request.encoded.text(request.encoded.images.of(request.messages, _IMAGES), appended)
        # Copies the conversation only once: a long one is a megabyte.
        return b"".join([encode(head)[:-1], b',"contents":[', contents, b"]}" if state else b"", b"]}"])


def _appended(origin: str, message: Message, state: str, *, seals: bool) -> tuple[bytes, str]:
    """Return the continuation of the contents after ``state``, and the new state: the open role and the last calls.

    The API requires the tool's name with each result; our results have only the call's id.
    """
    role, _, known = state.partition(" ")
    called = msgspec.json.decode(known, type=dict[str, str]) if known else {}
    if message.role == "assistant":
        speaker, parts = "model", _model_parts(own_blocks(message, origin), seals=seals)
        called = {block.id: block.name for block in message.content if isinstance(block, CallBlock)} or called
    else:
        speaker, parts = "user", _user_parts(message.content, called)
    if not parts:
        return b"", state
    content, after = encode(parts)[1:-1], f"{speaker} {encode(called).decode()}"
    if speaker == role:
        return b"," + content, after
    return b'%s{"role":"%s","parts":[%s' % (b"]}," if role else b"", speaker.encode(), content), after


def _model_parts(blocks: Sequence[TranscriptBlock], *, seals: bool) -> list[_PartJson]:
    """Return the parts of a model message; none if it only contains thinking."""
    parts: list[_PartJson] = []
    calls: list[_PartJson] = []
    for block in blocks:
        match block:
            case TextBlock(text=text) if text.strip():
                parts.append({"text": text})
            case ThinkingBlock(text=text, signature=signature) if signature:
                _seal(parts, text, signature)
            case CallBlock():
                calls.append(_call(block))
                parts.append(calls[-1])
            case _:
                pass  # The API needs no thought without a signature.
    if seals and calls:
        # Of parallel calls, only the first has a signature.
        calls[0].setdefault("thoughtSignature", _NO_SIGNATURE)
    return parts if any(map(_says_something, parts)) else []


def _user_parts(content: Sequence[TranscriptBlock], called: Mapping[str, str]) -> list[_PartJson]:
    """Return the parts of a user or tool message. Images come after all results, which must stay together."""
    parts: list[_PartJson] = []
    images: list[_PartJson] = []
    for block in content:
        match block:
            case TextBlock(text=text) if text.strip():
                parts.append({"text": text})
            case ImageBlock():
                parts.append(_image(block))
            case ResultBlock():
                # Without a known call, the id stands in for the tool's name.
                parts.append(_result(block, called.get(block.call_id, block.call_id), images))
            case _:
                pass
    return [*parts, *images]


def _result(block: ResultBlock, tool: str, images: list[_PartJson]) -> _PartJson:
    texts = []
    for item in block.content:
        match item:
            case TextBlock(text=text):
                texts.append(text)
            case ImageBlock():
                shown = _image(item)
                if "inlineData" in shown:
                    images.append(shown)
                    texts.append(f"[image {len(images)} follows the results]")
                else:
                    texts.append(shown["text"])
    text = "\n".join(text for text in texts if text.strip()) or "(no output)"
    return {
        "functionResponse": {
            "id": acceptable_id(block.call_id),
            "name": acceptable_name(tool),
            "response": {"error" if block.is_error else "output": text},
        }
    }


def _declarations(tools: tuple[ToolSpec, ...]) -> Iterator[dict[str, Any]]:
    for tool in tools:
        # `parameters` is a subset of JSON Schema; this field accepts all of it.
        schema = {name: value for name, value in tool.schema.items() if name != "$schema"}
        yield {"name": tool.name, "description": tool.description, "parametersJsonSchema": schema}


def _seal(parts: list[_PartJson], thought: str, signature: str) -> None:
    """Attach a signature where it came from: its thought, the text before it, or an empty text."""
    if thought:
        parts.append({"text": thought, "thought": True, "thoughtSignature": signature})
    elif parts and parts[-1].keys() == {"text"}:
        parts[-1]["thoughtSignature"] = signature
    else:
        parts.append({"text": "", "thoughtSignature": signature})


def _says_something(part: _PartJson) -> bool:
    return "functionCall" in part or ("thought" not in part and bool(part["text"]))


def _call(block: CallBlock) -> _PartJson:
    part: _PartJson = {
        "functionCall": {"id": acceptable_id(block.id), "name": acceptable_name(block.name), "args": block.args or {}}
    }
    if block.signature:
        part["thoughtSignature"] = block.signature
    return part


def _image(block: ImageBlock) -> _PartJson:
    if not fits(block, _IMAGES):
        return {"text": omitted_image_text(block)}
    return {"inlineData": {"mimeType": block.mime_type, "data": b64encode(block.data).decode()}}
