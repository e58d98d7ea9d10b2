"""Messages, their content blocks, and usage counters.

A message has two forms. The *transcript* form (`Message`) holds everything a provider needs: image bytes, thinking
with its signature. The *shown* form (`ShownMessage`) goes to clients on every protocol: images as a byte count, no
thinking. `show` is the only conversion from the first to the second.
"""

from __future__ import annotations

import time as _time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["user", "assistant", "tool"]
Stop: TypeAlias = Literal["end_turn", "tool_use", "length", "error", "aborted"]


class Block(msgspec.Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """One piece of a message's content."""


class TextBlock(Block, tag="text", frozen=True, gc=False):
    """Text."""

    text: str


class ImageBlock(Block, tag="image", frozen=True, gc=False):
    """An image with its bytes."""

    mime_type: str
    data: bytes


class ThinkingBlock(Block, tag="thinking", frozen=True, gc=False):
    """Thinking of the model. ``signature`` authenticates it to the API that made it.

    ``redacted`` is its encrypted form, ``id`` that API's id of the block, if it has one.
    """

    text: str = ""
    signature: str = ""
    redacted: str = ""
    id: str = ""


class CallBlock(Block, tag="tool_call", frozen=True, gc=False):
    """A tool call. ``args`` is None if the model did not write a JSON object; ``malformed`` has its text.

    ``signature`` seals the thinking before the call, for APIs that require it back with the call.
    """

    id: str
    name: str
    args: dict[str, Any] | None
    malformed: str = ""
    signature: str = ""


class ResultBlock(Block, tag="tool_result", frozen=True, gc=False):
    """The result of the tool call ``call_id``."""

    call_id: str
    is_error: bool
    content: tuple[TextBlock | ImageBlock, ...]


TranscriptBlock: TypeAlias = TextBlock | ImageBlock | ThinkingBlock | CallBlock | ResultBlock


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One complete message of the transcript. ``shown_text`` replaces its text for clients, if set.

    ``origin`` of an assistant message is the provider that produced it: signatures and encrypted thinking are valid
    only there. ``origin`` of a user message is its channel, if the client named one.
    """

    role: Role
    content: tuple[TranscriptBlock, ...]
    time: str
    shown_text: str | None = None
    origin: str = ""


class ShownImage(Block, tag="image", frozen=True, gc=False):
    """An image: its type and its size in ``bytes``, without its content."""

    mime_type: str
    bytes: int


class ShownCall(Block, tag="tool_call", frozen=True, gc=False):
    """A tool call. ``args`` is null if the model wrote no JSON object."""

    id: str
    name: str
    args: dict[str, Any] | None


class ShownResult(Block, tag="tool_result", frozen=True, gc=False):
    """The result of the tool call ``call_id``."""

    call_id: str
    is_error: bool
    content: tuple[TextBlock | ShownImage, ...]


ShownBlock: TypeAlias = TextBlock | ShownImage | ShownCall | ShownResult


class ShownMessage(msgspec.Struct, frozen=True, gc=False):
    """One message as clients see it."""

    role: Role
    content: tuple[ShownBlock, ...]
    time: str


class PastMessage(ShownMessage, frozen=True):
    """A past message for a user interface, with the thinking that clients may see.

    ``stop`` is how its turn ended if it was the turn's last message, ``error`` the reason of a failure.
    """

    thought: str = ""
    stop: Stop = "end_turn"
    error: str = ""


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool's description for the model. ``schema`` is the JSON Schema of its arguments.

    ``extension`` names the extension that provides it, "" for built-in tools; the model does not see it.
    """

    name: str
    description: str
    schema: dict[str, Any]
    extension: str = ""


class Counters(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens and cost. ``input`` excludes tokens read from or written to the provider's cache.

    ``reasoning`` is the part of ``output`` spent on thinking, if the provider reports it.
    """

    input: int
    output: int
    cache_read: int
    cache_write: int
    cost_usd: float
    price_known: bool = True
    reasoning: int = 0

    @property
    def cost(self) -> float | None:
        """The cost in US dollars; None if no price is known, because unknown is not zero."""
        return self.cost_usd if self.price_known else None

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.cost_usd + other.cost_usd,
            self.price_known and other.price_known,
            self.reasoning + other.reasoning,
        )


ZERO = Counters(0, 0, 0, 0, 0.0)


def show(message: Message) -> ShownMessage:
    """Return the form of ``message`` that clients may see."""
    blocks = tuple(shown for block in message.content if (shown := _show_block(block)) is not None)
    if message.shown_text is not None:
        others = tuple(block for block in blocks if not isinstance(block, TextBlock))
        blocks = (TextBlock(message.shown_text), *others) if message.shown_text else others
    return ShownMessage(message.role, blocks, message.time)


def thought_of(message: Message) -> str:
    """Return the model's thinking; "" if ``shown_text`` replaces its text: the thinking is withheld too."""
    if message.shown_text is not None:
        return ""
    return "".join(block.text for block in message.content if isinstance(block, ThinkingBlock))


def show_result_content(content: Iterable[TextBlock | ImageBlock]) -> tuple[TextBlock | ShownImage, ...]:
    """Return a tool's output as clients see it."""
    return tuple(
        block if isinstance(block, TextBlock) else ShownImage(block.mime_type, len(block.data)) for block in content
    )


def _show_block(block: TranscriptBlock) -> ShownBlock | None:
    match block:
        case TextBlock():
            return block
        case ImageBlock(mime_type=mime_type, data=data):
            return ShownImage(mime_type, len(data))
        case ThinkingBlock():
            return None
        case CallBlock(id=id_, name=name, args=args):
            return ShownCall(id_, name, args)
        case ResultBlock(call_id=call_id, is_error=is_error, content=content):
            return ShownResult(call_id, is_error, show_result_content(content))


def text_of(content: Iterable[TranscriptBlock | ShownBlock]) -> str:
    """Return the text blocks of ``content``, joined."""
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def begins_with(messages: Sequence[Message], known: list[Message]) -> bool:
    """True if ``messages`` starts with ``known``. Cheap for identical objects: lists compare identity first."""
    head = messages[: len(known)]
    return known == (head if isinstance(head, list) else list(head))  # Copies only non-lists.


def timestamp(seconds: float | None = None) -> str:
    """Return RFC 3339 in UTC with milliseconds and ``Z``: of ``seconds`` since the epoch, or of now."""
    whole, millis = divmod(round((_time.time() if seconds is None else seconds) * 1000), 1000)
    return f"{_second(whole)}.{millis:03d}Z"


@lru_cache(maxsize=1)  # Many events fall into the same second.
def _second(whole: int) -> str:
    return _time.strftime("%Y-%m-%dT%H:%M:%S", _time.gmtime(whole))
