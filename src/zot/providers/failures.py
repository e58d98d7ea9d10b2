"""What a model service's refusal means: one table from HTTP status and vendor code to error types."""

from __future__ import annotations

from collections.abc import Mapping

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
}
_MAX_TEXT = 2000


class _Detail(msgspec.Struct):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    error: _Detail | str | None = None
    message: str | None = None
    request_id: str | None = None


def refusal(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return the error for a response with a status that is not a success."""
    code, text, request_id = _read(body)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or (ServiceFailed if status >= 500 else BadRequest)
    return kind(
        f"{provider}: http {status}: {_clip(text)}",
        provider=provider,
        status=status,
        code=code,
        request_id=request_id or headers.get("request-id", "") or headers.get("x-request-id", ""),
        retry_after_s=_retry_after(headers),
    )


def in_stream(provider: str, code: str, text: str) -> ProviderError:
    """Return the error for an error event inside a stream that had begun well."""
    kind = _BY_CODE.get(code, ServiceFailed)
    return kind(f"{provider}: {code}: {_clip(text)}", provider=provider, code=code)


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


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds the service asked for. The HTTP-date form is left to our own schedule."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None
