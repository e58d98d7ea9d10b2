"""Provider interfaces: requests, replies, transports, decoders, and the images a model accepts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
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
from zot.providers.models import Model as Model  # noqa: PLC0414 -- the agent sees no other file of ours
from zot.providers.models import Price as Price  # noqa: PLC0414

_OUTDATED = TextBlock("[an image was here; it is no longer shown, because there are too many newer ones]")


def fits(image: ImageBlock, limits: ImageLimits) -> bool:
    """Whether an API with these limits takes the image.

    One that it cannot take would make it refuse this and every later request.
    """
    return image.mime_type in limits.types and 0 < len(image.data) <= limits.max_bytes


def left_out(image: ImageBlock) -> str:
    """Return what the model is told instead."""
    return f"[an image was left out: {image.mime_type or 'unknown type'}, {len(image.data)} bytes]"


class ShownImages:
    """Sees to it that a conversation never has more images than an API takes in one request.

    The oldest go first. They go many at a time, so that the requests in between begin alike, for whoever caches them;
    and how many depends on the conversation alone, so that it is the same after a restart.
    """

    def __init__(self) -> None:
        self._limits: ImageLimits | None = None
        self._seen: list[Message] = []
        self._sizes: list[int] = []
        self._gone = 0
        self._thinned: list[Message] = []

    def of(self, messages: Sequence[Message], limits: ImageLimits) -> Sequence[Message]:
        """Return the messages with as many images as ``limits`` allow; those that stay as they are, are the same."""
        self._look_at(messages, limits)
        gone = _too_many(self._sizes, limits)
        if not gone:
            return messages
        if gone != self._gone:
            self._gone, self._thinned = gone, [*_thinned(messages, gone, limits)]
        return [*self._thinned, *messages[len(self._thinned) :]]

    def _look_at(self, messages: Sequence[Message], limits: ImageLimits) -> None:
        """Note the images that are new; of all messages, if these are not the ones of last time and more."""
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
    """Return how many of the oldest images have to go: by their number and by their size in steps of half a limit."""
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
    """Yield the messages up to the last image that goes."""
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


class KnownCalls:
    """Knows the ids of all calls in a conversation that grows at its end; one that was changed is looked at anew."""

    def __init__(self) -> None:
        self._seen: list[Message] = []
        self._ids: set[str] = set()

    def of(self, messages: Sequence[Message]) -> set[str]:
        """Return the ids of the calls in ``messages``; what is returned is the caller's."""
        if not begins_with(messages, self._seen):
            self._seen.clear()
            self._ids.clear()
        for message in messages[len(self._seen) :]:
            self._ids.update(block.id for block in message.content if isinstance(block, CallBlock))
            self._seen.append(message)
        return set(self._ids)


Reasoning: TypeAlias = Literal["off", "low", "medium", "high"]

#: What a stream decoder produces is what clients see: one object per delta, from the socket to the wire.
StreamEvent: TypeAlias = TextDelta | ThinkingDelta | ToolUseStart | ToolUseArgs | ToolUseEnd


class Request(msgspec.Struct, frozen=True):
    """One model call. ``encoded`` remembers the wire form of messages already sent."""

    model: str
    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...]
    max_tokens: int
    reasoning: Reasoning
    encoded: EncodedMessages


class Reply(msgspec.Struct, frozen=True):
    """What a model call gave: all of it, or what had arrived when it ended. ``counters`` has no cost yet.

    ``origin`` is the provider that gave it.
    """

    content: tuple[TranscriptBlock, ...]
    counters: Counters
    stop: Stop
    origin: str = ""


class ReplyStream(Protocol):
    """One model call while it runs."""

    async def open(self) -> None:
        """Send the request and wait for the answer to begin. Raise ProviderError."""

    async def read(self) -> list[StreamEvent]:
        """Return what arrived next, in order; an empty list at the end. Raise ProviderError."""

    def reply(self) -> Reply:
        """Return what has been received. After the end: the whole reply. Before: no half-written tool call."""

    def close(self) -> None:
        """Stop at once and let go of the connection. Safe at any time, any number of times."""


class Provider(Protocol):
    """A model service as the agent sees it."""

    @property
    def name(self) -> str: ...

    def call(self, request: Request, on_retry: OnRetry) -> ReplyStream:
        """Prepare one model call; nothing happens before `ReplyStream.open`."""

    async def close(self) -> None:
        """Close idle connections."""


class OnRetry(Protocol):
    """Hears that an attempt failed and when the next begins."""

    def __call__(self, reason: str, *, attempt: int, delay_s: float) -> None: ...


#: Returns what a message adds to the text, and the role whose turn is open after it; is given the one open before.
EncodeMessage: TypeAlias = Callable[[Message, str], tuple[bytes, str]]


class EncodedMessages:
    """The wire form of a conversation, each message encoded once.

    A conversation grows at its end, so a request costs only the messages that are new. A transcript that was
    cleared, compacted or replaced simply encodes anew from where it differs.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._after: list[tuple[int, str]] = []
        self._text = bytearray()
        self._encode: EncodeMessage | None = None
        #: Which images of it are still sent, and which calls it has.
        self.images = ShownImages()
        self.calls = KnownCalls()

    def text(self, messages: Sequence[Message], encode: EncodeMessage) -> tuple[bytearray, str]:
        """Return what ``encode`` makes of the messages, joined, and the role left open. The text is ours: copy it."""
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
    """Return how many of the messages are known already, from the beginning."""
    if begins_with(messages, known):
        return len(known)  # As ever; the rest is for a conversation that was changed.
    pairs = enumerate(zip(known, messages, strict=False))
    return next((index for index, (ours, theirs) in pairs if ours is not theirs), min(len(known), len(messages)))


def own_blocks(message: Message, origin: str) -> tuple[TranscriptBlock, ...]:
    """Return what ``origin`` may be told of a message again: without the sealed thoughts of another provider."""
    if message.origin in ("", origin):
        return message.content
    return tuple(
        msgspec.structs.replace(block, signature="") if isinstance(block, CallBlock) and block.signature else block
        for block in message.content
        if not isinstance(block, ThinkingBlock)
    )


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request. Header names are lower case; ``secret_headers`` names those never to be recorded."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"
    secret_headers: frozenset[str] = frozenset({"authorization", "x-api-key", "x-goog-api-key", "proxy-authorization"})

    def secrets(self) -> tuple[str, ...]:
        """Return what must not be repeated: services like to quote the key they refuse."""
        return tuple(self.headers.get(name, "").removeprefix("Bearer ") for name in self.secret_headers)

    def __repr__(self) -> str:
        """Say what is asked for, without headers and body: they have secrets in them."""
        return f"HttpRequest({self.method}, {len(self.body)} bytes)"


class Deadlines(msgspec.Struct, frozen=True):
    """How long we wait for a model service, in seconds."""

    connect_s: float = 10.0
    headers_s: float = 60.0
    silence_s: float = 120.0


class HttpResponse(Protocol):
    """An answer whose head has arrived."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are lower case; repeated headers are joined with ``, ``."""

    async def read(self) -> bytes:
        """Return the next bytes of the body; b"" at its proper end. Raise StreamBroken if it was cut short."""

    def close(self) -> None:
        """Let go of it. The connection is kept for the next request only if the body was read to its end."""


class Transport(Protocol):
    """Sends HTTP requests. The network, the in-process lab and a recording all are one."""

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> HttpResponse:
        """Return when the response's head has arrived. Raise ConnectionFailed, Stalled or StreamBroken."""

    async def close(self) -> None:
        """Close every connection."""


class Decoder(Protocol):
    """Turns the bytes of one reply into events. Does no I/O."""

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that ``data`` completes. Raise ProviderError for an error inside the stream."""

    @property
    def failure(self) -> ProviderError | None:
        """The error behind the events that were returned last: the reply ends there."""

    @property
    def progress(self) -> int:
        """How many meaningful stream events have been seen. Pings and comments do not count."""

    @property
    def is_complete(self) -> bool:
        """True when the service has sent the event after which nothing follows."""

    def finish(self) -> list[StreamEvent]:
        """The body has ended properly. Return what was still held. Raise StreamBroken if the reply is not whole."""

    def reply(self) -> Reply:
        """Return what has been received so far, without a half-written tool call."""


class Api(Protocol):
    """One model API: how to ask, and how to understand the answer."""

    def request(self, request: Request, key: str) -> HttpRequest:
        """Return the HTTP request that asks for one streamed reply. ``key`` may be empty where none is needed."""

    def decoder(self, request: Request) -> Decoder:
        """Return a decoder for the reply to a request."""


#: Where a service's key comes from; asked before each call, because some are made by a command and expire.
ReadKey: TypeAlias = Callable[[], Awaitable[str]]

#: Is told which key was refused; True if reading it again may give another.
RenewKey: TypeAlias = Callable[[str], bool]
