"""OpenAI Responses: how to ask. How to understand the answer is in `openai_responses_stream`.

Nothing is stored at the service: every request tells the whole conversation, sealed thoughts included.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2s
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
    text_of,
)
from zot.providers.base import Decoder, HttpRequest, Reasoning, Request, own_blocks
from zot.providers.calls import CallIds, acceptable_id, acceptable_name
from zot.providers.images import fits, left_out
from zot.providers.openai_responses import ResponsesDecoder

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
#: From least to most.
_EFFORTS = ("none", "minimal", "low", "medium", "high")
#: The API takes 20 MB of base64 at most, 500 images, and 50 MB in all.
_IMAGES = ImageLimits(15_000_000, 250, 30_000_000)
_MIN_OUTPUT_TOKENS = 16


class OpenAIResponses:
    """The API, at OpenAI's address or at another that speaks it."""

    def __init__(self, *, base_url: str, origin: str) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/responses"
        self._appended = partial(_appended, origin)

    def request(self, request: Request, key: str) -> HttpRequest:
        """Return the HTTP request that asks for one streamed reply."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return HttpRequest(url=self._url, headers=headers, body=self._body(request))

    def decoder(self, request: Request) -> Decoder:
        """Return a decoder for the reply to a request."""
        return ResponsesDecoder(CallIds(request.messages, request.encoded.calls))

    def _body(self, request: Request) -> bytes:
        """Return the request body, made of the parts that were encoded before and those that are new."""
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
        # One copy of what was said before, and no more: a long conversation is a megabyte.
        return b"".join([encode(head)[:-1], b',"input":[', items, b"]}"])


def _cache_key(request: Request) -> str:
    """Return a name for the conversation: requests that share it are sent to where their beginning is cached.

    Made of how it begins, so that it is the same in every run, and after a restart.
    """
    opening = text_of(request.messages[0].content) if request.messages else ""
    told = f"{request.system}\0{opening}".encode(errors="replace")
    return f"zot-{blake2s(told, digest_size=16).hexdigest()}"


def _reasoning(model: str, wanted: Reasoning) -> Mapping[str, Any]:
    """Return the fields about thinking: none for models that do not."""
    effort = _effort(model, wanted)
    if effort is None:
        return {}
    shown = {} if wanted == "off" else {"summary": "auto"}
    return {"reasoning": {"effort": effort, **shown}, "include": ["reasoning.encrypted_content"]}


def _effort(model: str, wanted: Reasoning) -> str | None:
    """Return the least effort of the model that is at least what is wanted, or its most; None if it does not think.

    Each family refuses the efforts it does not have. A model we never heard of gets what was asked for.
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
    """Return what a message adds to the list of items, and how many there are then. ``before`` counts them, too."""
    count = int(before or 0)
    items = [*_items(message, own_blocks(message, origin))]
    for number, item in enumerate(items, count):
        if item.get("role") == "assistant":
            # The API wants an id, and no two alike. Its own would make it look for the thought that came before.
            item["id"] = f"msg_{number}"
    if not items:
        return b"", before
    return (b"," if count else b"") + encode(items)[1:-1], str(count + len(items))


def _items(message: Message, content: Sequence[TranscriptBlock]) -> Iterator[dict[str, Any]]:
    match message.role:
        case "assistant":
            yield from _said_by_the_model(content)
        case "tool":
            yield from (_result(block) for block in content if isinstance(block, ResultBlock))
        case "user":
            if parts := [*_parts(content)]:
                yield {"type": "message", "role": "user", "content": parts}


def _said_by_the_model(content: Iterable[TranscriptBlock]) -> Iterator[dict[str, Any]]:
    """Yield the items of a reply. A thought waits for what came of it: the API refuses one that led to nothing."""
    thoughts: list[dict[str, Any]] = []
    for block in content:
        if isinstance(block, ThinkingBlock):
            thoughts += _thought(block)
        elif (item := _act(block)) is not None:
            yield from thoughts
            yield item
            thoughts = []


def _thought(block: ThinkingBlock) -> Iterator[dict[str, Any]]:
    # Without its seal the service would look the id up, and it has stored nothing. An aborted thought has none.
    if block.id and block.signature:
        summary = [{"type": "summary_text", "text": block.text}] if block.text else []
        yield {"type": "reasoning", "id": block.id, "summary": summary, "encrypted_content": block.signature}


def _act(block: TranscriptBlock) -> dict[str, Any] | None:
    match block:
        case TextBlock(text=text) if text.strip():
            part = {"type": "output_text", "text": text, "annotations": []}
            return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        case CallBlock(id=id_, name=name, args=args):
            # No item id: with it, the service would insist on the thought that came before.
            arguments = encode(args or {}).decode()
            ident, named = acceptable_id(id_), acceptable_name(name)
            return {"type": "function_call", "call_id": ident, "name": named, "arguments": arguments}
        case _:
            return None


def _result(block: ResultBlock) -> dict[str, Any]:
    parts = [*_parts(block.content)] or [{"type": "input_text", "text": "(no output)"}]
    if block.is_error:  # The API has no other place to say so.
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
        return {"type": "input_text", "text": left_out(block)}
    url = f"data:{block.mime_type};base64,{b64encode(block.data).decode()}"
    return {"type": "input_image", "detail": "auto", "image_url": url}
