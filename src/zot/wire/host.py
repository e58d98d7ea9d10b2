"""Host protocol v1: requests, and the one flat object that answers each. Does no I/O."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from zot.encoding import UNREADABLE, encode, explain, thread_safe_type
from zot.errors import (
    AuthFailed,
    ConnectionFailed,
    KeyMissing,
    Overloaded,
    PromptTooLong,
    ProtocolError,
    ProviderError,
    RateLimited,
    ServiceFailed,
    SessionBusy,
    Stalled,
    StreamBroken,
)
from zot.text import replace_surrogate_escapes
from zot.wire.lines import may_repeat_type, refuse_repeated_type

PROTOCOL: Final = "v1"
PROTOCOL_VERSION: Final = 1
MAX_INPUT_BYTES: Final = 1024 * 1024
TIMEOUT_MS: Final = 30_000
#: How long a delivered answer is replayed for the same key, by default.
ANSWER_TTL_S: Final = 60.0
#: Exit codes: the request cannot be run; zot is not set up; zot failed.
BAD_INPUT: Final = 2
NOT_SET_UP: Final = 3
FAILED: Final = 4
TIMEOUT_MESSAGE: Final = "request exceeded timeout_ms"
#: Appended for a request that timed out before it could start.
WAITED_MESSAGE: Final = ": it was still waiting for its session, or for requests before it"
#: The id in the response to a request without a readable id.
UNKNOWN: Final = "unknown"

ErrorCode: TypeAlias = Literal[
    "INVALID_REQUEST", "TIMEOUT", "PROVIDER_AUTH", "PROVIDER_RATE_LIMIT", "PROVIDER_DOWN", "INTERNAL"
]
RequestType: TypeAlias = Literal["run", "ping", "cancel", "session_close"]

_BOM: Final = b"\xef\xbb\xbf"


class Usage(msgspec.Struct, frozen=True):
    """Tokens, as integers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    @staticmethod
    def of(prompt_tokens: int, completion_tokens: int) -> Usage:
        """Return both and their sum."""
        return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request."""

    ok: bool
    request_id: str
    session_id: str
    text: str = ""
    error_code: ErrorCode | None = None
    error_message: str | None = None
    usage: Usage = Usage()
    replayed: bool | msgspec.UnsetType = msgspec.UNSET


class Ids(msgspec.Struct, frozen=True):
    """The ids of a request, as its response repeats them."""

    request_id: str = UNKNOWN
    session_id: str = ""

    def success(self, text: str, usage: Usage | None = None, *, replayed: bool = False) -> Response:
        """Return the response to a request that succeeded."""
        return Response(
            ok=True,
            request_id=self.request_id,
            session_id=self.session_id,
            text=text,
            usage=usage or Usage(),
            replayed=True if replayed else msgspec.UNSET,
        )

    def failure(self, code: ErrorCode, message: str, usage: Usage | None = None) -> Response:
        """Return the response to a request that failed."""
        return Response(
            ok=False,
            request_id=self.request_id,
            session_id=self.session_id,
            error_code=code,
            error_message=message,
            usage=usage or Usage(),
        )


class Refused(ProtocolError):
    """A line is no valid request. ``ids`` are the readable ones; ``goes_on`` means that the line may be incomplete."""

    def __init__(self, message: str, ids: Ids, *, goes_on: bool = False) -> None:
        super().__init__(message)
        self.ids = ids
        self.goes_on = goes_on


class Request(msgspec.Struct, frozen=True):
    """One line of input. The required fields depend on its type."""

    protocol_version: int | None = None
    type: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    prompt: str | None = None
    channel_id: str | None = None
    agent: str | None = None
    timeout_ms: Annotated[float, msgspec.Meta(ge=1)] | None = None
    idempotency_key: str | None = None
    target_request_id: str | None = None
    cancel_request_id: str | None = None

    @property
    def ids(self) -> Ids:
        """The ids for the response."""
        named = self.request_id is not None and _is_given(self.request_id)
        return Ids(self.request_id or UNKNOWN if named else UNKNOWN, self.session_id or "")

    @property
    def timeout_s(self) -> float:
        """The time limit in seconds."""
        return (self.timeout_ms or TIMEOUT_MS) / 1000

    @property
    def key(self) -> str | None:
        """The idempotency key; None if absent or blank."""
        return self.idempotency_key if _is_given(self.idempotency_key) else None

    @property
    def agent_name(self) -> str:
        """The agent alias."""
        return self.agent if self.agent is not None and _is_given(self.agent) else "default"

    @property
    def target(self) -> str | None:
        """The id of the request to cancel."""
        return self.target_request_id if self.target_request_id is not None else self.cancel_request_id


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)

#: Required fields of each type, in the order in which they are checked.
_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "run": ("request_id", "session_id", "prompt"),
    "ping": ("request_id",),
    "cancel": ("request_id",),
    "session_close": ("request_id", "session_id"),
}


def decode_request(line: bytes) -> Request:
    """Decode a request. Raise Refused, with the readable ids, if the line is none."""
    try:
        line.decode()  # The typed decode does not check UTF-8 in skipped values.
        request = _requests.decode(line)
    except UNREADABLE as problem:
        request = _decode_leniently(line, problem)
    if may_repeat_type(line):
        _refuse_repeated_type(line, request.ids)
    check(request)
    return request


def check(request: Request) -> None:
    """Raise Refused if a request lacks a field that its type requires."""
    if request.protocol_version not in (None, PROTOCOL_VERSION):
        raise Refused(f"protocol_version must be {PROTOCOL_VERSION}", request.ids)
    required = _REQUIRED.get(request.type or "run")
    if required is None:
        raise Refused(f"type must be one of {', '.join(_REQUIRED)}", request.ids)
    for name in required:
        value: str | None = getattr(request, name)
        if value is None:
            raise Refused(f"{name} is missing", request.ids)
        if not _is_given(value):
            raise Refused(f"{name} is blank", request.ids)
    if request.type == "cancel" and not _is_given(request.target):
        raise Refused("target_request_id is missing or blank", request.ids)


def encode_response(response: Response) -> bytes:
    """Return a response as its line. Lone surrogates become U+FFFD."""
    return _encoded(response) + b"\n"


class EventLine(msgspec.Struct, frozen=True, tag="event", tag_field="type"):
    """An event of the run, sent before the response. ``seq`` counts from 1 for each request."""

    request_id: str
    seq: int
    event: Any


def encode_event(line: EventLine) -> bytes:
    """Return an event as its line."""
    return encode(line) + b"\n"


def code_of(problem: BaseException) -> ErrorCode:
    """Return the code for a failure: by its HTTP status, else by its type, never by its message."""
    if isinstance(problem, ProviderError):
        if problem.status in (401, 403):
            return "PROVIDER_AUTH"
        if problem.status == 429:
            return "PROVIDER_RATE_LIMIT"
        if problem.status >= 500:
            return "PROVIDER_DOWN"
    match problem:
        case AuthFailed() | KeyMissing():
            return "PROVIDER_AUTH"
        case RateLimited():
            return "PROVIDER_RATE_LIMIT"
        case Overloaded() | ServiceFailed() | ConnectionFailed() | Stalled() | StreamBroken():
            return "PROVIDER_DOWN"
        case SessionBusy():
            return "TIMEOUT"
        case PromptTooLong():
            return "INVALID_REQUEST"
        case _:
            return "INTERNAL"


def _decode_leniently(line: bytes, problem: Exception) -> Request:
    """Decode a request that has lone surrogates; else raise Refused with the readable ids."""
    if b"\\u" in line:
        try:
            return _requests.decode(replace_surrogate_escapes(line))
        except UNREADABLE as another:
            problem = another
    raise Refused(f"not a request: {_reason(line, problem)}", _ids_in(line)) from None


def _reason(line: bytes, problem: Exception) -> str:
    """Return why a line is no request."""
    if line.startswith(_BOM):
        return "it begins with a byte order mark, which JSON does not have"
    if isinstance(problem, msgspec.ValidationError):
        return explain(problem)
    return f"{explain(problem)}; it must be one JSON object, on one line"


def _refuse_repeated_type(line: bytes, ids: Ids) -> None:
    """Raise Refused if the request has two types, or too many odd keys to check."""
    try:
        refuse_repeated_type(line, noun="request")
    except ProtocolError as problem:
        raise Refused(str(problem), ids) from None


class _Loose(msgspec.Struct, frozen=True):
    """The ids in a line that is no valid request, undecoded."""

    request_id: msgspec.Raw = msgspec.Raw(b"null")
    session_id: msgspec.Raw = msgspec.Raw(b"null")


def _ids_in(line: bytes) -> Ids:
    """Return the readable ids of a line that is no valid request."""
    try:
        found = msgspec.json.decode(replace_surrogate_escapes(line), type=thread_safe_type(_Loose))
    except UNREADABLE:
        return Ids()
    request_id = _text(found.request_id)
    return Ids(request_id if request_id.strip() else UNKNOWN, _text(found.session_id))


def _text(raw: msgspec.Raw) -> str:
    """Return the decoded string; "" if the value is no string."""
    try:
        return msgspec.json.decode(raw, type=str)
    except UNREADABLE:
        return ""


def _is_given(value: str | None) -> bool:
    return value is not None and bool(value.strip())


def _encoded(response: Response) -> bytes:
    try:
        return msgspec.json.encode(response)
    except UnicodeEncodeError:
        return encode(response)
