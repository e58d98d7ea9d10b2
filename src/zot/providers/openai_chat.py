"""OpenAI Chat Completions: how to ask, for everybody who speaks it. How to understand is in `openai_chat_stream`.

What was sent stays as it is, so that a conversation is only ever appended to: whoever caches prompts finds the same
bytes again.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from zot.config.address import COMPLETIONS, api_base
from zot.config.vendors import ChatQuirks
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
from zot.providers.images import fits, left_out
from zot.providers.openai_chat_stream import ChatDecoder
from zot.providers.reasoning_details import unsealed

_BRIDGE = b',{"role":"assistant","content":"I see."}'


class ChatCompletions:
    """The API, as one vendor wants it."""

    def __init__(self, *, base_url: str, origin: str, quirks: ChatQuirks) -> None:
        self._url = f"{api_base(base_url)}{COMPLETIONS}"
        self._origin = origin
        self._quirks = quirks
        self._call_ids = quirks.call_ids

    def request(self, request: Request, key: str) -> HttpRequest:
        """Return the HTTP request that asks for one streamed reply. Without a key there is no authorization."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return HttpRequest(url=self._url, headers=headers, body=self._body(request))

    def decoder(self, request: Request) -> Decoder:
        """Return a decoder for the reply to a request."""
        return ChatDecoder(CallIds(request.messages, request.encoded.calls), think_tags=self._quirks.think_tags)

    def _body(self, request: Request) -> bytes:
        """Return the request body, made of the parts that were encoded before and those that are new."""
        head: dict[str, Any] = {"model": request.model, "stream": True}
        head[self._quirks.max_tokens_field] = request.max_tokens
        if self._quirks.usage_on_request:
            head["stream_options"] = {"include_usage": True}
        head.update(self._reasoning(request))
        if request.tools:
            head["tools"] = [_tool(tool) for tool in request.tools]
        # One copy of what was said before, and no more: a long conversation is a megabyte.
        return b"".join([encode(head)[:-1], b',"messages":[', *self._messages(request), b"]}"])

    def _reasoning(self, request: Request) -> Mapping[str, Any]:
        fitting = (levels for prefix, levels in self._quirks.reasoning if request.model.startswith(prefix))
        return next(fitting, {}).get(request.reasoning, {})

    def _messages(self, request: Request) -> Iterator[bytes | bytearray | memoryview]:
        messages = request.encoded.images.of(request.messages, self._quirks.images)
        text, state = request.encoded.text(messages, self._appended)
        # Every message begins with a comma but the first of all.
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
        """Return what continues the list of messages after ``state``, and the state then.

        The state is who came last: ``assistant`` or ``tool``; or a user who may go on: ``parts`` if a list of parts is
        still open, else ``text`` and the texts that are to be sent when the user has finished. "" at the beginning.
        """
        match message.role:
            case "assistant":
                return self._assistant(message, state)
            case "tool":
                return self._results(message, state)
            case _:
                return self._user(self._parts(message.content), state)

    def _user(self, parts: Sequence[Mapping[str, Any]], state: str) -> tuple[bytes, str]:
        """One message for all that a user says in a row: many servers refuse a second one."""
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
        """Return the thoughts in the form in which the vendor wants them back; nothing where it does not."""
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
        # Arguments that are none would make the service refuse the conversation; the result says what was written.
        function = {"name": acceptable_name(call.name), "arguments": encode(call.args or {}).decode()}
        return {"id": self._call_id(call.id), "type": "function", "function": function}

    def _call_id(self, call_id: str) -> str:
        return acceptable_id(call_id, self._call_ids)

    def _results(self, message: Message, state: str) -> tuple[bytes, str]:
        """Return one message for each result; their images, which none of those can hold, follow as the user's."""
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
        """Return text and images as the parts of a message, without what is blank."""
        parts: list[dict[str, Any]] = []
        for block in content:
            if isinstance(block, ImageBlock):
                parts.append(self._image(block))
            elif isinstance(block, TextBlock) and block.text.strip():
                parts.append({"type": "text", "text": block.text})
        return parts

    def _image(self, block: ImageBlock) -> dict[str, Any]:
        if not fits(block, self._quirks.images):
            return {"type": "text", "text": left_out(block)}
        url = f"data:{block.mime_type};base64,{b64encode(block.data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}


def _held(state: str) -> list[dict[str, Any]]:
    """Return the texts that a user has said and that are still to be sent."""
    texts = msgspec.json.decode(state[4:], type=list[str]) if state.startswith("text") else []
    return [{"type": "text", "text": text} for text in texts]


def _end(state: str) -> bytes:
    """Return what ends the user's message, if that is what came last."""
    if state == "parts":
        return b"]}"
    if not (held := _held(state)):
        return b""
    # One text is sent as it is: servers that know nothing of images often know nothing of lists, either.
    return b"," + encode({"role": "user", "content": held[0]["text"] if len(held) == 1 else held})


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
