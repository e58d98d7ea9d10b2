"""What a model service's refusal means: one table from HTTP status and vendor code to error types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from zot.errors import (
    AuthFailed,
    BadRequest,
    ContextTooLong,
    NotFound,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
)

_BY_STATUS: Mapping[int, type[ProviderError]] = {
    400: BadRequest,
    401: AuthFailed,
    403: AuthFailed,
    404: NotFound,
    413: ContextTooLong,
    422: BadRequest,
    429: RateLimited,
    503: Overloaded,
    529: Overloaded,
}
_BY_CODE: Mapping[str, type[ProviderError]] = {
    "authentication_error": AuthFailed,
    "permission_error": AuthFailed,
    "rate_limit_error": RateLimited,
    "overloaded_error": Overloaded,
    "not_found_error": NotFound,
    "invalid_request_error": BadRequest,
    "context_length_exceeded": ContextTooLong,
    # Google's: the canonical names of gRPC, and what it says of a key behind INVALID_ARGUMENT.
    "API_KEY_INVALID": AuthFailed,
    "UNAUTHENTICATED": AuthFailed,
    "PERMISSION_DENIED": AuthFailed,
    "RESOURCE_EXHAUSTED": RateLimited,
    "UNAVAILABLE": Overloaded,
    "NOT_FOUND": NotFound,
    "INVALID_ARGUMENT": BadRequest,
    "FAILED_PRECONDITION": BadRequest,
    "OUT_OF_RANGE": BadRequest,
    "UNIMPLEMENTED": BadRequest,
    "INTERNAL": ServiceFailed,
    "DEADLINE_EXCEEDED": ServiceFailed,
    "ABORTED": ServiceFailed,
    "CANCELLED": ServiceFailed,
    "UNKNOWN": ServiceFailed,
    "DATA_LOSS": ServiceFailed,
}


class _Hint(msgspec.Struct, rename="camel"):
    """What Google adds to an error; of each kind of hint we know one field."""

    reason: str | None = None
    retry_delay: str | None = None


class _Detail(msgspec.Struct):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None
    status: str | int | None = None
    details: Any = None

    @property
    def hints(self) -> list[_Hint]:
        try:
            return msgspec.convert(self.details, list[_Hint])
        except msgspec.ValidationError:
            return []  # Others have a field of that name, too.

    @property
    def word(self) -> str:
        """The vendor's own word for the error."""
        known = [hint.reason for hint in self.hints if hint.reason in _BY_CODE]
        status = self.status if isinstance(self.status, str) else None
        return str(next(iter(known), None) or status or self.code or self.type or "")


class _Body(msgspec.Struct):
    error: _Detail | str | None = None
    message: str | None = None
    request_id: str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    """What a body says, whatever its shape."""

    code: str = ""
    text: str = ""
    request_id: str = ""
    retry_after_s: float | None = None


def refusal(status: int, headers: Mapping[str, str], body: bytes, *, now: float) -> ProviderError:
    """Return the error for a response with a status that is not a success. ``now`` is in seconds since the epoch."""
    said = _read(body)
    kind = _BY_CODE.get(said.code) or _BY_STATUS.get(status) or (ServiceFailed if status >= 500 else BadRequest)
    asked = _retry_after(headers, now)
    return kind(
        f"http {status}: {said.text}",
        status=status,
        code=said.code,
        request_id=said.request_id or headers.get("request-id", "") or headers.get("x-request-id", ""),
        retry_after_s=said.retry_after_s if asked is None else asked,
    )


def in_stream(code: str, text: str) -> ProviderError:
    """Return the error for an error event inside a stream that had begun well."""
    kind = _BY_CODE.get(code, ServiceFailed)
    return kind(f"{code}: {text}", code=code)


def _read(body: bytes) -> _Refusal:
    try:
        # Google wraps the object in an array where it would have streamed one.
        parsed: _Body | list[_Body] = msgspec.json.decode(body, type=_Body | list[_Body])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Refusal(text=_words(body))
    if isinstance(parsed, list):
        parsed = parsed[0] if parsed else _Body()
    request_id = parsed.request_id or ""
    match parsed.error:
        case _Detail(message=message) as detail:
            return _Refusal(detail.word, message or _words(body), request_id, _delay(detail))
        case str(text):
            return _Refusal("", text, request_id)
        case None:
            return _Refusal("", parsed.message or _words(body), request_id)


def _delay(detail: _Detail) -> float | None:
    """Return the seconds that a body asks for, as in ``"retryDelay": "34.07s"``."""
    for hint in detail.hints:
        try:
            seconds = float((hint.retry_delay or "").removesuffix("s"))
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _words(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds the service asked for, or those until the date it named."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    date = _seconds_since_the_epoch(headers.get("retry-after", ""))
    return None if date is None else max(0.0, date - now)


def _seconds_since_the_epoch(date: str) -> float | None:
    """Read the date of an HTTP header; None if it is none."""
    if ":" not in date:
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        parsed = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    # HTTP knows no other zone; a date that names none is meant so, too.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
