"""A refusal becomes the error that says who can act."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

#: Wed, 21 Oct 2026 07:28:00 GMT
NOW = 1792567680.0

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


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    return refusal(status, headers, body, now=NOW)


@pytest.mark.parametrize("status", BY_STATUS)
def test_a_status_alone_says_what_is_wrong(status: int) -> None:
    error = refused(status, {}, b"nope")
    assert (type(error), str(error)) == (BY_STATUS[status], f"http {status}: nope")
    assert (error.provider, error.status, error.code, error.retry_after_s) == ("", status, "", None)


@pytest.mark.parametrize("status", BY_STATUS)
@pytest.mark.parametrize("code", [*BY_CODE, "another_error"])
def test_the_vendors_word_counts_more_than_the_status(status: int, code: str) -> None:
    body = json.dumps({"type": "error", "error": {"type": code, "message": "No."}}).encode()
    error = refused(status, {}, body)
    assert type(error) is BY_CODE.get(code, BY_STATUS[status])
    assert (str(error), error.status, error.code) == (f"http {status}: No.", status, code)


@pytest.mark.parametrize("code", [*BY_CODE, "api_error", ""])
def test_an_error_inside_a_stream_has_no_status(code: str) -> None:
    error = in_stream(code, "No.")
    assert type(error) is BY_CODE.get(code, ServiceFailed)
    assert (str(error), error.provider, error.status, error.code) == (f"{code}: No.", "", 0, code)


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
        (b"[" * 3000, "", "[" * 3000),
    ],
)
def test_any_body_gives_a_readable_text(body: bytes, code: str, text: str) -> None:
    error = refused(400, {}, body)
    assert (error.code, str(error)) == (code, f"http 400: {text}")


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
    assert refused(500, headers, body).request_id == request_id


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30"}, 30.0),
        ({"retry-after": "Wednesday, 21-Oct-26 07:29:00 GMT"}, 60.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 22 Oct 2026 07:28:00 GMT"}, 86400.0),
        ({"retry-after-ms": "soon", "retry-after": "Wed, 21 Oct 2026 07:28:09 GMT"}, 9.0),
        ({"retry-after": "Wed, 41 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 99999 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 +99999999999999999999"}, None),
        ({"retry-after": "10:00"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_how_long_the_service_asked_us_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert refused(429, headers, b"").retry_after_s == seconds


@given(st.text(st.sampled_from("0123456789 :,+-GMTOctWed"), max_size=40) | st.text())
def test_no_date_is_too_strange(text: str) -> None:
    seconds = refused(429, {"retry-after": text}, b"").retry_after_s
    assert seconds is None or 0 <= seconds < float("inf")


def google(status: int, name: str, *details: object) -> bytes:
    return json.dumps({"error": {"code": status, "message": "No.", "status": name, "details": details}}).encode()


KEY_INVALID = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "x"}
NOVEL = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SOMETHING_NEW"}
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
QUOTA = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute"}]}


@pytest.mark.parametrize(
    ("status", "name", "details", "kind", "code"),
    [
        (400, "INVALID_ARGUMENT", [], BadRequest, "INVALID_ARGUMENT"),
        (400, "INVALID_ARGUMENT", [KEY_INVALID], AuthFailed, "API_KEY_INVALID"),
        (400, "INVALID_ARGUMENT", [NOVEL], BadRequest, "INVALID_ARGUMENT"),
        (403, "PERMISSION_DENIED", [], AuthFailed, "PERMISSION_DENIED"),
        (404, "NOT_FOUND", [], NotFound, "NOT_FOUND"),
        (429, "RESOURCE_EXHAUSTED", [QUOTA, RETRY], RateLimited, "RESOURCE_EXHAUSTED"),
        (503, "UNAVAILABLE", [], Overloaded, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED", ["odd"], ServiceFailed, "DEADLINE_EXCEEDED"),
    ],
)
def test_google_names_its_errors_beside_their_number(
    status: int, name: str, details: list[object], kind: type[ProviderError], code: str
) -> None:
    body = google(status, name, *details)
    for shape in (body, b"[" + body + b"]", b"[" + body + b",\n" + body + b"]"):
        error = refused(status, {}, shape)
        assert (type(error), str(error), error.code) == (kind, f"http {status}: No.", code)


@pytest.mark.parametrize(
    ("details", "headers", "seconds"),
    [
        ([QUOTA, RETRY], {}, 34.07),
        ([RETRY], {"retry-after": "2"}, 2.0),
        ([{"retryDelay": "soon"}, {"retryDelay": "7s"}], {}, 7.0),
        ([{"retryDelay": "-1s"}], {}, None),
        ([{"retryDelay": 7}], {}, None),
        ([QUOTA], {}, None),
    ],
)
def test_how_long_google_asked_us_to_wait(
    details: list[object], headers: dict[str, str], seconds: float | None
) -> None:
    assert refused(429, headers, google(429, "RESOURCE_EXHAUSTED", *details)).retry_after_s == seconds


def test_an_empty_array_says_nothing() -> None:
    assert str(refused(500, {}, b"[]")) == "http 500: []"
