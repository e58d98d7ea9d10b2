"""OpenAI Responses: request encoding and stream decoding."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2s
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec

from zot.config.vendors import ImageLimits
from zot.encoding import UNREADABLE, encode
from zot.errors import ContentRefused, ProviderError, StreamBroken
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
    text_of,
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

_BETWEEN_THOUGHTS = "\n\n"

_FAMILIES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(pattern), tuple(efforts.split()))
    for pattern, efforts in (
        (r"gpt-5[\d.]*-chat", ""),
        (r"gpt-5-pro", "high"),
        (r"gpt-5[\d.]*-pro", "medium high"),
        (r"gpt-5[\d.]*-codex-mini", "medium high"),
        (r"gpt-5[\d.]*-codex", "low medium high"),
        (r"gpt-5\.\d", "none low medium high"),
        (r"gpt-5", "minimal low medium high"),
        (r"o\d|codex-mini", "low medium high"),
        (r"gpt-(3|4)|chatgpt", ""),
    )
)
#: Ascending.
_EFFORTS = ("none", "minimal", "low", "medium", "high")
#: The API accepts at most 20 MB of base64, 500 images, and 50 MB in all.
_IMAGES = ImageLimits(15_000_000, 250, 30_000_000)
_MIN_OUTPUT_TOKENS = 16


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class ResponsesUsage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class Fault(msgspec.Struct, gc=False):
    code: str | int | None = None
    type: str | None = None
    message: str | None = None


class Shortfall(msgspec.Struct, gc=False):
    reason: str | None = None


class ResponseObject(msgspec.Struct):
    """The whole reply. Its output is read only if nothing of it was streamed."""

    usage: ResponsesUsage | None = None
    error: Fault | None = None
    incomplete_details: Shortfall | None = None
    output: list[msgspec.Raw] | None = None


class OutputTextDelta(msgspec.Struct, tag="response.output_text.delta", gc=False):
    output_index: int
    delta: str
    content_index: int = 0


class RefusalDelta(msgspec.Struct, tag="response.refusal.delta", gc=False):
    output_index: int
    delta: str
    content_index: int = 0


class ThoughtDelta(msgspec.Struct, tag="response.reasoning_text.delta", gc=False):
    output_index: int
    delta: str
    content_index: int = 0


class SummaryDelta(msgspec.Struct, tag="response.reasoning_summary_text.delta", gc=False):
    output_index: int
    delta: str
    summary_index: int = 0


class ArgumentsDelta(msgspec.Struct, tag="response.function_call_arguments.delta", gc=False):
    output_index: int
    delta: str


class TextDone(msgspec.Struct, tag="response.output_text.done", gc=False):
    output_index: int
    text: str
    content_index: int = 0


class RefusalDone(msgspec.Struct, tag="response.refusal.done", gc=False):
    output_index: int
    refusal: str
    content_index: int = 0


class ThoughtDone(msgspec.Struct, tag="response.reasoning_text.done", gc=False):
    output_index: int
    text: str
    content_index: int = 0


class SummaryDone(msgspec.Struct, tag="response.reasoning_summary_text.done", gc=False):
    output_index: int
    text: str
    summary_index: int = 0


class ArgumentsDone(msgspec.Struct, tag="response.function_call_arguments.done", gc=False):
    output_index: int
    arguments: str


class ItemAdded(msgspec.Struct, tag="response.output_item.added", gc=False):
    output_index: int
    item: msgspec.Raw


class ItemDone(msgspec.Struct, tag="response.output_item.done", gc=False):
    output_index: int
    item: msgspec.Raw


class Created(msgspec.Struct, tag="response.created"):
    response: ResponseObject


class Queued(msgspec.Struct, tag="response.queued"):
    response: ResponseObject


class InProgress(msgspec.Struct, tag="response.in_progress"):
    response: ResponseObject


class Completed(msgspec.Struct, tag="response.completed"):
    response: ResponseObject


class Incomplete(msgspec.Struct, tag="response.incomplete"):
    response: ResponseObject


class Failed(msgspec.Struct, tag="response.failed"):
    response: ResponseObject


class ResponsesError(msgspec.Struct, tag="error", gc=False):
    """Documented as flat, but sent with the same fields inside ``error``."""

    code: str | int | None = None
    message: str | None = None
    error: Fault | None = None


class KeepAlive(msgspec.Struct, tag="keepalive", gc=False):
    pass


class ResponsesPing(msgspec.Struct, tag="ping", gc=False):
    pass


class _ContentAdded(msgspec.Struct, tag="response.content_part.added", gc=False):
    pass


class _ContentDone(msgspec.Struct, tag="response.content_part.done", gc=False):
    pass


class _SummaryPartAdded(msgspec.Struct, tag="response.reasoning_summary_part.added", gc=False):
    pass


class _SummaryPartDone(msgspec.Struct, tag="response.reasoning_summary_part.done", gc=False):
    pass


Frame: TypeAlias = (
    OutputTextDelta | RefusalDelta | ThoughtDelta | SummaryDelta | ArgumentsDelta
    | TextDone | RefusalDone | ThoughtDone | SummaryDone | ArgumentsDone
    | ItemAdded | ItemDone | Created | Queued | InProgress | Completed | Incomplete
    | Failed | ResponsesError | KeepAlive | ResponsesPing
    | _ContentAdded | _ContentDone | _SummaryPartAdded | _SummaryPartDone
)  # fmt: skip


class ResponsesContent(msgspec.Struct, gc=False):
    """A part of a message or thought; its fields depend on its type."""

    text: str | None = None
    refusal: str | None = None


class MessageItem(msgspec.Struct, tag="message"):
    content: list[ResponsesContent] | None = None


class ReasoningItem(msgspec.Struct, tag="reasoning"):
    id: str | None = None
    summary: list[ResponsesContent] | None = None
    content: list[ResponsesContent] | None = None
    encrypted_content: str | None = None


class CallItem(msgspec.Struct, tag="function_call"):
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    status: str | None = None


Item: TypeAlias = MessageItem | ReasoningItem | CallItem


def _tags(union: Any) -> list[str]:
    return [cast("str", kind.__struct_config__.tag) for kind in get_args(union)]


frames: EventReader[Frame] = EventReader(msgspec.json.Decoder(Frame), kinds=_tags(Frame))
_items: EventReader[Item] = EventReader(msgspec.json.Decoder(Item), kinds=_tags(Item))


def read_item(raw: msgspec.Raw) -> Item | None:
    """Return an item; None if its kind is unknown. Raise StreamBroken if it violates its own type."""
    try:
        return _items.decode(raw)
    except UNREADABLE:
        return _items.decode_with_care(bytes(raw))


class ResponsesPart:
    """A text in progress."""

    __slots__ = ("_pieces", "_whole", "is_refusal")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._whole = False
        self.is_refusal = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def has_begun(self) -> bool:
        return bool(self._pieces)

    def add(self, piece: str) -> str:
        """Add a piece and return its new text: none if the whole text is known already."""
        if self._whole or not piece:
            return ""
        self._pieces.append(piece)
        return piece

    def complete(self, whole: str) -> str:
        """Take the whole text and return its missing end. If it differs from the pieces, the whole text wins."""
        if self._whole:
            return ""
        known, missing = self.text, ""
        if whole.startswith(known):
            missing = self.add(whole[len(known) :])
        elif whole:
            self._pieces = [whole]
        self._whole = True
        return missing


class Parts(dict[int, ResponsesPart]):
    """Parts by index, created on first use."""

    def __missing__(self, index: int) -> ResponsesPart:
        part = self[index] = ResponsesPart()
        return part

    def texts(self) -> list[str]:
        """Return their texts in order, without empty ones."""
        return [part.text for _, part in sorted(self.items()) if part.has_begun]


class OpenMessage:
    """A message in progress. A refusal is text too."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts = Parts()

    def say(self, index: int, piece: str, events: list[StreamEvent]) -> None:
        if text := self.parts[index].add(piece):
            events.append(TextDelta(text))

    def said(self, index: int, whole: str, events: list[StreamEvent]) -> None:
        if text := self.parts[index].complete(whole):
            events.append(TextDelta(text))

    def close(self, item: MessageItem, events: list[StreamEvent]) -> None:
        for index, content in enumerate(item.content or ()):
            if content.refusal is not None:
                self.parts[index].is_refusal = True
            self.said(index, content.text or content.refusal or "", events)

    @property
    def is_refusal(self) -> bool:
        """True if it is only a refusal."""
        parts = [part for part in self.parts.values() if part.has_begun]
        return bool(parts) and all(part.is_refusal for part in parts)

    def blocks(self) -> list[TextBlock]:
        return [TextBlock(text) for text in self.parts.texts()]


class OpenThought:
    """Thinking in progress: a summary in parts, the text itself, or only its encrypted form."""

    __slots__ = ("_id", "_seal", "content", "summary")

    def __init__(self) -> None:
        self.summary = Parts()
        self.content = Parts()
        self._id = ""
        self._seal = ""

    def think(self, part: ResponsesPart, piece: str, events: list[StreamEvent]) -> None:
        between = self._between(part)
        if text := part.add(piece):
            events += [*between, ThinkingDelta(text)]

    def thought(self, part: ResponsesPart, whole: str, events: list[StreamEvent]) -> None:
        between = self._between(part)
        if text := part.complete(whole):
            events += [*between, ThinkingDelta(text)]

    def close(self, item: ReasoningItem, events: list[StreamEvent]) -> None:
        for parts, contents in ((self.summary, item.summary), (self.content, item.content)):
            for index, content in enumerate(contents or ()):
                self.thought(parts[index], content.text or "", events)
        # Only when done: an earlier encrypted form may be incomplete.
        self._id, self._seal = item.id or self._id, item.encrypted_content or self._seal

    def _between(self, part: ResponsesPart) -> list[StreamEvent]:
        """Return the separator before this part, if another part precedes it."""
        if part.has_begun or not any(other.has_begun for other in (*self.summary.values(), *self.content.values())):
            return []
        return [ThinkingDelta(_BETWEEN_THOUGHTS)]

    def blocks(self) -> list[ThinkingBlock]:
        text = _BETWEEN_THOUGHTS.join((*self.summary.texts(), *self.content.texts()))
        return [ThinkingBlock(text, self._seal, id=self._id)] if text or self._seal else []


class ResponsesOpenCall:
    """A call in progress. Its arguments are held until its name is known."""

    __slots__ = ("_id", "_item_args", "_name", "_state", "_written")

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._item_args: str | dict[str, Any] = ""
        self._written = ResponsesPart()
        self._state: Literal["unnamed", "open", "whole", "cut off"] = "unnamed"

    def start(self, item: CallItem, ids: CallIds, events: list[StreamEvent]) -> None:
        if self._state != "unnamed":
            return
        self._state = "open"
        self._id, self._name = ids.take(item.call_id or ""), item.name or ""
        self._item_args = item.arguments or ""
        events.append(ToolUseStart(self._id, self._name))
        self._show(self._written.text, events)

    def write(self, piece: str, events: list[StreamEvent]) -> None:
        self._show(self._written.add(piece), events)

    def written(self, whole: str, events: list[StreamEvent]) -> None:
        self._show(self._written.complete(whole), events)

    def close(self, item: CallItem, ids: CallIds, events: list[StreamEvent]) -> None:
        self.start(item, ids, events)
        self._item_args = item.arguments or self._item_args
        if item.status == "incomplete":
            self._state = "cut off"  # Cut off at the length limit, even if it looks complete.
        self.end(events)

    def end(self, events: list[StreamEvent]) -> None:
        """End the call. Arguments that were sent only with the item count too."""
        if self._state == "open":
            if isinstance(self._item_args, str):
                self.written(self._item_args, events)
            self._state = "whole"
            events.append(ToolUseEnd(self._id))

    def _show(self, text: str, events: list[StreamEvent]) -> None:
        if text and self._state != "unnamed":
            events.append(ToolUseArgs(self._id, text))

    def blocks(self) -> list[CallBlock]:
        if self._state != "whole":
            return []
        given = self._item_args if isinstance(self._item_args, dict) else None
        return [finished_call(self._id, self._name, self._written.text, given=given)]


_Open: TypeAlias = OpenMessage | OpenThought | ResponsesOpenCall
_O = TypeVar("_O", OpenMessage, OpenThought, ResponsesOpenCall)


class ResponsesDecoder(Decoder):
    """Decoder of one streamed reply."""

    def __init__(self, ids: CallIds) -> None:
        super().__init__()
        self._sse = SseParser()
        self._open: dict[int, _Open] = {}
        self._item: int | None = None
        self._part: int | None = None
        self._say = ResponsesPart().add
        self._call_ids = ids
        self._usage = ResponsesUsage()
        self._begun = False
        self._ending: Literal["completed", "incomplete"] | None = None
        self._shortfall = ""

    def finish(self) -> list[StreamEvent]:
        """Raise StreamBroken if the reply is incomplete, ContentRefused if the model refused."""
        if self._ending is None:
            raise StreamBroken("the answer ended without its final event")
        is_filtered = self._shortfall == "content_filter"
        if is_filtered or self._is_refusal():
            code = self._shortfall if is_filtered else "refusal"
            raise ContentRefused("the model refused to answer this", code=code)
        return []

    def reply(self) -> ModelReply:
        """Return the reply so far, without incomplete tool calls."""
        content = tuple(block for _, item in sorted(self._open.items()) for block in item.blocks())
        stop: Stop = "tool_use" if any(isinstance(block, CallBlock) for block in content) else "end_turn"
        return ModelReply(content, _counters(self._usage), "length" if self._ending == "incomplete" else stop)

    def _is_refusal(self) -> bool:
        """True if the reply is only a refusal."""
        acts = [item for item in self._open.values() if not isinstance(item, OpenThought) and item.blocks()]
        return bool(acts) and all(isinstance(item, OpenMessage) and item.is_refusal for item in acts)

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            frame: Frame | None
            try:
                frame = frames.decode(payload)
            except UNREADABLE:
                if payload == b"[DONE]":  # Some servers end every stream with it.
                    continue
                frame = frames.decode_with_care(payload)
            if type(frame) is OutputTextDelta:
                if frame.output_index != self._item or frame.content_index != self._part:
                    self._turn_to(frame.output_index, frame.content_index)
                if text := self._say(frame.delta):
                    events.append(TextDelta(text))
            elif frame is not None:
                if self._is_idle(frame):
                    continue
                self._take(frame, events)
            self.progress += 1

    def _turn_to(self, item: int, part: int) -> None:
        """Select the text that a delta belongs to; the next delta nearly always belongs there too."""
        self._say = self._at(item, OpenMessage).parts[part].add
        self._item, self._part = item, part

    def _is_idle(self, frame: Frame) -> bool:
        """True for keep-alive events. The first sign that work has begun is progress."""
        if isinstance(frame, InProgress | Queued):
            self._count(frame.response)
            was_begun, self._begun = self._begun, True
            return was_begun
        return isinstance(frame, KeepAlive | ResponsesPing)

    def _take(self, frame: Frame, events: list[StreamEvent]) -> None:
        match frame:
            case ArgumentsDelta():
                self._at(frame.output_index, ResponsesOpenCall).write(frame.delta, events)
            case SummaryDelta():
                thought = self._at(frame.output_index, OpenThought)
                thought.think(thought.summary[frame.summary_index], frame.delta, events)
            case ThoughtDelta():
                thought = self._at(frame.output_index, OpenThought)
                thought.think(thought.content[frame.content_index], frame.delta, events)
            case RefusalDelta():
                message = self._at(frame.output_index, OpenMessage)
                message.parts[frame.content_index].is_refusal = True
                message.say(frame.content_index, frame.delta, events)
            case ItemAdded():
                self._begin(frame.output_index, read_item(frame.item), events)
            case ItemDone():
                self._close(frame.output_index, read_item(frame.item), events)
            case Created() | Completed() | Incomplete() | Failed() | ResponsesError():
                self._turn(frame, events)
            case _:
                self._take_whole(frame, events)

    def _take_whole(self, frame: Frame, events: list[StreamEvent]) -> None:
        """Add an event that carries a whole part."""
        match frame:
            case ArgumentsDone():
                self._at(frame.output_index, ResponsesOpenCall).written(frame.arguments, events)
            case SummaryDone():
                thought = self._at(frame.output_index, OpenThought)
                thought.thought(thought.summary[frame.summary_index], frame.text, events)
            case ThoughtDone():
                thought = self._at(frame.output_index, OpenThought)
                thought.thought(thought.content[frame.content_index], frame.text, events)
            case TextDone():
                self._at(frame.output_index, OpenMessage).said(frame.content_index, frame.text, events)
            case RefusalDone():
                message = self._at(frame.output_index, OpenMessage)
                message.parts[frame.content_index].is_refusal = True
                message.said(frame.content_index, frame.refusal, events)
            case _:
                pass

    def _turn(
        self, frame: Created | Completed | Incomplete | Failed | ResponsesError, events: list[StreamEvent]
    ) -> None:
        """Process an event about the whole reply. Raise the error it reports."""
        if isinstance(frame, ResponsesError):
            raise _failure(frame.error or Fault(frame.code, None, frame.message))
        self._count(frame.response)
        match frame:
            case Completed():
                self._ending = "completed"
                self.is_complete = True
                self._complete(frame.response, events)
            case Incomplete(response=ResponseObject(incomplete_details=details)):
                self._ending = "incomplete"
                self.is_complete = True
                self._shortfall = (details.reason if details else None) or ""
            case Failed():
                raise _failure(frame.response.error or Fault())
            case _:
                pass

    def _complete(self, response: ResponseObject, events: list[StreamEvent]) -> None:
        """End open calls. Read a reply that was not streamed from the last event."""
        if not self._open:
            for index, raw in enumerate(response.output or ()):
                self._close(index, read_item(raw), events)
        for item in self._open.values():
            if isinstance(item, ResponsesOpenCall):
                item.end(events)

    def _at(self, index: int, kind: type[_O]) -> _O:
        """Return the item at an index, creating it if it was not announced."""
        item = self._open.get(index)
        if type(item) is kind:
            return item
        if item is not None:
            raise StreamBroken("the service mixed up the items of its answer")
        made = self._open[index] = kind()
        return made

    def _begin(self, index: int, item: Item | None, events: list[StreamEvent]) -> None:
        match item:
            case CallItem():
                self._at(index, ResponsesOpenCall).start(item, self._call_ids, events)
            case MessageItem():
                self._at(index, OpenMessage)
            case ReasoningItem():
                self._at(index, OpenThought)
            case None:
                pass

    def _close(self, index: int, item: Item | None, events: list[StreamEvent]) -> None:
        match item:
            case CallItem():
                self._at(index, ResponsesOpenCall).close(item, self._call_ids, events)
            case MessageItem():
                self._at(index, OpenMessage).close(item, events)
            case ReasoningItem():
                self._at(index, OpenThought).close(item, events)
            case None:
                pass

    def _count(self, response: ResponseObject) -> None:
        # Usage may be reported twice; the last one wins.
        self._usage = response.usage or self._usage


def _counters(usage: ResponsesUsage) -> Counters:
    """Return the counters; the service includes cached tokens in its input."""
    given = usage.input_tokens_details or InputDetails()
    made = usage.output_tokens_details or OutputDetails()
    read, written = given.cached_tokens or 0, given.cache_write_tokens or 0
    fresh = max(0, (usage.input_tokens or 0) - read - written)
    return Counters(fresh, usage.output_tokens or 0, read, written, 0.0, reasoning=made.reasoning_tokens or 0)


def _failure(fault: Fault) -> ProviderError:
    code = str(fault.code or fault.type or "server_error")
    return stream_error(code, fault.message or "the service gave no reason")


class OpenAIResponses:
    """The Responses API, at OpenAI's address or a compatible one."""

    def __init__(self, *, base_url: str, origin: str) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/responses"
        self._appended = partial(_appended, origin)

    def request(self, request: ModelRequest, key: str) -> HttpRequest:
        """Return the HTTP request for one streamed reply."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return HttpRequest(url=self._url, headers=headers, body=self._body(request))

    def decoder(self, request: ModelRequest) -> Decoder:
        """Return a decoder for the reply to a request."""
        return ResponsesDecoder(CallIds(request.messages, request.encoded.calls))

    def _body(self, request: ModelRequest) -> bytes:
        """Return the request body, made of cached and newly encoded parts."""
        head: dict[str, Any] = {
            "model": request.model,
            "stream": True,
            "store": False,
            "max_output_tokens": max(request.max_tokens, _MIN_OUTPUT_TOKENS),
            "prompt_cache_key": _cache_key(request),
            **_reasoning(request.model, request.reasoning),
        }
        if request.system:
            head["instructions"] = request.system
        if request.tools:
            head["tools"] = [_tool(tool) for tool in request.tools]
            head["parallel_tool_calls"] = True
        messages = request.encoded.images.of(request.messages, _IMAGES)
        items, _ = request.encoded.text(messages, self._appended)
        # Copies the conversation only once: a long one is a megabyte.
        return b"".join([encode(head)[:-1], b',"input":[', items, b"]}"])


def _cache_key(request: ModelRequest) -> str:
    """Return a key for the conversation: requests that share it are routed to the same prompt cache.

    Derived from its beginning, so it is the same in every run and after a restart.
    """
    opening = text_of(request.messages[0].content) if request.messages else ""
    seed = f"{request.system}\0{opening}".encode(errors="replace")
    return f"zot-{blake2s(seed, digest_size=16).hexdigest()}"


def _reasoning(model: str, wanted: Reasoning) -> Mapping[str, Any]:
    """Return the reasoning fields; none for models that do not reason."""
    effort = _effort(model, wanted)
    if effort is None:
        return {}
    shown = {} if wanted == "off" else {"summary": "auto"}
    return {"reasoning": {"effort": effort, **shown}, "include": ["reasoning.encrypted_content"]}


def _effort(model: str, wanted: Reasoning) -> str | None:
    """Return the model's least effort that meets the wanted level, or None if it has none.

    Each family refuses the efforts it does not have. An unknown model gets the wanted level.
    """
    name = model.rpartition("/")[2]
    offered = next((efforts for pattern, efforts in _FAMILIES if pattern.match(name)), None)
    if offered is None:
        return None if wanted == "off" else wanted
    enough = _EFFORTS.index("none" if wanted == "off" else wanted)
    return next((effort for effort in offered if _EFFORTS.index(effort) >= enough), None)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    # Strict mode would refuse schemas with optional properties, and ours have them.
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": False,
    }


def _appended(origin: str, message: Message, before: str) -> tuple[bytes, str]:
    """Return the items of a message, encoded, and the number of items after it. ``before`` is the number before."""
    count = int(before or 0)
    items = [*_input_items(message, own_blocks(message, origin))]
    for number, item in enumerate(items, count):
        if item.get("role") == "assistant":
            # The API requires unique ids. Its own id would make it require the thought before the message.
            item["id"] = f"msg_{number}"
    if not items:
        return b"", before
    return (b"," if count else b"") + encode(items)[1:-1], str(count + len(items))


def _input_items(message: Message, content: Sequence[TranscriptBlock]) -> Iterator[dict[str, Any]]:
    match message.role:
        case "assistant":
            yield from _assistant_items(content)
        case "tool":
            yield from (_result(block) for block in content if isinstance(block, ResultBlock))
        case "user":
            if parts := [*_parts(content)]:
                yield {"type": "message", "role": "user", "content": parts}


def _assistant_items(content: Iterable[TranscriptBlock]) -> Iterator[dict[str, Any]]:
    """Yield the items of a reply. Thinking is held until an item follows: the API refuses it otherwise."""
    thoughts: list[dict[str, Any]] = []
    for block in content:
        if isinstance(block, ThinkingBlock):
            thoughts += _thought(block)
        elif (item := _output_item(block)) is not None:
            yield from thoughts
            yield item
            thoughts = []


def _thought(block: ThinkingBlock) -> Iterator[dict[str, Any]]:
    # Without its encrypted content the service would look up the id, and nothing is stored. An aborted thought has
    # none.
    if block.id and block.signature:
        summary = [{"type": "summary_text", "text": block.text}] if block.text else []
        yield {"type": "reasoning", "id": block.id, "summary": summary, "encrypted_content": block.signature}


def _output_item(block: TranscriptBlock) -> dict[str, Any] | None:
    match block:
        case TextBlock(text=text) if text.strip():
            part = {"type": "output_text", "text": text, "annotations": []}
            return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        case CallBlock(id=id_, name=name, args=args):
            # No item id: with it, the service would require the thought before the call.
            arguments = encode(args or {}).decode()
            ident, named = acceptable_id(id_), acceptable_name(name)
            return {"type": "function_call", "call_id": ident, "name": named, "arguments": arguments}
        case _:
            return None


def _result(block: ResultBlock) -> dict[str, Any]:
    parts = [*_parts(block.content)] or [{"type": "input_text", "text": "(no output)"}]
    if block.is_error:  # The API has no error flag.
        parts.insert(0, {"type": "input_text", "text": "[error]"})
    is_text = all(part["type"] == "input_text" for part in parts)
    output = "\n".join(part["text"] for part in parts) if is_text else parts
    return {"type": "function_call_output", "call_id": acceptable_id(block.call_id), "output": output}


def _parts(content: Iterable[TranscriptBlock]) -> Iterator[dict[str, Any]]:
    for block in content:
        match block:
            case TextBlock(text=text) if text.strip():
                yield {"type": "input_text", "text": text}
            case ImageBlock():
                yield _image(block)
            case _:
                pass


def _image(block: ImageBlock) -> dict[str, Any]:
    if not fits(block, _IMAGES):
        return {"type": "input_text", "text": omitted_image_text(block)}
    url = f"data:{block.mime_type};base64,{b64encode(block.data).decode()}"
    return {"type": "input_image", "detail": "auto", "image_url": url}
