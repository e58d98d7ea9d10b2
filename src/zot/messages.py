"""What is said: messages, their content blocks, and the counters of what it cost.

Two forms of a message exist. The *transcript* form (`Message`) holds everything a provider needs to be told
again: image bytes, thinking with its signature. The *shown* form (`ShownMessage`) is what clients see on every
wire: images as a byte count, no thinking. `show` is the only way from one to the other.
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
    text: str


class ImageBlock(Block, tag="image", frozen=True, gc=False):
    mime_type: str
    data: bytes


class ThinkingBlock(Block, tag="thinking", frozen=True, gc=False):
    """What the model thought. ``signature`` proves it to the API that made it, ``redacted`` is its sealed form.

    ``id`` is the name that API knows it by, where it gives one.
    """

    text: str = ""
    signature: str = ""
    redacted: str = ""
    id: str = ""


class CallBlock(Block, tag="tool_call", frozen=True, gc=False):
    """The model wants a tool run. ``args`` is None when what it wrote is not a JSON object; ``malformed`` has it.

    ``signature`` seals what the model thought before it, for the APIs that want that back with the call.
    """

    id: str
    name: str
    args: dict[str, Any] | None
    malformed: str = ""
    signature: str = ""


class ResultBlock(Block, tag="tool_result", frozen=True, gc=False):
    call_id: str
    is_error: bool
    content: tuple[TextBlock | ImageBlock, ...]


TranscriptBlock: TypeAlias = TextBlock | ImageBlock | ThinkingBlock | CallBlock | ResultBlock


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message of the transcript, complete. ``shown_text`` is what clients see where that differs from its text.

    ``origin`` is the provider whose model said it: signatures and sealed thoughts mean nothing to any other. Of what a
    user said it is the channel where that was, if somebody told.
    """

    role: Role
    content: tuple[TranscriptBlock, ...]
    time: str
    shown_text: str | None = None
    origin: str = ""


class ShownImage(Block, tag="image", frozen=True, gc=False):
    mime_type: str
    bytes: int


class ShownCall(Block, tag="tool_call", frozen=True, gc=False):
    id: str
    name: str
    args: dict[str, Any] | None


class ShownResult(Block, tag="tool_result", frozen=True, gc=False):
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
    """One as a face shows it that was not there: with what the model thought, as far as clients may know that.

    ``stop`` is how its turn ended if nothing more was said there, ``error`` why, if it failed.
    """

    thought: str = ""
    stop: Stop = "end_turn"
    error: str = ""


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model is told about a tool. ``schema`` is the JSON Schema of its arguments.

    ``extension`` names whose it is, which the model is not told; "" for our own.
    """

    name: str
    description: str
    schema: dict[str, Any]
    extension: str = ""


class Counters(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens and money. ``input`` excludes what was read from or written to the provider's cache.

    ``reasoning`` is how much of ``output`` the model thought, where the provider tells.
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
        """The cost in US dollars, None when no price is known: unknown is not zero."""
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
    """Return what the model thought; "" if something else is shown than what it said: then that was held back, too."""
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
    """True if a conversation has the ``known`` messages at its beginning. Hardly costs anything if they are the same
    objects, as ever, for the comparison of lists looks at that first."""
    head = messages[: len(known)]
    return known == (head if isinstance(head, list) else list(head))  # One copy is enough.


def timestamp(seconds: float | None = None) -> str:
    """Return RFC 3339 in UTC with milliseconds and ``Z``; now, unless ``seconds`` since the epoch are given."""
    whole, millis = divmod(round((_time.time() if seconds is None else seconds) * 1000), 1000)
    return f"{_second(whole)}.{millis:03d}Z"


@lru_cache(maxsize=1)  # What happens has a time, and much happens in one second.
def _second(whole: int) -> str:
    return _time.strftime("%Y-%m-%dT%H:%M:%S", _time.gmtime(whole))
