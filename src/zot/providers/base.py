"""Provider interfaces: requests, replies, transports, decoders, and the images a model accepts."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from zot.config.vendors import ImageLimits
from zot.errors import ProviderError
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
    begins_with,
)
from zot.providers.models import Catalogue as Catalogue  # noqa: PLC0414
from zot.providers.models import Model as Model  # noqa: PLC0414 -- re-exported: the agent imports no other module of ours
from zot.providers.models import Price as Price  # noqa: PLC0414

_OUTDATED = TextBlock("[an image was here; it is no longer shown, because there are too many newer ones]")


def fits(image: ImageBlock, limits: ImageLimits) -> bool:
    """True if an API with these limits accepts the image.

    An image it refuses would make this and every later request fail.
    """
    return image.mime_type in limits.types and 0 < len(image.data) <= limits.max_bytes


def omitted_image_text(image: ImageBlock) -> str:
    """Return the text that replaces an image for the model."""
    return f"[an image was left out: {image.mime_type or 'unknown type'}, {len(image.data)} bytes]"


class ImageLimiter:
    """Limits a conversation to the images an API accepts in one request.

    The oldest are dropped first, many at a time, so that successive requests share a cacheable prefix. The number
    depends on the conversation alone, so it is the same after a restart.
    """

    def __init__(self) -> None:
        self._limits: ImageLimits | None = None
        self._seen: list[Message] = []
        self._sizes: list[int] = []
        self._gone = 0
        self._thinned: list[Message] = []

    def of(self, messages: Sequence[Message], limits: ImageLimits) -> Sequence[Message]:
        """Return the messages with as many images as ``limits`` allow; unchanged messages are the same objects."""
        self._look_at(messages, limits)
        gone = _too_many(self._sizes, limits)
        if not gone:
            return messages
        if gone != self._gone:
            self._gone, self._thinned = gone, [*_thinned(messages, gone, limits)]
        return [*self._thinned, *messages[len(self._thinned) :]]

    def _look_at(self, messages: Sequence[Message], limits: ImageLimits) -> None:
        """Record the sizes of new images; of all, if ``messages`` does not extend the last ones."""
        seen = self._seen
        if limits != self._limits or not begins_with(messages, seen):
            self._limits, self._sizes, self._gone = limits, [], 0
            seen.clear()
        new = messages[len(seen) :]
        self._sizes += (len(image.data) for message in new for image in _images(message.content) if fits(image, limits))
        seen += new


def _images(content: Iterable[TranscriptBlock]) -> Iterator[ImageBlock]:
    for block in content:
        if isinstance(block, ImageBlock):
            yield block
        elif isinstance(block, ResultBlock):
            yield from _images(block.content)


def _too_many(sizes: Sequence[int], limits: ImageLimits) -> int:
    """Return how many of the oldest images to drop: by count and by size, in steps of half a limit."""
    by_count = _stepped(len(sizes) - limits.max_count, limits.max_count)
    to_free, by_size = _stepped(sum(sizes) - limits.max_total_bytes, limits.max_total_bytes), 0
    while to_free > 0:
        to_free -= sizes[by_size]
        by_size += 1
    return min(max(by_count, by_size), len(sizes))


def _stepped(excess: int, limit: int) -> int:
    step = max(1, limit // 2)
    return -(-excess // step) * step if excess > 0 else 0


def _thinned(messages: Sequence[Message], gone: int, limits: ImageLimits) -> Iterator[Message]:
    """Yield the messages up to the last dropped image."""
    left = gone

    def without(content: Iterable[TranscriptBlock]) -> Iterator[TranscriptBlock]:
        nonlocal left
        for block in content:
            if isinstance(block, ResultBlock):
                yield msgspec.structs.replace(block, content=tuple(without(block.content)))
            elif left and isinstance(block, ImageBlock) and fits(block, limits):
                left -= 1
                yield _OUTDATED
            else:
                yield block

    for message in messages:
        if not left:
            return
        before, content = left, tuple(without(message.content))
        yield message if left == before else msgspec.structs.replace(message, content=content)


class CallIdCache:
    """Cache of the call ids in a growing conversation; a changed one is scanned again."""

    def __init__(self) -> None:
        self._seen: list[Message] = []
        self._ids: set[str] = set()

    def of(self, messages: Sequence[Message]) -> set[str]:
        """Return the ids of the calls in ``messages``, as a set of the caller's own."""
        if not begins_with(messages, self._seen):
            self._seen.clear()
            self._ids.clear()
        for message in messages[len(self._seen) :]:
            self._ids.update(block.id for block in message.content if isinstance(block, CallBlock))
            self._seen.append(message)
        return set(self._ids)


Reasoning: TypeAlias = Literal["off", "low", "medium", "high"]

#: Stream decoders produce the events that clients receive: one object per delta, from socket to wire.
StreamEvent: TypeAlias = TextDelta | ThinkingDelta | ToolUseStart | ToolUseArgs | ToolUseEnd


class ModelRequest(msgspec.Struct, frozen=True):
    """One model call. ``encoded`` caches the wire form of messages already sent."""

    model: str
    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...]
    max_tokens: int
    reasoning: Reasoning
    encoded: EncodedMessages


class ModelReply(msgspec.Struct, frozen=True):
    """The result of a model call: complete, or as far as received. ``counters`` has no cost yet.

    ``origin`` is the provider.
    """

    content: tuple[TranscriptBlock, ...]
    counters: Counters
    stop: Stop
    origin: str = ""


class ReplyStream(Protocol):
    """One model call in progress."""

    async def open(self) -> None:
        """Send the request and wait for the answer to begin. Raise ProviderError."""

    async def read(self) -> list[StreamEvent]:
        """Return the next events, in order; an empty list at the end. Raise ProviderError."""

    def reply(self) -> ModelReply:
        """Return the reply received: complete after the end; before it, without incomplete tool calls."""

    def close(self) -> None:
        """Stop at once and release the connection. Idempotent, at any time."""


class Provider(Protocol):
    """A model service as the agent sees it."""

    @property
    def name(self) -> str: ...

    def call(self, request: ModelRequest, on_retry: OnRetry) -> ReplyStream:
        """Prepare one model call; nothing is sent before `ReplyStream.open`."""

    async def close(self) -> None:
        """Close idle connections."""


class OnRetry(Protocol):
    """Callback for a failed attempt, with the delay of the next."""

    def __call__(self, reason: str, *, attempt: int, delay_s: float) -> None: ...


#: Encodes a message after one of the given role; returns the text to append and the role open after it.
EncodeMessage: TypeAlias = Callable[[Message, str], tuple[bytes, str]]


class EncodedMessages:
    """The wire form of a conversation, each message encoded once.

    A conversation grows at its end, so a request costs only its new messages. A transcript that was cleared,
    compacted or replaced is encoded again from where it differs.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._after: list[tuple[int, str]] = []
        self._text = bytearray()
        self._encode: EncodeMessage | None = None
        #: Images still sent, and ids of its calls.
        self.images = ImageLimiter()
        self.calls = CallIdCache()

    def text(self, messages: Sequence[Message], encode: EncodeMessage) -> tuple[bytearray, str]:
        """Return the joined encoding of the messages and the role left open. The caller must copy the text."""
        if encode != self._encode:
            self._cut(0)
            self._encode = encode
        self._cut(common_prefix(self._messages, messages))
        role = self._after[-1][1] if self._after else ""
        for message in messages[len(self._messages) :]:
            piece, role = encode(message, role)
            self._text += piece
            self._messages.append(message)
            self._after.append((len(self._text), role))
        return self._text, role

    def _cut(self, count: int) -> None:
        """Forget all but the first ``count`` messages."""
        if count < len(self._messages):
            del self._messages[count:], self._after[count:]
            del self._text[self._after[-1][0] if self._after else 0 :]


def common_prefix(known: list[Message], messages: Sequence[Message]) -> int:
    """Return the number of leading messages that are known already."""
    if begins_with(messages, known):
        return len(known)  # The usual case; the rest is for a changed conversation.
    pairs = enumerate(zip(known, messages, strict=False))
    return next((index for index, (ours, theirs) in pairs if ours is not theirs), min(len(known), len(messages)))


def own_blocks(message: Message, origin: str) -> tuple[TranscriptBlock, ...]:
    """Return the blocks of a message to send to ``origin``: without encrypted thinking of other providers."""
    if message.origin in ("", origin):
        return message.content
    return tuple(
        msgspec.structs.replace(block, signature="") if isinstance(block, CallBlock) and block.signature else block
        for block in message.content
        if not isinstance(block, ThinkingBlock)
    )


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request. Header names are lower case; ``secret_headers`` must never be recorded."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"
    secret_headers: frozenset[str] = frozenset({"authorization", "x-api-key", "x-goog-api-key", "proxy-authorization"})

    def secrets(self) -> tuple[str, ...]:
        """Return the secrets to mask: services quote the key they refuse."""
        return tuple(self.headers.get(name, "").removeprefix("Bearer ") for name in self.secret_headers)

    def __repr__(self) -> str:
        """Show method and size only: headers and body contain secrets."""
        return f"HttpRequest({self.method}, {len(self.body)} bytes)"


class Deadlines(msgspec.Struct, frozen=True):
    """Timeouts for a model service, in seconds."""

    connect_s: float = 10.0
    headers_s: float = 60.0
    silence_s: float = 120.0


class HttpResponse(Protocol):
    """A response whose head has arrived."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are lower case; repeated headers are joined with ``, ``."""

    async def read(self) -> bytes:
        """Return the next bytes of the body; b"" at its proper end. Raise StreamBroken if it was cut short."""

    def close(self) -> None:
        """Release the response. The connection is reused only if the body was read to its end."""


class Transport(Protocol):
    """Sends HTTP requests. Implemented by the network, the in-process lab and recordings."""

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> HttpResponse:
        """Return when the response's head has arrived. Raise ConnectionFailed, Stalled or StreamBroken."""

    async def close(self) -> None:
        """Close every connection."""


class Decoder(abc.ABC):
    """Turns the bytes of one reply into events. Does no I/O."""

    def __init__(self) -> None:
        #: Number of meaningful stream events so far. Pings and comments do not count.
        self.progress = 0
        #: True once the service has sent its final event.
        self.is_complete = False
        #: The error that follows the events returned last: the reply ends there.
        self.failure: ProviderError | None = None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that ``data`` completes. Raise ProviderError for an error inside the stream."""
        events: list[StreamEvent] = []
        try:
            self._feed(data, events)
        except ProviderError as error:
            if not events:
                raise
            self.failure = error  # The events before it must be delivered first.
        return events

    @abc.abstractmethod
    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that ``data`` completes. Raise ProviderError."""

    @abc.abstractmethod
    def finish(self) -> list[StreamEvent]:
        """Return the remaining events at the proper end of the body. Raise StreamBroken if the reply is incomplete."""

    @abc.abstractmethod
    def reply(self) -> ModelReply:
        """Return the reply so far, without incomplete tool calls."""


class Api(Protocol):
    """One model API: encodes requests and decodes replies."""

    def request(self, request: ModelRequest, key: str) -> HttpRequest:
        """Return the HTTP request for one streamed reply. ``key`` may be empty if none is needed."""

    def decoder(self, request: ModelRequest) -> Decoder:
        """Return a decoder for the reply to a request."""


class KeySource(Protocol):
    """Source of a service's key: a setting, or a command whose keys expire."""

    async def read(self) -> str:
        """Return the key, before each call; "" if none is needed. Raise AuthFailed."""

    def renew(self, refused: str) -> bool:
        """Forget a refused key. True if reading it again may give another."""


class FixedKey(msgspec.Struct, frozen=True):
    """A key that never changes."""

    key: str

    async def read(self) -> str:
        """Return the key."""
        return self.key

    def renew(self, refused: str) -> bool:
        """Return False: there is no other key."""
        return False
