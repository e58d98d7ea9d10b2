"""lab as the Anthropic Messages API."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from zot.encoding import UNREADABLE
from zot.providers.lab.api import CurrentRun, LabBlock, LabRequest, LabTool, encode, next_call, tokens_in
from zot.providers.lab.directives import UsageDirective

_CODES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_RETRYABLE = (408, 409, 429)
#: Formatted, not encoded: deltas are most of a stream.
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b%b}}\n\n'
_STOPS = {"length": "max_tokens"}


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    id: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part]

    @property
    def parts(self) -> list[_Part]:
        return [_Part("text", self.content)] if isinstance(self.content, str) else self.content


class _Tool(msgspec.Struct):
    name: str = ""
    input_schema: msgspec.Raw = msgspec.Raw(b"{}")


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]
    stream: bool = False
    tools: list[_Tool] | None = None


_requests = msgspec.json.Decoder(_Request)


class AnthropicApi:
    """Requests and errors of ``POST /v1/messages``."""

    overloaded = 529

    def read(self, body: bytes) -> LabRequest:
        request = _requests.decode(body)
        run, ids = CurrentRun(), []
        for message in request.messages:
            if message.role == "assistant":
                calls = [part.id for part in message.parts if part.type == "tool_use"]
                ids += calls
                run.reply(calls=bool(calls))
            elif message.role == "user":
                run.user(_texts(message))
        tools = tuple(LabTool(tool.name, tool.input_schema) for tool in request.tools or ())
        return LabRequest(request.model, request.stream, run.texts(), tools, next_call(ids))

    def voice(self, ask: LabRequest, number: int, usage: UsageDirective) -> AnthropicVoice:
        return AnthropicVoice(ask.model, number, usage)

    def failure(self, status: int, message: str, code: str = "", *, retry_after: str = "") -> bytes:
        fallback = "api_error" if status >= 500 else "invalid_request_error"
        return _error(code or _CODES.get(status, fallback), message)

    def failure_headers(self, status: int) -> Mapping[str, str]:
        # Claude Code retries even a 401 for minutes unless advised against it.
        return {"x-should-retry": "true" if status in _RETRYABLE or status >= 500 else "false"}

    def count(self, body: bytes) -> bytes:
        self.read(body)
        return encode({"input_tokens": tokens_in(body)})

    def models(self, name: str) -> bytes:
        return encode({"data": [_model(name)], "has_more": False, "first_id": name, "last_id": name})

    def model(self, name: str) -> bytes:
        return encode(_model(name))


class AnthropicVoice:
    """Replies of ``POST /v1/messages``."""

    call_prefix = "toolu_lab_"

    def __init__(self, model: str, number: int, usage: UsageDirective) -> None:
        self._usage = usage
        self._message: dict[str, Any] = {
            "id": f"msg_lab_{number}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._counted(1),
        }

    def begin(self, *, twice: bool) -> list[bytes]:
        return [_event("message_start", {"message": self._message})]

    def open(self, block: LabBlock) -> list[bytes]:
        empty: dict[str, Any]
        match block.kind:
            case "text":
                empty = {"type": "text", "text": ""}
            case "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
            case "redacted":
                empty = {"type": "redacted_thinking", "data": block.text}
            case "call":
                empty = {"type": "tool_use", "id": block.id, "name": block.tool, "input": {}}
        return [_event("content_block_start", {"index": block.index, "content_block": empty})]

    def delta(self, block: LabBlock, text: str) -> bytes:
        match block.kind:
            case "text":
                opening = b'{"type":"text_delta","text":'
            case "thinking":
                opening = b'{"type":"thinking_delta","thinking":'
            case _:
                opening = b'{"type":"input_json_delta","partial_json":'
        return _DELTA % (block.index, opening, encode(text))

    def close(self, block: LabBlock) -> list[bytes]:
        stop = _event("content_block_stop", {"index": block.index})
        if block.kind != "thinking":
            return [stop]
        delta = {"type": "signature_delta", "signature": _signature(block)}
        return [_event("content_block_delta", {"index": block.index, "delta": delta}), stop]

    def end(self, blocks: list[LabBlock], stop: str, *, twice: bool) -> list[bytes]:
        delta = {"stop_reason": _STOPS.get(stop, stop), "stop_sequence": None}
        usage = {"output_tokens": self._usage.output}
        events = [_event("message_delta", {"delta": delta, "usage": usage})]
        return [*events * (2 if twice else 1), _event("message_stop", {})]

    def whole(self, blocks: list[LabBlock], stop: str) -> bytes:
        return encode(
            {
                **self._message,
                "content": [_spoken(block) for block in blocks],
                "stop_reason": _STOPS.get(stop, stop),
                "usage": self._counted(self._usage.output),
            }
        )

    def ping(self) -> bytes:
        return _event("ping", {})

    def error(self, code: str, message: str) -> bytes:
        return b"event: error\ndata: %b\n\n" % _error(code, message)

    def _counted(self, output: int) -> dict[str, int]:
        return {
            "input_tokens": self._usage.input,
            "cache_creation_input_tokens": self._usage.cache_write,
            "cache_read_input_tokens": self._usage.cache_read,
            "output_tokens": output,
        }


def _texts(message: _Message) -> list[str]:
    """Return the texts of a user message; with tool results, only those after the last one."""
    # A prompt after an aborted turn follows that turn's results in the same message.
    texts: list[str] = []
    for part in message.parts:
        if part.type == "tool_result":
            texts.clear()
        elif part.type == "text":
            texts.append(part.text)
    return texts


def _spoken(block: LabBlock) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text}
        case "thinking":
            return {"type": "thinking", "thinking": block.text, "signature": _signature(block)}
        case "redacted":
            return {"type": "redacted_thinking", "data": block.text}
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.tool, "input": _input(block.text)}


def _input(arguments: str) -> Any:
    """Return the arguments as JSON, or as text if malformed: a whole body has no other form for them."""
    try:
        return msgspec.json.decode(arguments)
    except UNREADABLE:
        return arguments


def _model(name: str) -> dict[str, Any]:
    created = "1970-01-01T00:00:00Z"
    return {"type": "model", "id": name, "display_name": name, "created_at": created, "lifecycle": "active"}


def _signature(block: LabBlock) -> str:
    return f"lab-{binascii.crc32(block.text.encode(errors='replace')):08x}"


def _error(code: str, message: str) -> bytes:
    return encode({"type": "error", "error": {"type": code, "message": message}})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **fields}))
