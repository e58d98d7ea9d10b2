"""Gemini generateContent: how to ask. How to understand the answer is in `gemini_stream`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

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
from zot.providers.base import Decoder, HttpRequest, Request, own_blocks
from zot.providers.calls import CallIds, acceptable_id, acceptable_name
from zot.providers.gemini import GeminiDecoder
from zot.providers.gemini_thinking import seals_calls, thinking
from zot.providers.images import fits, left_out

_Part: TypeAlias = dict[str, Any]

#: A request is 20 MB at most. Larger files are to be uploaded first, which we do not do.
_IMAGES = ImageLimits(
    7_000_000, 500, 13_000_000, frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
)
#: What Google documents for calls that another model made: it stands where the signature would.
_NO_SIGNATURE = "skip_thought_signature_validator"


class GeminiGenerateContent:
    """The API, at Google's address or at another that speaks it."""

    def __init__(self, *, base_url: str, origin: str) -> None:
        self._base = base_url.rstrip("/").removesuffix("/v1beta").removesuffix("/v1")
        self._appended = partial(_appended, origin, seals=False)
        self._appended_sealed = partial(_appended, origin, seals=True)

    def request(self, request: Request, key: str) -> HttpRequest:
        """Return the HTTP request that asks for one streamed reply. The key is in a header, never in the URL."""
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

    def decoder(self, request: Request) -> Decoder:
        """Return a decoder for the reply to a request."""
        return GeminiDecoder(CallIds(request.messages, request.encoded.calls))

    def _body(self, request: Request) -> bytes:
        """Return the request body, made of the parts that were encoded before and those that are new."""
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
        # One copy of what was said before, and no more: a long conversation is a megabyte.
        return b"".join([encode(head)[:-1], b',"contents":[', contents, b"]}" if state else b"", b"]}"])


def _appended(origin: str, message: Message, state: str, *, seals: bool) -> tuple[bytes, str]:
    """Return what continues contents after ``state``, and the state then: who is speaking, and what was called last.

    The API names the tool with each result, which we do not.
    """
    role, _, known = state.partition(" ")
    called = msgspec.json.decode(known, type=dict[str, str]) if known else {}
    if message.role == "assistant":
        speaker, parts = "model", _spoken(own_blocks(message, origin), seals=seals)
        called = {block.id: block.name for block in message.content if isinstance(block, CallBlock)} or called
    else:
        speaker, parts = "user", _told(message.content, called)
    if not parts:
        return b"", state
    content, after = encode(parts)[1:-1], f"{speaker} {encode(called).decode()}"
    if speaker == role:
        return b"," + content, after
    return b'%s{"role":"%s","parts":[%s' % (b"]}," if role else b"", speaker.encode(), content), after


def _spoken(blocks: Sequence[TranscriptBlock], *, seals: bool) -> list[_Part]:
    """Return what the model said; nothing if all it did was think."""
    parts: list[_Part] = []
    calls: list[_Part] = []
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
                pass  # A thought without signature proves nothing: the API wants none back.
    if seals and calls:
        # Of calls side by side, only the first is sealed.
        calls[0].setdefault("thoughtSignature", _NO_SIGNATURE)
    return parts if any(map(_says_something, parts)) else []


def _told(content: Sequence[TranscriptBlock], called: Mapping[str, str]) -> list[_Part]:
    """Return what the model is told. Images of results follow all of the results: those must stand together."""
    parts: list[_Part] = []
    images: list[_Part] = []
    for block in content:
        match block:
            case TextBlock(text=text) if text.strip():
                parts.append({"text": text})
            case ImageBlock():
                parts.append(_image(block))
            case ResultBlock():
                # The id stands for a tool that nobody called.
                parts.append(_result(block, called.get(block.call_id, block.call_id), images))
            case _:
                pass
    return [*parts, *images]


def _result(block: ResultBlock, tool: str, images: list[_Part]) -> _Part:
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
        # `parameters` is a dialect of its own that refuses half of JSON Schema; this field takes it as it is.
        schema = {name: value for name, value in tool.schema.items() if name != "$schema"}
        yield {"name": tool.name, "description": tool.description, "parametersJsonSchema": schema}


def _seal(parts: list[_Part], thought: str, signature: str) -> None:
    """Put a signature back where it came from: on its thought, on the text before it, or on no text at all."""
    if thought:
        parts.append({"text": thought, "thought": True, "thoughtSignature": signature})
    elif parts and parts[-1].keys() == {"text"}:
        parts[-1]["thoughtSignature"] = signature
    else:
        parts.append({"text": "", "thoughtSignature": signature})


def _says_something(part: _Part) -> bool:
    return "functionCall" in part or ("thought" not in part and bool(part["text"]))


def _call(block: CallBlock) -> _Part:
    part: _Part = {
        "functionCall": {"id": acceptable_id(block.id), "name": acceptable_name(block.name), "args": block.args or {}}
    }
    if block.signature:
        part["thoughtSignature"] = block.signature
    return part


def _image(block: ImageBlock) -> _Part:
    if not fits(block, _IMAGES):
        return {"text": left_out(block)}
    return {"inlineData": {"mimeType": block.mime_type, "data": b64encode(block.data).decode()}}
