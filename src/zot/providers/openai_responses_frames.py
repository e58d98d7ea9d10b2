"""The events of an OpenAI Responses stream, and the items they are about, as the service writes them."""

from __future__ import annotations

from typing import Any, TypeAlias, cast, get_args

import msgspec

from zot.providers.payload import EventReader


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
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


class Response(msgspec.Struct):
    """The reply as a whole. Its output is read only if nothing of it was streamed."""

    usage: Usage | None = None
    error: Fault | None = None
    incomplete_details: Shortfall | None = None
    output: list[msgspec.Raw] | None = None


class TextDelta(msgspec.Struct, tag="response.output_text.delta", gc=False):
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
    response: Response


class Queued(msgspec.Struct, tag="response.queued"):
    response: Response


class InProgress(msgspec.Struct, tag="response.in_progress"):
    response: Response


class Completed(msgspec.Struct, tag="response.completed"):
    response: Response


class Incomplete(msgspec.Struct, tag="response.incomplete"):
    response: Response


class Failed(msgspec.Struct, tag="response.failed"):
    response: Response


class Error(msgspec.Struct, tag="error", gc=False):
    """Documented as flat, and sent with the same fields inside ``error``."""

    code: str | int | None = None
    message: str | None = None
    error: Fault | None = None


class KeepAlive(msgspec.Struct, tag="keepalive", gc=False):
    pass


class Ping(msgspec.Struct, tag="ping", gc=False):
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
    TextDelta | RefusalDelta | ThoughtDelta | SummaryDelta | ArgumentsDelta
    | TextDone | RefusalDone | ThoughtDone | SummaryDone | ArgumentsDone
    | ItemAdded | ItemDone | Created | Queued | InProgress | Completed | Incomplete | Failed | Error | KeepAlive | Ping
    | _ContentAdded | _ContentDone | _SummaryPartAdded | _SummaryPartDone
)  # fmt: skip


class Content(msgspec.Struct, gc=False):
    """A part of a message or of a thought; which field it has depends on its type."""

    text: str | None = None
    refusal: str | None = None


class MessageItem(msgspec.Struct, tag="message"):
    content: list[Content] | None = None


class ReasoningItem(msgspec.Struct, tag="reasoning"):
    id: str | None = None
    summary: list[Content] | None = None
    content: list[Content] | None = None
    encrypted_content: str | None = None


class CallItem(msgspec.Struct, tag="function_call"):
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    status: str | None = None


Item: TypeAlias = MessageItem | ReasoningItem | CallItem


def _tags(union: Any) -> list[str]:
    return [cast(str, kind.__struct_config__.tag) for kind in get_args(union)]


frames: EventReader[Frame] = EventReader(msgspec.json.Decoder(Frame), kinds=_tags(Frame))
_items: EventReader[Item] = EventReader(msgspec.json.Decoder(Item), kinds=_tags(Item))


def read_item(raw: msgspec.Raw) -> Item | None:
    """Return an item; None if it is of a kind we do not know. Raise StreamBroken if it is not what it claims to be."""
    try:
        return _items.decode(raw)
    except (ValueError, RecursionError):
        return _items.decode_with_care(bytes(raw))
