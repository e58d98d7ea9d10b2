"""The greeting of a connection: our name and version, the features a client may enable, and refused clients."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from harness import Frame, Zot, text_of, types

TOKEN = "correct horse battery staple"
LOCKED = {"ZOTCORE_RPC_TOKEN": TOKEN}


def prompt(message: str) -> Frame:
    return {"type": "prompt", "id": "1", "message": message}


def heard(zot: Zot, message: str) -> list[Frame]:
    zot.send(prompt(message))
    return zot.until(type="done")


# Features.


def test_without_features_a_client_gets_version_one(zot: Callable[..., Zot]) -> None:
    process = zot()
    assert process.ask({"type": "hello", "id": "0"})["data"].keys() == {
        "protocol_version", "version", "provider", "model",
    }  # fmt: skip
    frames = heard(process, "!script think hm ;; status 529 retry-after=0 ;; --- ;; think hm ;; say yes")
    frames += heard(process, "!script status 529 retry-after=0 ;; --- ;; think hm ;; say yes")
    assert {frame["type"] for frame in frames} == {
        "response", "user_message", "turn_start", "assistant_start", "text_delta", "usage", "assistant_message",
        "turn_end", "done",
    }  # fmt: skip
    assert not any({"seq", "run"} & frame.keys() for frame in frames)
    assert process.finish() == []


def test_thinking_is_sent_on_request(zot: Callable[..., Zot]) -> None:
    process = zot()
    answer = process.ask({"type": "hello", "features": ["thinking"]})
    assert answer["data"]["features"] == ["thinking"]
    frames = heard(process, "!think")
    assert (
        "".join(frame["delta"] for frame in frames if frame["type"] == "thinking_delta") == "Let me think about this."
    )
    [message] = [frame for frame in frames if frame["type"] == "assistant_message"]
    assert message["content"] == [{"type": "text", "text": "answer"}]
    assert process.finish() == []


def test_retries_are_sent_on_request(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.ask({"type": "hello", "features": ["retries"]})
    frames = heard(process, "!script status 529 retry-after=0 ;; repeat 2 ;; --- ;; say finally")
    retries = [frame for frame in frames if frame["type"] == "retry"]
    assert [(retry["attempt"], retry["delay_ms"]) for retry in retries] == [(1, 0), (2, 0)]
    assert all("529" in retry["reason"] for retry in retries)
    assert text_of(frames) == "finally"
    assert process.finish() == []


def test_a_service_that_keeps_failing_is_asked_three_times(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.ask({"type": "hello", "features": ["retries"]})
    frames = heard(process, "!script status 529 retry-after=0 ;; repeat")
    assert types(frames)[2:] == ["turn_start", "retry", "retry", "turn_end:error", "error", "done"]
    assert process.finish() == []


def test_numbered_events_have_no_gaps_and_know_their_run(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.ask({"type": "hello", "features": ["seq"]})
    process.send(prompt("!think"), prompt("!tools"), {"type": "compact"}, prompt("!stall"))
    for _ in range(3):
        process.until(type="done")
    process.until(type="turn_start")
    process.send({"type": "abort"})
    process.until(type="done")
    events = [frame for frame in process.frames if frame["type"] != "response"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["run"] for event in events if event["type"] == "done"] == [1, 2, 3, 4]
    assert [event["run"] for event in events] == sorted(event["run"] for event in events)
    assert not any({"seq", "run"} & frame.keys() for frame in process.frames if frame["type"] == "response")
    assert process.finish() == []


def test_unknown_features_are_ignored(zot: Callable[..., Zot]) -> None:
    process = zot()
    answer = process.ask({"type": "hello", "features": ["teleport", "prices"]})
    assert answer["data"]["features"] == ["prices"]
    assert text_of(heard(process, "!say 1 hi")) == "hi"
    assert process.finish() == []


# The token.


def test_the_right_token_admits_a_client(zot: Callable[..., Zot]) -> None:
    process = zot(env=LOCKED)
    assert process.ask({"type": "hello", "id": "0", "token": TOKEN})["success"] is True
    assert process.ask({"type": "ping"})["success"] is True
    assert process.ask({"type": "hello", "token": "forgotten"})["success"] is True
    assert process.finish() == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"hello","id":"0","token":"wrong"}',
        b'{"type":"hello","id":"0","token":""}',
        b'{"type":"hello","id":"0","token":null}',
        b'{"type":"hello","id":"0","token":7}',
        b'{"type":"hello","id":"0"}',
        b'{"type":"ping","id":"0"}',
        b'{"type":"prompt","id":"0","message":"!say 1 hi"}',
        b'{"type":"frobnicate","id":"0"}',
        b"garbage",
        b'{"type":"hello","id":"0","token":"' + TOKEN.encode() + b'"',
        b"\xff",
    ],
)
def test_a_client_without_the_token_gets_one_error_and_is_disconnected(zot: Callable[..., Zot], line: bytes) -> None:
    process = zot(env=LOCKED)
    process.send(line, json.dumps({"type": "hello", "token": TOKEN}).encode(), b'{"type":"ping"}')
    [answer] = process.rest()
    assert (answer["type"], answer["success"]) == ("response", False)
    assert process.wait() == 1
    errors = process.errors()
    assert errors.startswith("zot: rpc: ")
    assert errors.count("\n") == 1
    assert TOKEN not in errors + json.dumps(answer)


def test_an_empty_token_requires_none(zot: Callable[..., Zot]) -> None:
    process = zot(env={"ZOTCORE_RPC_TOKEN": ""})
    assert process.ask({"type": "ping"})["success"] is True
    assert process.finish() == []


def test_an_unauthenticated_end_of_input_is_not_a_failure(zot: Callable[..., Zot]) -> None:
    assert zot(env=LOCKED).finish() == []


def test_a_tool_sees_neither_the_token_nor_a_key(zot: Callable[..., Zot], lab_url: str) -> None:
    secrets = {**LOCKED, "ANTHROPIC_API_KEY": "sk-ant-secret", "OPENAI_API_KEY": "sk-openai-secret", "HARMLESS": "seen"}
    process = zot("--provider", "anthropic", "--base-url", lab_url, env=secrets)
    process.ask({"type": "hello", "token": TOKEN})
    frames = heard(process, "!bash env")
    [result] = [frame for frame in frames if frame["type"] == "tool_result"]
    environment = result["content"][0]["text"]
    assert "HARMLESS=seen" in environment
    assert not [line for line in environment.splitlines() if "secret" in line or TOKEN in line]
    assert process.finish() == []
