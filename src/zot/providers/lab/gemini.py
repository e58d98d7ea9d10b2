"""lab as the Gemini API."""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec

from zot.encoding import UNREADABLE
from zot.providers.lab.api import STATUSES, CurrentRun, LabBlock, LabRequest, LabTool, encode, next_call, tokens_in
from zot.providers.lab.directives import UsageDirective

_PATH = re.compile(r"/v1(?:beta|alpha)?/models/([^/]+):(generateContent|streamGenerateContent|countTokens)")
_STOPS = {"end_turn": "STOP", "tool_use": "STOP", "pause_turn": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
_STATUSES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}
#: Google's status for error codes that scripts name in other vendors' words.
_CODES: Mapping[str, int] = {**STATUSES, "overloaded_error": 503}
#: Formatted, not encoded: deltas are most of a stream.
_DELTA = b'data: {"candidates":[{"content":{"parts":[{"text":%b%b}],"role":"model"},"index":0}],%b\n\n'

_Part: TypeAlias = dict[str, Any]


class _CallId(msgspec.Struct):
    id: str | None = None


class _RequestPart(msgspec.Struct, rename="camel"):
    text: str | None = None
    function_call: _CallId | None = None
    function_response: Any = None


class _Content(msgspec.Struct):
    parts: list[_RequestPart] = []
    role: str | None = None


class _Function(msgspec.Struct, rename="camel"):
    name: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    parameters_json_schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Tool(msgspec.Struct, rename="camel"):
    function_declarations: list[_Function] = []


class _Request(msgspec.Struct):
    contents: list[_Content]
    tools: list[_Tool] | None = None


_requests = msgspec.json.Decoder(_Request)


class GeminiApi:
    """Requests and errors of ``POST /v1beta/models/MODEL:streamGenerateContent``, and the same without stream."""

    overloaded = 503

    def __init__(self, model: str, *, stream: bool) -> None:
        self._model = model
        self._stream = stream

    @classmethod
    def at(cls, path: str) -> GeminiApi | None:
        """Return the API for a path that names a model and a method; None otherwise."""
        found = _PATH.fullmatch(path)
        return cls(unquote(found[1]), stream=found[2] == "streamGenerateContent") if found else None

    def read(self, body: bytes) -> LabRequest:
        request = _requests.decode(body)
        run, ids = CurrentRun(), []
        for content in request.contents:
            if content.role == "model":
                calls = [part.function_call.id or "" for part in content.parts if part.function_call is not None]
                ids += calls
                run.reply(calls=bool(calls))
            elif content.role in ("user", None):
                run.user(_texts(content))
        declared = [function for tool in request.tools or () for function in tool.function_declarations]
        return LabRequest(self._model, self._stream, run.texts(), tuple(map(_tool, declared)), next_call(ids))

    def voice(self, ask: LabRequest, number: int, usage: UsageDirective) -> GeminiVoice:
        return GeminiVoice(ask.model, number, usage)

    def failure(self, status: int, message: str, code: str = "", *, retry_after: str = "") -> bytes:
        return _error(status, message, code, retry_after)

    def failure_headers(self, status: int) -> Mapping[str, str]:
        return {}

    def count(self, body: bytes) -> bytes:
        msgspec.json.decode(body, type=dict[str, Any])
        return encode({"totalTokens": tokens_in(body)})

    def models(self, name: str) -> bytes:
        return encode({"models": [_model(name)]})

    def model(self, name: str) -> bytes:
        return encode(_model(name))


class GeminiVoice:
    """Replies of generateContent. A call is one part, sent when its arguments are complete.

    A thought's signature is attached to the first call, or to the end of the text. Arguments that are not an object
    cannot be sent; the reply then ends with MALFORMED_FUNCTION_CALL, as the service ends it.
    """

    call_prefix = "call_lab_"

    def __init__(self, model: str, number: int, usage: UsageDirective) -> None:
        prompt = usage.input + usage.cache_read + usage.cache_write
        self._about = {"modelVersion": model, "responseId": f"resp_lab_{number}"}
        self._prompt = {"promptTokenCount": prompt, "totalTokenCount": prompt}
        self._usage = {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": usage.output,
            "totalTokenCount": prompt + usage.output,
        }
        # The end of a chunk that is not the last.
        self._tail = encode({"usageMetadata": self._prompt, **self._about})[1:]
        self._seal = ""
        self._malformed = ""

    def begin(self, *, twice: bool) -> list[bytes]:
        return [_DELTA % (b'""', b"", self._tail)]

    def open(self, block: LabBlock) -> list[bytes]:
        return [self._chunk([_sealed(block)])] if block.kind == "redacted" else []

    def delta(self, block: LabBlock, text: str) -> bytes:
        match block.kind:
            case "text":
                return _DELTA % (encode(text), b"", self._tail)
            case "thinking":
                return _DELTA % (encode(text), b',"thought":true', self._tail)
            case _:
                return b""

    def close(self, block: LabBlock) -> list[bytes]:
        if block.kind == "thinking":
            self._seal = _signature(block.text)
        part = self._call(block) if block.kind == "call" else None
        return [] if part is None else [self._chunk([part])]

    def end(self, blocks: list[LabBlock], stop: str, *, twice: bool) -> list[bytes]:
        last = _event({**self._ending([self._last()], stop), "usageMetadata": self._usage, **self._about})
        return [last] * (2 if twice else 1)

    def whole(self, blocks: list[LabBlock], stop: str) -> bytes:
        # The stream before this is not sent, nor its signature.
        self._seal = self._malformed = ""
        parts = [part for block in blocks if (part := self._spoken(block)) is not None]
        if self._seal:
            parts.append(self._last())
        return encode({**self._ending(parts, stop), "usageMetadata": self._usage, **self._about})

    def ping(self) -> bytes:
        # An empty chunk: Google's own client fails on a comment.
        return b"data: {%b\n\n" % self._tail

    def error(self, code: str, message: str) -> bytes:
        return b"data: %b\n\n" % _error(_CODES.get(code, 500), message, code)

    def _chunk(self, parts: list[_Part]) -> bytes:
        content = {"parts": parts, "role": "model"}
        return _event({"candidates": [{"content": content, "index": 0}], "usageMetadata": self._prompt, **self._about})

    def _ending(self, parts: list[_Part], stop: str) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if self._malformed:
            candidate |= {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": self._malformed}
        else:
            candidate["finishReason"] = _STOPS.get(stop, stop)
        return {"candidates": [candidate]}

    def _spoken(self, block: LabBlock) -> _Part | None:
        match block.kind:
            case "text":
                return {"text": block.text}
            case "thinking":
                self._seal = _signature(block.text)
                return {"text": block.text, "thought": True}
            case "redacted":
                return _sealed(block)
            case "call":
                return self._call(block)

    def _call(self, block: LabBlock) -> _Part | None:
        try:
            args = msgspec.json.decode(block.text, type=dict[str, Any])
        except UNREADABLE:
            self._malformed = f"Malformed function call: {block.tool}({block.text})"
            return None
        call = {**({"id": block.id} if block.id else {}), "name": block.tool, "args": args}
        return {"functionCall": call, **self._signed()}

    def _last(self) -> _Part:
        return {"text": "", **self._signed()}

    def _signed(self) -> dict[str, str]:
        seal, self._seal = self._seal, ""
        return {"thoughtSignature": seal} if seal else {}


def _tool(declared: _Function) -> LabTool:
    schema = declared.parameters_json_schema
    return LabTool(declared.name, declared.parameters if isinstance(schema, msgspec.UnsetType) else schema)


def _texts(content: _Content) -> list[str]:
    """Return the texts of a user content; with tool results, only those after the last one."""
    # A prompt after an aborted turn follows that turn's results and their images in the same content.
    texts: list[str] = []
    for part in content.parts:
        if part.function_response is not None:
            texts.clear()
        elif part.text is not None:
            texts.append(part.text)
    return texts


def _sealed(block: LabBlock) -> _Part:
    return {"text": "", "thought": True, "thoughtSignature": b64encode(block.text.encode(errors="replace")).decode()}


def _signature(text: str) -> str:
    return b64encode(f"lab-{binascii.crc32(text.encode(errors='replace')):08x}".encode()).decode()


def _model(name: str) -> dict[str, Any]:
    methods = ["generateContent", "countTokens"]
    about = {"version": "1", "displayName": name, "supportedGenerationMethods": methods}
    return {"name": f"models/{name}", **about, "inputTokenLimit": 200_000, "outputTokenLimit": 64_000}


def _error(status: int, message: str, code: str, retry_after: str = "") -> bytes:
    fallback = "INTERNAL" if status >= 500 else "INVALID_ARGUMENT"
    named = _STATUSES.get(_CODES.get(code, status), fallback) if code in _CODES or not code else code
    error: dict[str, Any] = {"code": status, "message": message, "status": named}
    if retry_after.isdigit():
        # Google's API has a detail in the body instead of a header.
        error["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_after}s"}]
    return encode({"error": error})


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % encode(chunk)
