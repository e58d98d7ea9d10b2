"""A refusal becomes the error that says who can act."""

from __future__ import annotations

import json

import pytest

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
from zot.providers.failures import in_stream, refusal

BY_STATUS: dict[int, type[ProviderError]] = {
    400: BadRequest,
    401: AuthFailed,
    402: BadRequest,
    403: AuthFailed,
    404: NotFound,
    408: BadRequest,
    413: ContextTooLong,
    418: BadRequest,
    422: BadRequest,
    429: RateLimited,
    500: ServiceFailed,
    502: ServiceFailed,
    503: Overloaded,
    504: ServiceFailed,
    529: Overloaded,
}
BY_CODE: dict[str, type[ProviderError]] = {
    "authentication_error": AuthFailed,
    "permission_error": AuthFailed,
    "rate_limit_error": RateLimited,
    "overloaded_error": Overloaded,
    "not_found_error": NotFound,
    "invalid_request_error": BadRequest,
    "context_length_exceeded": ContextTooLong,
}


@pytest.mark.parametrize("status", BY_STATUS)
def test_a_status_alone_says_what_is_wrong(status: int) -> None:
    error = refusal("acme", status, {}, b"nope")
    assert (type(error), str(error)) == (BY_STATUS[status], f"acme: http {status}: nope")
    assert (error.provider, error.status, error.code, error.retry_after_s) == ("acme", status, "", None)


@pytest.mark.parametrize("status", BY_STATUS)
@pytest.mark.parametrize("code", [*BY_CODE, "another_error"])
def test_the_vendors_word_counts_more_than_the_status(status: int, code: str) -> None:
    body = json.dumps({"type": "error", "error": {"type": code, "message": "No."}}).encode()
    error = refusal("acme", status, {}, body)
    assert type(error) is BY_CODE.get(code, BY_STATUS[status])
    assert (str(error), error.status, error.code) == (f"acme: http {status}: No.", status, code)


@pytest.mark.parametrize("code", [*BY_CODE, "api_error", ""])
def test_an_error_inside_a_stream_has_no_status(code: str) -> None:
    error = in_stream("acme", code, "No.")
    assert type(error) is BY_CODE.get(code, ServiceFailed)
    assert (str(error), error.provider, error.status, error.code) == (f"acme: {code}: No.", "acme", 0, code)


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b'{"error":{"type":"a","message":"m","code":"b"}}', "b", "m"),
        (b'{"error":{"message":"m","code":401}}', "401", "m"),
        (b'{"error":{"type":"a"}}', "a", '{"error":{"type":"a"}}'),
        (b'{"error":"m"}', "", "m"),
        (b'{"message":"m"}', "", "m"),
        (b"{}", "", "{}"),
        (b"[1]", "", "[1]"),
        (b'{"error":{"type":7}}', "", '{"error":{"type":7}}'),
        (b"<html>\n  <b>Bad\tGateway</b>", "", "<html> <b>Bad Gateway</b>"),
        (b"", "", ""),
        (b"\xff\xfe", "", "��"),
        (b'{"error":"\xff"}', "", '{"error":"�"}'),
        (b"[" * 3000, "", "[" * 2000 + " ..."),
        (b"x" * 3000, "", "x" * 2000 + " ..."),
    ],
)
def test_any_body_gives_a_readable_text(body: bytes, code: str, text: str) -> None:
    error = refusal("acme", 400, {}, body)
    assert (error.code, str(error)) == (code, f"acme: http 400: {text}")


@pytest.mark.parametrize("key", ["error", "message"])
def test_a_long_message_is_shortened_too(key: str) -> None:
    error = refusal("acme", 400, {}, json.dumps({key: "x" * 60_000}).encode())
    assert str(error) == f"acme: http 400: {'x' * 2000} ..."


@pytest.mark.parametrize(
    ("headers", "body", "request_id"),
    [
        ({}, b"{}", ""),
        ({"request-id": "r1"}, b"{}", "r1"),
        ({"x-request-id": "r2"}, b"", "r2"),
        ({"request-id": "r1"}, b'{"request_id":"r3"}', "r3"),
    ],
)
def test_the_request_id_is_kept_for_their_support(headers: dict[str, str], body: bytes, request_id: str) -> None:
    assert refusal("acme", 500, headers, body).request_id == request_id


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_how_long_the_service_asked_us_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert refusal("acme", 429, headers, b"").retry_after_s == seconds


def test_a_long_error_inside_a_stream_is_shortened_too() -> None:
    assert str(in_stream("acme", "api_error", "x" * 60_000)) == f"acme: api_error: {'x' * 2000} ..."
