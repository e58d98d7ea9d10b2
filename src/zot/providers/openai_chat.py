"""OpenAI Chat Completions and compatible servers: request encoding and stream decoding."""

from __future__ import annotations

import enum
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from zot.config.base_url import COMPLETIONS, api_base
from zot.config.vendors import ChatQuirks
from zot.encoding import UNREADABLE, encode
from zot.errors import ContentRefused, Overloaded, ProviderError, ServiceFailed, StreamBroken
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
from zot.providers.api_errors import error_from_body
from zot.providers.base import (
    Decoder,
    HttpRequest,
    ModelReply,
    ModelRequest,
    StreamEvent,
    fits,
    omitted_image_text,
    own_blocks,
)
from zot.providers.sse import (
    CallIds,
    EventReader,
    SseParser,
    acceptable_id,
    acceptable_name,
    finished_call,
    is_object,
)

_OPEN = "<think>"
_CLOSE = "</think>"

_READABLE = ("text", "summary")
#: Fields that grow from piece to piece; of all others the last value wins.
_GROWING = (*_READABLE, "data")

_STOPS: Mapping[str, Stop] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "length",
    "model_length": "length",
}
#: Failures reported as a finish reason: the error and its message. The partial reply is kept.
_FAILURES: Mapping[str, tuple[type[ProviderError], str]] = {
    "content_filter": (ContentRefused, "the content filter of the service ended the answer"),
    "refusal": (ContentRefused, "the model refused to answer this"),
    "insufficient_system_resource": (Overloaded, "the service ended the answer: it is overloaded"),
    "error": (ServiceFailed, "the service ended the answer with an error"),
}

_BRIDGE = b',{"role":"assistant","content":"I see."}'


class Function(msgspec.Struct, gc=False):
    """Part of a call. ``arguments`` is a text that grows, or, with some servers, the whole object."""

    name: str | None = None
    arguments: Any = None


class CallPiece(msgspec.Struct, gc=False):
    """A piece of a call, identified by its index, its id, both or neither."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class ChatWords(msgspec.Struct, gc=False):
    text: str | None = None


class ChatPart(msgspec.Struct, gc=False):
    """A part of list content: text, or a thought, which is a text or a list of texts."""

    text: str | None = None
    thinking: str | list[ChatWords] | None = None

    @property
    def thought(self) -> str:
        if isinstance(self.thinking, list):
            return "".join(words.text or "" for words in self.thinking)
        return self.thinking or ""


class Delta(msgspec.Struct, gc=False):
    content: str | list[ChatPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: Function | None = None
    refusal: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct, gc=False):
    """Token usage in all spellings: servers report cached tokens in three places."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None

    def counters(self) -> Counters:
        """Return the counters. Servers include cached tokens in the prompt; they are subtracted here."""
        prompt, output = self.prompt_tokens or 0, self.completion_tokens or 0
        details = self.prompt_tokens_details or _PromptDetails()
        cached = details.cached_tokens or self.prompt_cache_hit_tokens or self.cached_tokens or 0
        written = details.cache_write_tokens or 0
        reasoning = (self.completion_tokens_details or _CompletionDetails()).reasoning_tokens or 0
        # If the total says so, reasoning is counted on top of the output.
        if reasoning and self.total_tokens == prompt + output + reasoning:
            output += reasoning
        return Counters(max(0, prompt - cached - written), output, cached, written, 0.0, reasoning=reasoning)


class ChatChoice(msgspec.Struct, gc=False):
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    usage: ChatUsage | None = None


class _Groq(msgspec.Struct, gc=False):
    usage: ChatUsage | None = None


class ChatChunk(msgspec.Struct, gc=False):
    """One event. ``error`` and ``message`` are decoded in `api_errors`."""

    choices: list[ChatChoice] | None = None
    usage: ChatUsage | None = None
    x_groq: _Groq | None = None
    error: Any = None
    message: Any = None


class ChatOpenCall:
    """A call in progress. It is announced when its name is known, with the arguments received before."""

    __slots__ = ("announced", "closed", "given_id", "id", "name", "pieces")

    def __init__(self, call_id: str, given_id: str) -> None:
        self.id = call_id
        self.given_id = given_id
        self.name = ""
        self.pieces: list[str] = []
        self.announced = False
        self.closed = False

    def take(self, name: str, text: str, events: list[StreamEvent]) -> None:
        """Add a piece."""
        self.name = self.name or name
        if text:
            self.pieces.append(text)
        if self.announced:
            if text:
                events.append(ToolUseArgs(self.id, text))
        elif self.name:
            self._announce(events)

    def close(self, events: list[StreamEvent]) -> None:
        """End the call."""
        if self.closed:
            return
        if not self.announced:
            self._announce(events)
        self.closed = True
        events.append(ToolUseEnd(self.id))

    def finished(self) -> CallBlock | None:
        """Return the call once it is closed."""
        return finished_call(self.id, self.name, "".join(self.pieces)) if self.closed else None

    def is_whole(self) -> bool:
        return is_object("".join(self.pieces))

    def _announce(self, events: list[StreamEvent]) -> None:
        self.announced = True
        events.append(ToolUseStart(self.id, self.name))
        if text := "".join(self.pieces):
            events.append(ToolUseArgs(self.id, text))


class OpenCalls:
    """All calls of a reply."""

    def __init__(self, ids: CallIds) -> None:
        self._ids = ids
        self._calls: list[ChatOpenCall] = []
        self._by_index: dict[int, ChatOpenCall] = {}
        self._by_id: dict[str, ChatOpenCall] = {}

    def take(self, piece: CallPiece, events: list[StreamEvent]) -> ChatOpenCall | None:
        """Add a piece of a call. Return the call if this began it."""
        function = piece.function or Function()
        name, text, given_id = function.name or "", _text(function.arguments), piece.id or ""
        known = self._known(piece.index, given_id, name, text)
        call = known or self._begin(piece.index, given_id)
        call.take(name, text, events)
        return call if known is None else None

    def close(self, events: list[StreamEvent]) -> None:
        """End all calls."""
        for call in self._calls:
            call.close(events)

    def _begin(self, index: int | None, given_id: str) -> ChatOpenCall:
        call = ChatOpenCall(self._ids.take(given_id), given_id)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        if given_id:
            self._by_id[given_id] = call
        return call

    def _known(self, index: int | None, given_id: str, name: str, text: str) -> ChatOpenCall | None:
        """Return the call that a piece belongs to; None if it begins another."""
        if index is not None:
            call = self._by_index.get(index)
        elif given_id:
            return self._by_id.get(given_id)
        else:
            call = self._calls[-1] if self._calls else None
        if call is None or call.closed:
            return None
        return None if _begins_another(call, given_id, name, text, numbered=index is not None) else call


def _begins_another(call: ChatOpenCall, given_id: str, name: str, text: str, *, numbered: bool) -> bool:
    """True if a piece that seems to belong to ``call`` begins another.

    Some servers number every call 0, some repeat name and id with every piece, and some send no ids.
    """
    if not name:
        return False
    if given_id and call.given_id:
        return given_id != call.given_id
    if not numbered and call.name and name != call.name:
        return True
    return text.lstrip()[:1] == "{" and call.is_whole()


def _text(arguments: Any) -> str:
    """Return arguments as text: most servers send text, some the object."""
    match arguments:
        case None:
            return ""
        case str():
            return arguments
        case _:
            return encode(arguments).decode()


class _At(enum.Enum):
    START = "before a tag, if one comes"
    THOUGHT = "between the tags"
    GAP = "after the thought, before the text"
    TEXT = "in the text"


class ThinkTags:
    """Separates thinking from text in a stream. Tags after the beginning are plain text."""

    def __init__(self) -> None:
        self._held = ""
        self._at = _At.START

    @property
    def is_over(self) -> bool:
        """True if no more thinking can follow."""
        return self._at is _At.TEXT

    def feed(self, text: str) -> tuple[str, str]:
        """Return the thinking and the text that are certain so far."""
        self._held += text
        if self._at is _At.START:
            self._begin()
        thought = self._take_thought() if self._at is _At.THOUGHT else ""
        if self._at is _At.GAP and (rest := self._held.lstrip("\n")):
            self._held, self._at = rest, _At.TEXT
        return thought, self._take(len(self._held)) if self._at is _At.TEXT else ""

    def finish(self) -> tuple[str, str]:
        """Return the rest at the end of the stream."""
        held = self._take(len(self._held))
        at, self._at = self._at, _At.TEXT
        return (held, "") if at is _At.THOUGHT else ("", held if at is _At.START else "")

    def _begin(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(_OPEN):
            self._held, self._at = begun[len(_OPEN) :], _At.THOUGHT
        elif not _OPEN.startswith(begun):
            self._at = _At.TEXT

    def _take_thought(self) -> str:
        thought, closed, rest = self._held.partition(_CLOSE)
        if closed:
            self._held, self._at = rest, _At.GAP
            return thought
        # Hold back a possible beginning of the tag.
        sizes = range(len(_CLOSE) - 1, 0, -1)
        keep = next((size for size in sizes if self._held.endswith(_CLOSE[:size])), 0)
        return self._take(len(self._held) - keep)

    def _take(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken


class _Whole:
    """One thought being assembled."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._growing: dict[str, list[str]] = {}

    def is_continued_by(self, piece: dict[str, Any]) -> bool:
        """True if a piece continues it: same type, same index, and no other id."""
        same = all(self._last.get(name) == piece.get(name) for name in ("type", "index"))
        return same and (piece.get("id") is None or self._last.get("id") in (None, piece["id"]))

    def take(self, piece: dict[str, Any]) -> None:
        for name, value in piece.items():
            if name in _GROWING and isinstance(value, str):
                self._growing.setdefault(name, []).append(value)
            elif value is not None or name not in self._last:
                self._last[name] = value

    def joined(self) -> dict[str, Any]:
        return {**self._last, **{name: "".join(texts) for name, texts in self._growing.items()}}


def thought_in(pieces: Iterable[dict[str, Any]]) -> str:
    """Return the readable text of some pieces."""
    return "".join(text for piece in pieces for name in _READABLE if isinstance(text := piece.get(name), str))


def sealed(pieces: Iterable[dict[str, Any]]) -> str:
    """Return all pieces of a reply, assembled, as one text; "" if there are none."""
    thoughts: list[_Whole] = []
    for piece in pieces:
        thought = next((known for known in reversed(thoughts) if known.is_continued_by(piece)), None)
        if thought is None:
            thought = _Whole()
            thoughts.append(thought)
        thought.take(piece)
    return msgspec.json.encode([thought.joined() for thought in thoughts]).decode() if thoughts else ""


def unsealed(text: str) -> list[Any]:
    """Return the pieces that `sealed` encoded; an empty list for another provider's signature."""
    try:
        return msgspec.json.decode(text, type=list[Any])
    except UNREADABLE:
        return []


_NOTHING = ChatChoice()
_reader: EventReader[ChatChunk] = EventReader(msgspec.json.Decoder(ChatChunk), kinds=("",))


class _OpenText:
    """Text or thinking in progress."""

    __slots__ = ("is_thought", "pieces")

    def __init__(self, *, is_thought: bool) -> None:
        self.is_thought = is_thought
        self.pieces: list[str] = []

    def finished(self) -> TranscriptBlock:
        text = "".join(self.pieces)
        return ThinkingBlock(text) if self.is_thought else TextBlock(text)


class ChatDecoder(Decoder):
    """Decoder of one streamed reply. With ``think_tags``, text may begin with thinking in tags."""

    def __init__(self, ids: CallIds, *, think_tags: bool = False) -> None:
        super().__init__()
        self._sse = SseParser()
        self._parts: list[_OpenText | ChatOpenCall] = []
        self._open: _OpenText | None = None
        self._calls = OpenCalls(ids)
        self._tags = ThinkTags() if think_tags else None
        self._details: list[dict[str, Any]] = []
        self._usage = ChatUsage()
        self._refused = False
        self._stop_reason = ""

    def finish(self) -> list[StreamEvent]:
        """End open calls. Raise StreamBroken if the reply is incomplete, or the error that ended it."""
        if not self._stop_reason:
            raise StreamBroken("the answer ended without its final event")
        if (failure := _FAILURES.get(self._stop_reason)) is not None:
            kind, text = failure
            raise kind(text, code=self._stop_reason)
        events: list[StreamEvent] = []
        self._calls.close(events)  # Some servers send calls after the finish reason.
        return events

    def reply(self) -> ModelReply:
        """Return the reply so far, without incomplete tool calls."""
        content = [block for part in self._parts if (block := part.finished()) is not None]
        if seal := sealed(self._details):
            at = next((index for index, block in enumerate(content) if isinstance(block, ThinkingBlock)), None)
            if at is None:
                content.insert(0, ThinkingBlock(signature=seal))
            else:
                content[at] = msgspec.structs.replace(content[at], signature=seal)
        return ModelReply(tuple(content), self._usage.counters(), _STOPS.get(self._stop_reason, "end_turn"))

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            chunk: ChatChunk | None
            try:
                chunk = _reader.decode(payload)
            except UNREADABLE:
                if payload.strip() == b"[DONE]":
                    self.is_complete = True
                    continue
                chunk = _reader.decode_with_care(payload)
            if chunk is None:
                continue
            if chunk.error or (chunk.message and not chunk.choices):
                raise error_from_body(payload)
            choice = chunk.choices[0] if chunk.choices else _NOTHING
            delta = choice.delta or choice.message
            said = self._open
            # Fast path, nearly all chunks: more of the current text and nothing else.
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
                # Some servers send empty chunks as keep-alive: those are no progress.
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
        """Add a delta. Return whether it contained anything."""
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
        """Record encrypted thinking; emit its readable text unless already emitted."""
        self._details += details
        if not is_told and (thought := thought_in(details)):
            self._append(thought, events, is_thought=True)

    def _take_parts(self, parts: list[ChatPart], events: list[StreamEvent]) -> None:
        for part in parts:
            if thought := part.thought:
                self._append(thought, events, is_thought=True)
            if part.text:
                self._say(part.text, events)

    def _say(self, text: str | list[ChatPart], events: list[StreamEvent]) -> None:
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
            self._open = _OpenText(is_thought=is_thought)
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
        # A refusal in words ends like any other answer; some servers send two finish reasons.
        self._stop_reason = self._stop_reason or ("refusal" if self._refused else reason)

    def _release_tags(self, events: list[StreamEvent]) -> None:
        """Emit the held text: no more can follow that makes it a tag."""
        if self._tags is not None:
            self._say_tagged(*self._tags.finish(), events)


class ChatCompletions:
    """The Chat Completions API with one vendor's quirks."""

    def __init__(self, *, base_url: str, origin: str, quirks: ChatQuirks) -> None:
        self._url = f"{api_base(base_url)}{COMPLETIONS}"
        self._origin = origin
        self._quirks = quirks
        self._call_ids = quirks.call_ids

    def request(self, request: ModelRequest, key: str) -> HttpRequest:
        """Return the HTTP request for one streamed reply. Without a key there is no authorization header."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return HttpRequest(url=self._url, headers=headers, body=self._body(request))

    def decoder(self, request: ModelRequest) -> Decoder:
        """Return a decoder for the reply to a request."""
        return ChatDecoder(CallIds(request.messages, request.encoded.calls), think_tags=self._quirks.think_tags)

    def _body(self, request: ModelRequest) -> bytes:
        """Return the request body, made of cached and newly encoded parts."""
        head: dict[str, Any] = {"model": request.model, "stream": True}
        head[self._quirks.max_tokens_field] = request.max_tokens
        if self._quirks.usage_on_request:
            head["stream_options"] = {"include_usage": True}
        head.update(self._reasoning(request))
        if request.tools:
            head["tools"] = [_tool(tool) for tool in request.tools]
        # Copies the conversation only once: a long one is a megabyte.
        return b"".join([encode(head)[:-1], b',"messages":[', *self._messages(request), b"]}"])

    def _reasoning(self, request: ModelRequest) -> Mapping[str, Any]:
        fitting = (levels for prefix, levels in self._quirks.reasoning if request.model.startswith(prefix))
        return next(fitting, {}).get(request.reasoning, {})

    def _messages(self, request: ModelRequest) -> Iterator[bytes | bytearray | memoryview]:
        messages = request.encoded.images.of(request.messages, self._quirks.images)
        text, state = request.encoded.text(messages, self._appended)
        # Every message begins with a comma except the first.
        if request.system:
            yield encode({"role": "system", "content": request.system})
            yield text
            yield _end(state)
        elif text:
            yield memoryview(text)[1:]
            yield _end(state)
        else:
            yield _end(state)[1:]

    def _appended(self, message: Message, state: str) -> tuple[bytes, str]:
        """Return the continuation of the message list after ``state``, and the new state.

        The state names the last message: ``assistant`` or ``tool``; or a user message that may still grow:
        ``parts`` if its list of parts is open, else ``text`` followed by its pending texts. "" at the beginning.
        """
        match message.role:
            case "assistant":
                return self._assistant(message, state)
            case "tool":
                return self._results(message, state)
            case _:
                return self._user(self._parts(message.content), state)

    def _user(self, parts: Sequence[Mapping[str, Any]], state: str) -> tuple[bytes, str]:
        """Merge consecutive user messages: many servers refuse a second one."""
        if not parts:
            return b"", state
        if state == "parts":
            return b"," + encode(parts)[1:-1], state
        bridge = _BRIDGE if state == "tool" and not self._quirks.user_after_tool else b""
        parts = [*_held(state), *parts]
        if all(part["type"] == "text" for part in parts):
            return bridge, "text" + encode([part["text"] for part in parts]).decode()
        return b'%s,{"role":"user","content":%s' % (bridge, encode(parts)[:-1]), "parts"

    def _assistant(self, message: Message, state: str) -> tuple[bytes, str]:
        blocks = own_blocks(message, self._origin)
        text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock) and block.text.strip())
        calls = [self._call(block) for block in blocks if isinstance(block, CallBlock)]
        if not text and not calls:
            return b"", state
        said: dict[str, Any] = {"role": "assistant", "content": text or None}
        said.update(self._thoughts([block for block in blocks if isinstance(block, ThinkingBlock)], calls))
        if calls:
            said["tool_calls"] = calls
        return _end(state) + b"," + encode(said), "assistant"

    def _thoughts(self, thoughts: Sequence[ThinkingBlock], calls: Sequence[Any]) -> Mapping[str, Any]:
        """Return thinking in the form the vendor requires; nothing if it requires none."""
        text = "".join(thought.text for thought in thoughts)
        match self._quirks.thoughts:
            case "reasoning_content" if calls:
                return {"reasoning_content": text if text.strip() else self._quirks.no_thought}
            case "reasoning_details" if thoughts:
                sealed = [item for thought in thoughts for item in unsealed(thought.signature)]
                return {"reasoning_details": sealed} if sealed else {"reasoning": text}
            case _:
                return {}

    def _call(self, call: CallBlock) -> dict[str, Any]:
        # Invalid arguments would make the service refuse the conversation; the result quotes them.
        function = {"name": acceptable_name(call.name), "arguments": encode(call.args or {}).decode()}
        return {"id": self._call_id(call.id), "type": "function", "function": function}

    def _call_id(self, call_id: str) -> str:
        return acceptable_id(call_id, self._call_ids)

    def _results(self, message: Message, state: str) -> tuple[bytes, str]:
        """Return one message for each result; their images follow in a user message: results cannot hold them."""
        pieces: list[bytes] = []
        images: list[dict[str, Any]] = []
        for block in message.content:
            if isinstance(block, ResultBlock):
                pieces.append(_end(state) + b"," + encode(self._result(block, images)))
                state = "tool"
        if images:
            shown = [{"type": "text", "text": "The images that the tools returned:"}, *images]
            piece, state = self._user(shown, state)
            pieces.append(piece)
        return b"".join(pieces), state

    def _result(self, block: ResultBlock, images: list[dict[str, Any]]) -> dict[str, Any]:
        texts = ["[error]"] if block.is_error else []
        for part in self._parts(block.content):
            if part["type"] == "text":
                texts.append(part["text"])
            else:
                texts.append("[an image: see below]")
                images.append(part)
        content = "\n".join(texts) or "(no output)"
        return {"role": "tool", "tool_call_id": self._call_id(block.call_id), "content": content}

    def _parts(self, content: Sequence[TranscriptBlock]) -> list[dict[str, Any]]:
        """Return text and images as the parts of a message, without blank text."""
        parts: list[dict[str, Any]] = []
        for block in content:
            if isinstance(block, ImageBlock):
                parts.append(self._image(block))
            elif isinstance(block, TextBlock) and block.text.strip():
                parts.append({"type": "text", "text": block.text})
        return parts

    def _image(self, block: ImageBlock) -> dict[str, Any]:
        if not fits(block, self._quirks.images):
            return {"type": "text", "text": omitted_image_text(block)}
        url = f"data:{block.mime_type};base64,{b64encode(block.data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}


def _held(state: str) -> list[dict[str, Any]]:
    """Return the user's pending texts."""
    texts = msgspec.json.decode(state[4:], type=list[str]) if state.startswith("text") else []
    return [{"type": "text", "text": text} for text in texts]


def _end(state: str) -> bytes:
    """Return the end of the user's message, if that is the open one."""
    if state == "parts":
        return b"]}"
    if not (held := _held(state)):
        return b""
    # A single text is sent as a string: servers without image support often do not accept lists.
    return b"," + encode({"role": "user", "content": held[0]["text"] if len(held) == 1 else held})


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
