"""Anthropic Messages: how to ask. How to understand the answer is in `anthropic_stream`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from zot.config.vendors import ImageLimits
from zot.encoding import encode
from zot.messages import (
    CallBlock,
    ImageBlock,
    Message,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolSpec,
    TranscriptBlock,
)
from zot.providers.anthropic import AnthropicDecoder
from zot.providers.base import Decoder, HttpRequest, Reasoning, Request, own_blocks
from zot.providers.calls import CallIds, acceptable_id, acceptable_name
from zot.providers.images import fits, left_out

_THINKING_TOKENS: Mapping[Reasoning, int] = {"low": 2048, "medium": 8192, "high": 16384}
_ROOM_BEYOND_THINKING = 4096
#: The API takes 5 MB of base64 at most, 100 images, and 32 MB in all.
_IMAGES = ImageLimits(3_750_000, 100, 20_000_000)
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_CACHE = {"cache_control": {"type": "ephemeral"}}


class AnthropicMessages:
    """The API, at Anthropic's address or at another that speaks it."""

    def __init__(self, *, base_url: str, origin: str) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/messages"
        self._origin = origin
        self._appended = partial(_appended, origin)

    def request(self, request: Request, key: str) -> HttpRequest:
        """Return the HTTP request that asks for one streamed reply."""
        return HttpRequest(
            url=self._url,
            headers={
                "x-api-key": key,
                "anthropic-version": "2023-06-01",
                "content-type": "application/json",
                "accept": "text/event-stream",
            },
            body=self._body(request),
        )

    def decoder(self, request: Request) -> Decoder:
        """Return a decoder for the reply to a request."""
        return AnthropicDecoder(CallIds(request.messages, request.encoded.calls))

    def _body(self, request: Request) -> bytes:
        """Return the request body, made of the parts that were encoded before and those that are new."""
        head: dict[str, Any] = {"model": request.model, "max_tokens": request.max_tokens, "stream": True}
        budget = _THINKING_TOKENS.get(request.reasoning)
        if budget is not None and _may_think(request.messages, self._origin):
            head["thinking"] = {"type": "enabled", "budget_tokens": budget}
            head["max_tokens"] = max(request.max_tokens, budget + _ROOM_BEYOND_THINKING)
        if request.system:
            head["system"] = [{"type": "text", "text": request.system, **_CACHE}]
        if request.tools:
            head["tools"] = list(_tools(request.tools))
        # One copy of what was said before, and no more: a long conversation is a megabyte.
        return b"".join([encode(head)[:-1], b',"messages":[', *self._messages(request), b"]}"])

    def _messages(self, request: Request) -> Iterator[bytes | bytearray]:
        """Yield the messages as the API wants them: roles alternate, none is empty, the end is marked for caching."""
        messages = request.encoded.images.of(request.messages, _IMAGES)
        marked, content = _marked(messages)
        text, role = request.encoded.text(messages[:marked], self._appended)
        yield text
        for index, message in enumerate(messages[marked:]):
            piece, role = self._appended(message, role) if index else _joined(message, content, role)
            yield piece
        if role:
            yield b"]}"


def _may_think(messages: Sequence[Message], origin: str) -> bool:
    """Whether the API lets the model think: while tools are at work, only if it began with a thought after the prompt.

    It did not if it was another model then, or if thinking was off.
    """
    opening: Message | None = None
    has_results = False
    for message in reversed(messages):
        if message.role == "tool":
            has_results = True
        elif message.role == "assistant":
            if not has_results:
                return True  # It has had its say: what comes now is a new turn.
            opening = message
        elif opening is not None:
            break
    if opening is None:
        return True
    first = next((shaped for block in own_blocks(opening, origin) if (shaped := _block(block)) is not None), None)
    return first is not None and first["type"] in _THOUGHTS


def _tools(tools: tuple[ToolSpec, ...]) -> Iterator[dict[str, Any]]:
    for tool in tools:
        cache = _CACHE if tool is tools[-1] else {}
        yield {"name": tool.name, "description": tool.description, "input_schema": tool.schema, **cache}


def _marked(messages: Sequence[Message]) -> tuple[int, bytes]:
    """Return which message is the newest that is not the model's own, and its content marked for caching."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role != "assistant" and (content := _content(messages[index].content, cache=True)):
            return index, content
    return len(messages), b""


def _appended(origin: str, message: Message, role: str) -> tuple[bytes, str]:
    return _joined(message, _content(own_blocks(message, origin)), role)


def _joined(message: Message, content: bytes, role: str) -> tuple[bytes, str]:
    """Return what continues a list of messages whose last one, of ``role``, is open; and which role is open then."""
    if not content:
        return b"", role
    speaker = "assistant" if message.role == "assistant" else "user"
    if speaker == role:
        return b"," + content, role
    return b'%s{"role":"%s","content":[%s' % (b"]}," if role else b"", speaker.encode(), content), speaker


def _content(content: Sequence[TranscriptBlock], *, cache: bool = False) -> bytes:
    """Return the blocks of a message, separated by commas, without brackets; b"" if nothing is left to say."""
    blocks = [shaped for block in content if (shaped := _block(block)) is not None]
    # The API refuses a message that ends in a thought: nothing came of it.
    while blocks and blocks[-1]["type"] in _THOUGHTS:
        del blocks[-1]
    if cache and blocks:
        blocks[-1].update(_CACHE)
    return encode(blocks)[1:-1]


def _block(block: TranscriptBlock) -> dict[str, Any] | None:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case ImageBlock():
            return _image(block)
        case ThinkingBlock(redacted=data) if data:
            return {"type": "redacted_thinking", "data": data}
        case ThinkingBlock(text=text, signature=signature):
            # The API takes thinking back only with its signature; an aborted thought has none.
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case CallBlock(id=id_, name=name, args=args):
            return {"type": "tool_use", "id": acceptable_id(id_), "name": acceptable_name(name), "input": args or {}}
        case ResultBlock(call_id=call_id, is_error=is_error, content=content):
            parts = [part for item in content if (part := _block(item)) is not None]
            if is_error and any(part["type"] == "image" for part in parts):
                # The API takes nothing but text in what it is told is an error.
                parts, is_error = [{"type": "text", "text": "[error]"}, *parts], False
            return {
                "type": "tool_result",
                "tool_use_id": acceptable_id(call_id),
                "content": parts or [{"type": "text", "text": "(no output)"}],
                "is_error": is_error,
            }


def _image(block: ImageBlock) -> dict[str, Any]:
    if not fits(block, _IMAGES):
        return {"type": "text", "text": left_out(block)}
    source = {"type": "base64", "media_type": block.mime_type, "data": b64encode(block.data).decode()}
    return {"type": "image", "source": source}
