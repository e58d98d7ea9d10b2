"""A refusal becomes the error that tells the user how to act."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zot.errors import (
    AuthFailed,
    BadRequest,
    ContentRefused,
    ContextTooLong,
    NoCredit,
    NotFound,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
)
from zot.providers.api_errors import error_from_body, response_error, stream_error

#: Wed, 21 Oct 2026 07:28:00 GMT
NOW = 1792567680.0

BY_STATUS: dict[int, type[ProviderError]] = {
    400: BadRequest,
    401: AuthFailed,
    402: NoCredit,
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
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,
    "invalid_api_key": AuthFailed,
    "invalid_authentication_error": AuthFailed,
    "incorrect_api_key_error": AuthFailed,
    "insufficient_quota": NoCredit,
    "exceeded_current_quota_error": NoCredit,
    "billing_not_active": NoCredit,
    "billing_hard_limit_reached": NoCredit,
    "billing_error": NoCredit,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_reached_error": RateLimited,
    "engine_overloaded_error": Overloaded,
    "model_not_found": NotFound,
    "model_decommissioned": NotFound,
    "resource_not_found_error": NotFound,
    "invalid_model": NotFound,
    "content_filter": ContentRefused,
    "content_policy_violation": ContentRefused,
    "invalid_prompt": ContentRefused,
}


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    return response_error(status, headers, body, now=NOW)


@pytest.mark.parametrize("status", BY_STATUS)
def test_a_status_alone_gives_the_kind_of_error(status: int) -> None:
    error = refused(status, {}, b"nope")
    assert (type(error), str(error)) == (BY_STATUS[status], f"http {status}: nope")
    assert (error.provider, error.status, error.code, error.retry_after_s) == ("", status, "", None)


@pytest.mark.parametrize("code", [*BY_CODE, "another_error", "invalid_request_error"])
def test_the_vendor_s_code_counts_more_than_the_status(code: str) -> None:
    body = json.dumps({"type": "error", "error": {"type": code, "message": "No."}}).encode()
    for status, usual in BY_STATUS.items():
        error = refused(status, {}, body)
        assert (type(error), str(error), error.status, error.code) == (
            BY_CODE.get(code, usual), f"http {status}: No.", status, code,
        )  # fmt: skip


@pytest.mark.parametrize("code", [*BY_CODE, "api_error", ""])
def test_an_error_inside_a_stream_has_no_status(code: str) -> None:
    error = stream_error(code, "No.")
    assert type(error) is BY_CODE.get(code, ServiceFailed)
    text = f"{code}: No." if code else "No."
    assert (str(error), error.provider, error.status, error.code) == (text, "", 0, code)


@pytest.mark.parametrize(
    ("body", "kind", "code", "text"),
    [
        (b'{"error":{"message":"m","type":"t","code":"rate_limit_exceeded"}}', RateLimited, "rate_limit_exceeded", "m"),
        (b'{"error":{"message":"m","code":502}}', ServiceFailed, "502", "m"),
        (b'{"error":{"message":"m","code":429}}', RateLimited, "429", "m"),
        (b'{"error":{"message":"m","code":"401"}}', AuthFailed, "401", "m"),
        (b'{"error":{"message":"m","code":"\xc2\xb2"}}', ServiceFailed, "\u00b2", "m"),
        (b'{"error":{"message":"m","type":"invalid_request_error"}}', BadRequest, "invalid_request_error", "m"),
        (b'{"object":"error","message":"m","type":"BadRequestError","code":400}', BadRequest, "400", "m"),
        (b'{"object":"error","message":{"detail":[]},"code":"1"}', ServiceFailed, "1",
         '{"object":"error","message":{"detail":[]},"code":"1"}'),
        (b'{"error":"m"}', ServiceFailed, "", "m"),
        (b'{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"slow\\n down"}}}', RateLimited,
         "429", "Provider returned error: slow down"),
        (b'{"error":{"message":"m","metadata":{"raw":{"a":1}}}}', ServiceFailed, "", "m"),
    ],
)  # fmt: skip
def test_an_error_inside_a_stream_may_look_like_the_body_of_one(
    body: bytes, kind: type[ProviderError], code: str, text: str
) -> None:
    error = error_from_body(body)
    assert (type(error), error.code, str(error)) == (kind, code, f"{code}: {text}" if code else text)


def test_a_retry_delay_inside_a_stream_is_honoured() -> None:
    hint = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "m", "details": [hint]}}
    assert error_from_body(json.dumps(body).encode()).retry_after_s == 34.5


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # A word that means everything counts less than the status and less than any other word.
        (401, {"message": "m", "type": "authentication_error", "code": "invalid_request_error"}, AuthFailed),
        (402, {"message": "m", "type": "unknown_error", "code": "invalid_request_error"}, NoCredit),
        (401, {"message": "m", "type": "invalid_request_error", "code": "invalid_api_key"}, AuthFailed),
        (404, {"message": "m", "type": "invalid_request_error", "code": "model_not_found"}, NotFound),
        (429, {"message": "m", "type": "insufficient_quota", "code": "insufficient_quota"}, NoCredit),
        (400, {"message": "m", "type": "exceed_context_size_error", "code": 400}, ContextTooLong),
        (400, {"message": "m", "type": "content_filter"}, ContentRefused),
    ],
)
def test_the_most_specific_code_counts(status: int, body: dict[str, object], kind: type[ProviderError]) -> None:
    assert type(refused(status, {}, json.dumps({"error": body}).encode())) is kind


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("https://user:secret@new.example:8443/v1/messages?key=secret", " to https://new.example:8443"),
        ("http://new.example", " to http://new.example"),
        ("//new.example/v1", " to https://new.example"),
        ("https://[::1]:8443/", " to https://[::1]:8443"),
        ("ftp://new.example/", ""),
        ("https://new example/", ""),
        ("/v2/messages", ""),
        ("https://[new/", ""),
        ("https://new:port/", ""),
        ("https://n\u00e9w.example/", ""),
        ("", ""),
    ],
)
def test_a_moved_address_is_not_found_and_the_error_names_the_host_only(location: str, text: str) -> None:
    error = refused(307, {"location": location}, b"<html>secret")
    assert (type(error), str(error), error.status) == (NotFound, f"http 307: the address has moved{text}", 307)


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
        (b"", "", "no reason was given"),
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
def test_the_request_id_is_kept_for_support(headers: dict[str, str], body: bytes, request_id: str) -> None:
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
def test_the_retry_delay_of_the_service_is_parsed(headers: dict[str, str], seconds: float | None) -> None:
    assert refused(429, headers, b"").retry_after_s == seconds


@given(st.text(st.sampled_from("0123456789 :,+-GMTOctWed"), max_size=40) | st.text())
def test_any_date_is_accepted_or_ignored(text: str) -> None:
    seconds = refused(429, {"retry-after": text}, b"").retry_after_s
    assert seconds is None or 0 <= seconds < float("inf")
