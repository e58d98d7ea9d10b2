"""What a model service's refusal means: one table from HTTP status and vendor code to error types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from zot.providers.vendors import VENDORS

_BY_STATUS: Mapping[int, type[ProviderError]] = {
    400: BadRequest,
    401: AuthFailed,
    402: AuthFailed,
    403: AuthFailed,
    404: NotFound,
    413: ContextTooLong,
    422: BadRequest,
    429: RateLimited,
    503: Overloaded,
    529: Overloaded,
}
#: Said of an account that has used up what was paid for: waiting does not help.
_UNPAID = ("insufficient_quota", "exceeded_current_quota_error", "billing_not_active", "billing_hard_limit_reached")
_BY_CODE: Mapping[str, type[ProviderError]] = {
    "authentication_error": AuthFailed,
    "permission_error": AuthFailed,
    "invalid_api_key": AuthFailed,
    "invalid_authentication_error": AuthFailed,
    "incorrect_api_key_error": AuthFailed,
    **dict.fromkeys(_UNPAID, AuthFailed),
    "rate_limit_error": RateLimited,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_reached_error": RateLimited,
    "overloaded_error": Overloaded,
    "engine_overloaded_error": Overloaded,
    "not_found_error": NotFound,
    "resource_not_found_error": NotFound,
    "model_not_found": NotFound,
    "model_decommissioned": NotFound,
    "invalid_model": NotFound,
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,
    "content_filter": ContentRefused,
    "content_policy_violation": ContentRefused,
    "invalid_prompt": ContentRefused,
}
#: Words that services use for nearly everything: they say less than a status does, and more than nothing.
_BY_VAGUE_CODE: Mapping[str, type[ProviderError]] = {"invalid_request_error": BadRequest}


class _Detail(msgspec.Struct):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None
    metadata: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    """Whatever has been seen: most put the details into ``error``, some beside it."""

    error: _Detail | str | None = None
    message: Any = None
    type: str | None = None
    code: str | int | None = None
    request_id: str | None = None


class _Told(msgspec.Struct, frozen=True):
    """What a body says. ``words`` are those by which a service names the kind of error, the most telling first."""

    text: str
    words: tuple[str, ...] = ()
    request_id: str = ""


def refusal(status: int, headers: Mapping[str, str], body: bytes, *, now: float) -> ProviderError:
    """Return the error for a response with a status that is not a success. ``now`` is in seconds since the epoch."""
    told = _read(body)
    usual = _BY_STATUS.get(status) or (ServiceFailed if status >= 500 else BadRequest)
    return (_by_words(told.words) or usual)(
        f"http {status}: {told.text}",
        status=status,
        code=next(iter(told.words), ""),
        request_id=told.request_id or headers.get("request-id", "") or headers.get("x-request-id", ""),
        retry_after_s=_retry_after(headers, now),
    )


def in_stream(code: str, text: str) -> ProviderError:
    """Return the error for an error event inside a stream that had begun well."""
    return _in_stream((code,), text)


def reported(body: bytes) -> ProviderError:
    """Return the error for an event inside a stream that has the form of an error's body."""
    told = _read(body)
    return _in_stream(told.words, told.text)


def advice(error: ProviderError, provider: str) -> str:
    """Return what a person can do about an error of ``provider``; "" if nobody knows."""
    match error:
        case AuthFailed() if error.status == 402 or error.code in _UNPAID:
            return "the account has no credit left"
        case AuthFailed() if provider in VENDORS and VENDORS[provider].key_names:
            return f"check {' or '.join(VENDORS[provider].key_names)}, or run `zot login {provider}`"
        case NotFound():
            return f"`zot models --provider {provider}` lists the models"
        case ContextTooLong():
            return "compact or clear the conversation"
        case _:
            return ""


def _in_stream(words: tuple[str, ...], text: str) -> ProviderError:
    code = next(iter(words), "")
    by_status = _BY_STATUS.get(int(code)) if code.isascii() and code.isdecimal() and len(code) == 3 else None
    vague = next((kind for word in words if (kind := _BY_VAGUE_CODE.get(word)) is not None), None)
    kind = _by_words(words) or by_status or vague or ServiceFailed
    return kind(f"{code}: {text}" if code else text, code=code)


def _by_words(words: tuple[str, ...]) -> type[ProviderError] | None:
    return next((kind for word in words if (kind := _BY_CODE.get(word)) is not None), None)


def _read(body: bytes) -> _Told:
    """Return what an error body says, whatever its shape."""
    try:
        parsed = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Told(_words(body))
    request_id = parsed.request_id or ""
    match parsed.error:
        case _Detail(type=kind, message=message, code=code):
            return _Told(_explained(message or _words(body), parsed.error), _named(code, kind), request_id)
        case str(text):
            return _Told(text, (), request_id)
        case None:
            text = parsed.message if isinstance(parsed.message, str) and parsed.message else _words(body)
            return _Told(text, _named(parsed.code, parsed.type), request_id)


def _named(code: str | int | None, kind: str | None) -> tuple[str, ...]:
    return tuple(str(word) for word in (code, kind) if word)


def _explained(text: str, detail: _Detail) -> str:
    """Return the text with what the service behind the service said: without that, many say nothing at all."""
    raw = (detail.metadata or {}).get("raw")
    return f"{text}: {' '.join(raw.split())}" if isinstance(raw, str) and raw.strip() else text


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
