"""The host protocol, without a process: requests, the request that an error answers, and the code of each failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zot import errors
from zot.events import TextDelta
from zot.wire.host import (
    EventLine,
    Ids,
    Refused,
    Request,
    Usage,
    code_of,
    decode_request,
    encode_event,
    encode_response,
)

GOOD: dict[str, Any] = {"request_id": "r", "session_id": "s", "prompt": "hi"}
SEED = (
    b'{"protocol_version":1,"type":"run","request_id":"req_001","session_id":"qq_user_42","channel_id":"qq_group_7",'
    b'"agent":"default","prompt":"Summarize this issue in one paragraph.","timeout_ms":30000,'
    b'"idempotency_key":"msg_9981"}'
)


def line(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


def test_the_example_of_the_protocol_is_a_request() -> None:
    assert decode_request(SEED) == Request(
        1, "run", "req_001", "qq_user_42", "Summarize this issue in one paragraph.", "qq_group_7", "default", 30000.0,
        "msg_9981",
    )  # fmt: skip


def test_optional_fields_may_be_missing_or_null() -> None:
    bare = decode_request(line())
    assert (bare.ids, bare.timeout_s, bare.key, bare.agent_name) == (Ids("r", "s"), 30.0, None, "default")
    optional = ("protocol_version", "type", "channel_id", "agent", "timeout_ms", "idempotency_key")
    assert decode_request(line(**dict.fromkeys(optional))) == bare
    assert decode_request(line(metadata={"a": [1]}, stream=True)) == bare
    assert decode_request(line(type="run", metadata={"type": "a", "b": {"type": "c"}})).type == "run"


def test_values_are_used_unchanged() -> None:
    asked = decode_request(line(request_id=" r ", session_id="\ts\n", prompt="  hi\u2028"))
    assert (asked.ids, asked.prompt) == (Ids(" r ", "\ts\n"), "  hi\u2028")


def test_a_blank_key_or_agent_is_none() -> None:
    asked = decode_request(line(idempotency_key=" ", agent=""))
    assert (asked.key, asked.agent_name) == (None, "default")


@pytest.mark.parametrize(("number", "seconds"), [(1, 0.001), (1500.5, 1.5005), (10**15, 10**12)])
def test_a_deadline_is_any_number_of_at_least_one(number: float, seconds: float) -> None:
    assert decode_request(line(timeout_ms=number)).timeout_s == seconds


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    asked = decode_request(b'{"request_id":"r\\ud800","session_id":"s","prompt":"a\\udc00b \\ud83d\\ude00"}')
    assert (asked.ids.request_id, asked.prompt) == ("r\ufffd", "a\ufffdb 😀")


REFUSED = {
    "a missing request_id": (b'{"session_id":"s","prompt":"p"}', Ids("unknown", "s"), "request_id is missing"),
    "a missing session_id": (b'{"request_id":"r","prompt":"p"}', Ids("r", ""), "session_id is missing"),
    "a missing prompt": (b'{"request_id":"r","session_id":"s"}', Ids("r", "s"), "prompt is missing"),
    "a blank request_id": (line(request_id=" "), Ids("unknown", "s"), "request_id is blank"),
    "a blank session_id": (line(session_id="\t"), Ids("r", "\t"), "session_id is blank"),
    "a blank prompt": (line(prompt=" \n"), Ids("r", "s"), "prompt is blank"),
    "a null prompt": (line(prompt=None), Ids("r", "s"), "prompt is missing"),
    "a number for an id": (line(session_id=7), Ids("r", ""), "session_id"),
    "a number for the request": (line(request_id=7), Ids("unknown", "s"), "request_id"),
    "a prompt that is no text": (line(prompt=["p"]), Ids("r", "s"), "prompt"),
    "another version": (line(protocol_version=2), Ids("r", "s"), "protocol_version must be 1"),
    "a version that is text": (line(protocol_version="1"), Ids("r", "s"), "protocol_version"),
    "another type": (line(type="walk"), Ids("r", "s"), "type must be one of run, ping, cancel, session_close"),
    "no time at all": (line(timeout_ms=0), Ids("r", "s"), "timeout_ms"),
    "less than no time": (line(timeout_ms=-5), Ids("r", "s"), "timeout_ms"),
    "a time that is text": (line(timeout_ms="30000"), Ids("r", "s"), "timeout_ms"),
    "a time that is true": (line(timeout_ms=True), Ids("r", "s"), "timeout_ms"),
    "a cancel of nothing": (line(type="cancel"), Ids("r", "s"), "target_request_id"),
    "a close of nothing": (b'{"type":"session_close","request_id":"r"}', Ids("r", ""), "session_id is missing"),
    "no JSON": (b"hello", Ids(), "not a request"),
    "half of it": (line()[:-1], Ids(), "not a request"),
    "an array": (b"[1]", Ids(), "not a request"),
    "a number": (b"7", Ids(), "not a request"),
    "a byte order mark": (b"\xef\xbb\xbf" + line(), Ids(), "not a request"),
    "bytes that are no text": (b'{"request_id":"\xff"}', Ids(), "not a request"),
    "bytes that are no text where nobody looks": (b'{"x":"\xff",' + line()[1:], Ids("r", "s"), "not a request"),
    "a prompt that is no text at all": (b'{"prompt":"\xff",' + line()[1:], Ids("r", "s"), "not a request"),
    "two types": (b'{"type":"ping","type":"run",' + line()[1:], Ids("r", "s"), "more than one type"),
    "two types, one in disguise": (b'{"type":"ping","t\\u0079pe":"run",' + line()[1:], Ids("r", "s"), "more than one"),
    "a deep one": (b"[" * 100_000, Ids(), "not a request"),
    "a huge number": (b'{"timeout_ms":1e999,' + line()[1:], Ids("r", "s"), "not a request"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "ids", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_request_is_refused_with_the_readable_ids(given: bytes, ids: Ids, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        decode_request(given)
    assert caught.value.ids == ids
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["target_request_id", "cancel_request_id"])
def test_a_cancel_names_its_target(name: str) -> None:
    assert decode_request(json.dumps({"type": "cancel", "request_id": "c", name: "r"}).encode()).target == "r"


def test_a_success_is_written_as_in_the_protocol() -> None:
    answer = Ids("req_001", "qq_user_42").success("Here is a one-paragraph summary...", Usage.of(120, 86))
    assert encode_response(answer) == (
        b'{"ok":true,"request_id":"req_001","session_id":"qq_user_42","text":"Here is a one-paragraph summary...",'
        b'"error_code":null,"error_message":null,'
        b'"usage":{"prompt_tokens":120,"completion_tokens":86,"total_tokens":206}}\n'
    )


def test_a_failure_is_written_as_in_the_protocol() -> None:
    answer = Ids("req_001", "qq_user_42").failure("TIMEOUT", "request exceeded timeout_ms")
    assert encode_response(answer) == (
        b'{"ok":false,"request_id":"req_001","session_id":"qq_user_42","text":"","error_code":"TIMEOUT",'
        b'"error_message":"request exceeded timeout_ms",'
        b'"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}\n'
    )


def test_a_lone_surrogate_is_not_written() -> None:
    written = json.loads(encode_response(Ids("r", "s").success("a\ud800b", replayed=True)))
    assert (written["text"], written["replayed"]) == ("a\ufffdb", True)


def test_an_event_is_written_with_its_request_and_session() -> None:
    written = encode_event(EventLine("r", 3, TextDelta("hi")))
    assert written == b'{"type":"event","request_id":"r","seq":3,"event":{"type":"text_delta","delta":"hi"}}\n'


CODES: list[tuple[Exception, str]] = [
    (errors.AuthFailed("x"), "PROVIDER_AUTH"),
    (errors.BadRequest("x", status=401), "PROVIDER_AUTH"),
    (errors.BadRequest("x", status=403), "PROVIDER_AUTH"),
    (errors.KeyMissing("x"), "PROVIDER_AUTH"),
    (errors.RateLimited("x"), "PROVIDER_RATE_LIMIT"),
    (errors.BadRequest("x", status=429), "PROVIDER_RATE_LIMIT"),
    (errors.Overloaded("x"), "PROVIDER_DOWN"),
    (errors.Overloaded("x", status=529), "PROVIDER_DOWN"),
    (errors.ServiceFailed("x", status=500), "PROVIDER_DOWN"),
    (errors.BadRequest("x", status=599), "PROVIDER_DOWN"),
    (errors.ConnectionFailed("unauthorized 429"), "PROVIDER_DOWN"),
    (errors.ConnectionImpossible("x"), "PROVIDER_DOWN"),
    (errors.Stalled("x"), "PROVIDER_DOWN"),
    (errors.StreamBroken("x", status=200), "PROVIDER_DOWN"),
    (errors.SessionBusy("x"), "TIMEOUT"),
    (errors.BadRequest("401 unauthorized", status=400), "INTERNAL"),
    (errors.NotFound("x", status=404), "INTERNAL"),
    (errors.ContextTooLong("x", status=400), "INTERNAL"),
    (errors.ContentRefused("x"), "INTERNAL"),
    (errors.StepsExhausted("x"), "INTERNAL"),
    (errors.StoreFailed("x"), "INTERNAL"),
    (errors.ConfigError("no auth"), "INTERNAL"),
    (ValueError("401"), "INTERNAL"),
]


@pytest.mark.parametrize(("problem", "code"), CODES, ids=repr)
def test_a_failure_has_the_code_of_its_status_or_type(problem: Exception, code: str) -> None:
    assert code_of(problem) == code
