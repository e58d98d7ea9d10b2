"""What a model service's refusal means: one table from HTTP status and vendor code to error types."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from zot.errors import (
    AuthFailed,
    BadRequest,
    ContentRefused,
    ContextTooLong,
    NotFound,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
)

_MAX_MESSAGE = 2000

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
    # OpenAI
    "invalid_api_key": AuthFailed,
    "rate_limit_exceeded": RateLimited,
    "too_many_requests": RateLimited,
    "server_is_overloaded": Overloaded,
    "slow_down": Overloaded,
    "model_not_found": NotFound,
    "content_filter": ContentRefused,
    "content_policy_violation": ContentRefused,
    "image_content_policy_violation": ContentRefused,
    "invalid_prompt": ContentRefused,
    "bio_policy": ContentRefused,
    "cyber_policy": ContentRefused,
    "misalignment_policy_violation": ContentRefused,
    "invalid_image": BadRequest,
    "invalid_image_format": BadRequest,
    "invalid_base64_image": BadRequest,
    "image_too_large": BadRequest,
    "image_too_small": BadRequest,
    "image_parse_error": BadRequest,
    "image_file_too_large": BadRequest,
    "unsupported_image_media_type": BadRequest,
    "empty_image_file": BadRequest,
}


class _Detail(msgspec.Struct):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    error: _Detail | str | None = None
    message: str | None = None
    request_id: str | None = None


def refusal(status: int, headers: Mapping[str, str], body: bytes, *, now: float) -> ProviderError:
    """Return the error for a response with a status that is not a success. ``now`` is in seconds since the epoch."""
    code, text, request_id = _read(body)
    kind = _BY_CODE.get(code, BadRequest)
    if kind is BadRequest:  # Some say so to everything, where the status says what is wrong with it.
        kind = _BY_STATUS.get(status, ServiceFailed if status >= 500 else BadRequest)
    return kind(
        f"http {status}: {text}",
        status=status,
        code=code,
        request_id=request_id or headers.get("request-id", "") or headers.get("x-request-id", ""),
        retry_after_s=_retry_after(headers, now),
    )


def sign(error: ProviderError, *, provider: str, mask: Callable[[str], str]) -> None:
    """Say whose error it is, without what ``mask`` hides and in few words. Once: it may be raised again."""
    if error.provider:
        return
    error.provider = provider
    # Before it is shortened: half a key would not be recognised.
    text = mask(str(error))
    error.code, error.request_id = mask(error.code), mask(error.request_id)
    error.args = (f"{provider}: {text if len(text) <= _MAX_MESSAGE else f'{text[:_MAX_MESSAGE]} ...'}",)


def in_stream(code: str, text: str) -> ProviderError:
    """Return the error for an error event inside a stream that had begun well."""
    kind = _BY_CODE.get(code, ServiceFailed)
    return kind(f"{code}: {text}", code=code)


def _read(body: bytes) -> tuple[str, str, str]:
    """Return code, text and request id of an error body, whatever its shape."""
    try:
        parsed = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", _words(body), ""
    request_id = parsed.request_id or ""
    match parsed.error:
        case _Detail(type=kind, message=message, code=code):
            return str(code or kind or ""), message or _words(body), request_id
        case str(text):
            return "", text, request_id
        case None:
            return "", parsed.message or _words(body), request_id


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
