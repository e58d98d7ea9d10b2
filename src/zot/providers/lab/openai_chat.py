"""lab as the OpenAI Chat Completions API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from zot.providers.lab.api import (
    CurrentRun,
    LabBlock,
    LabRequest,
    LabTool,
    encode,
    next_call,
    tokens_in,
)
from zot.providers.lab.directives import UsageDirective

_STOPS = {"end_turn": "stop", "tool_use": "tool_calls", "refusal": "content_filter", "pause_turn": "stop"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _CallId(msgspec.Struct):
    id: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_CallId] | None = None

    @property
    def parts(self) -> list[_Part]:
        return [_Part("text", self.content)] if isinstance(self.content, str) else self.content or []


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Function(msgspec.Struct, frozen=True):
    name: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _Tool(msgspec.Struct):
    function: _Function = _Function()


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    tools: list[_Tool] | None = None


_requests = msgspec.json.Decoder(_Request)


class OpenAiApi:
    """Common part of OpenAI's APIs."""

    overloaded = 503

    def failure(self, status: int, message: str, code: str = "", *, retry_after: str = "") -> bytes:
        return openai_error(status, message, code)

    def failure_headers(self, status: int) -> Mapping[str, str]:
        return {}

    def count(self, body: bytes) -> bytes:
        msgspec.json.decode(body, type=dict[str, Any])
        return encode({"object": "response.input_tokens", "input_tokens": tokens_in(body)})

    def models(self, name: str) -> bytes:
        return encode({"object": "list", "data": [_model(name)]})

    def model(self, name: str) -> bytes:
        return encode(_model(name))


class ChatApi(OpenAiApi):
    """Requests and errors of ``POST /v1/chat/completions``."""

    def read(self, body: bytes) -> LabRequest:
        request = _requests.decode(body)
        run, ids, before = CurrentRun(), [], ""
        for message in request.messages:
            if message.role == "assistant":
                ids += [call.id for call in message.tool_calls or ()]
                run.reply(calls=bool(message.tool_calls))
            elif message.role == "user":
                run.user(_texts(message, before))
            before = message.role
        usage = request.stream_options is not None and request.stream_options.include_usage
        tools = tuple(LabTool(tool.function.name, tool.function.parameters) for tool in request.tools or ())
        return LabRequest(request.model, bool(request.stream), run.texts(), tools, next_call(ids), usage)

    def voice(self, ask: LabRequest, number: int, usage: UsageDirective) -> ChatVoice:
        return ChatVoice(ask, number, usage)


class ChatVoice:
    """Replies of ``POST /v1/chat/completions``. Thinking is sent as ``reasoning_content``, as many servers do."""

    call_prefix = "call_lab_"

    def __init__(self, ask: LabRequest, number: int, usage: UsageDirective) -> None:
        self._wants_usage = ask.wants_usage
        self._usage: dict[str, Any] = {
            "prompt_tokens": usage.input + usage.cache_read + usage.cache_write,
            "completion_tokens": usage.output,
            "total_tokens": usage.input + usage.cache_read + usage.cache_write + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        }
        if usage.cache_write:  # Not in OpenAI's API; other servers use this field.
            self._usage["prompt_tokens_details"] = {
                "cached_tokens": usage.cache_read,
                "cache_write_tokens": usage.cache_write,
            }
        self._about = {"id": f"chatcmpl-lab-{number}", "created": 0, "model": ask.model}

    def begin(self, *, twice: bool) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def open(self, block: LabBlock) -> list[bytes]:
        if block.kind != "call":
            return []
        function = {"name": block.tool, "arguments": ""}
        call = {"index": block.call_index, "id": block.id, "type": "function", "function": function}
        return [self._chunk({"tool_calls": [call]})]

    def delta(self, block: LabBlock, text: str) -> bytes:
        match block.kind:
            case "text":
                return self._chunk({"content": text})
            case "call":
                return self._chunk({"tool_calls": [{"index": block.call_index, "function": {"arguments": text}}]})
            case _:
                return self._chunk({"reasoning_content": text})

    def close(self, block: LabBlock) -> list[bytes]:
        return []

    def end(self, blocks: list[LabBlock], stop: str, *, twice: bool) -> list[bytes]:
        events = [self._chunk({}, _STOPS.get(stop, stop))]
        if self._wants_usage:
            usage = {"object": "chat.completion.chunk", **self._about, "choices": [], "usage": self._usage}
            events += [_event(encode(usage))] * (2 if twice else 1)
        return [*events, _event(b"[DONE]")]

    def whole(self, blocks: list[LabBlock], stop: str) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": _said(blocks, "text") or None, "refusal": None}
        if thoughts := _said(blocks, "thinking"):
            message["reasoning_content"] = thoughts
        calls = [block for block in blocks if block.kind == "call"]
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.text}}
                for call in calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _STOPS.get(stop, stop)}
        return encode({"object": "chat.completion", **self._about, "choices": [choice], "usage": self._usage})

    def ping(self) -> bytes:
        return b": ping\n\n"

    def error(self, code: str, message: str) -> bytes:
        return _event(openai_error(500, message, code))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event(encode({"object": "chat.completion.chunk", **self._about, "choices": [choice]}))


def openai_error(status: int, message: str, code: str) -> bytes:
    """Return an error body in OpenAI's format."""
    kind = "server_error" if status >= 500 else "requests" if status == 429 else "invalid_request_error"
    return encode(
        {"error": {"message": message, "type": code or kind, "param": None, "code": code or _CODES.get(status)}}
    )


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "zot"}


def _texts(message: _Message, before: str) -> list[str]:
    """Return the texts of a user message; if it has a tool's images, only those after the last image."""
    parts = message.parts
    if before == "tool":
        images = [index for index, part in enumerate(parts) if part.type == "image_url"]
        parts = parts[images[-1] :] if images else parts
    return [part.text for part in parts if part.type == "text"]


def _said(blocks: list[LabBlock], kind: str) -> str:
    return "".join(block.text for block in blocks if block.kind == kind)


def _event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data
