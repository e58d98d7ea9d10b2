"""The validator must reject requests: each of its rules, broken once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from validator import problems

GOOD: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9000,
    "stream": True,
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "t", "description": "", "input_schema": {"type": "object"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "c1", "name": "t", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "ok"}],
                },
                {"type": "text", "text": "go on"},
            ],
        },
    ],
}


def set_at(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = to

    return change


def drop_at(*path: str | int | slice) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        del body[path[-1]]

    return change


def twice_at(*path: str | int) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path:
            body = body[key]
        body.append(copy.deepcopy(body[0]))

    return change


def reversed_at(*path: str | int) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path:
            body = body[key]
        body.reverse()

    return change


M = "messages"
BROKEN: dict[str, tuple[Callable[[Any], None], str]] = {
    "an unknown key": (set_at("metadata", to=1), "wrong keys"),
    "a missing key": (drop_at("stream"), "wrong keys"),
    "no tokens": (set_at("max_tokens", to=0), "max_tokens"),
    "a big budget": (set_at("thinking", "budget_tokens", to=9000), "budget"),
    "a small budget": (set_at("thinking", "budget_tokens", to=100), "budget"),
    "a blank system prompt": (set_at("system", 0, "text", to=" "), "blank"),
    "a repeated tool": (twice_at("tools"), "two tools"),
    "a bad tool name": (set_at("tools", 0, "name", to="a b"), "tool name"),
    "a tool without description": (drop_at("tools", 0, "description"), "keys"),
    "a schema of something else": (set_at("tools", 0, "input_schema", to={"type": "string"}), "schema"),
    "no messages": (set_at(M, to=[]), "no messages"),
    "a first assistant": (drop_at(M, 0), "alternate"),
    "a last assistant": (drop_at(M, 2), "alternate"),
    "two of one speaker": (set_at(M, 1, "role", to="user"), "alternate"),
    "empty content": (set_at(M, 0, "content", to=[]), "content"),
    "a string as content": (set_at(M, 0, "content", to="hi"), "content"),
    "blank text": (set_at(M, 0, "content", 0, "text", to="\n"), "blank"),
    "an unknown block": (set_at(M, 0, "content", 0, "type", to="video"), "not allowed"),
    "a surplus key": (set_at(M, 0, "content", 0, "name", to="x"), "keys"),
    "an image of another type": (set_at(M, 0, "content", 1, "source", "media_type", to="image/tiff"), "image of type"),
    "an empty image": (set_at(M, 0, "content", 1, "source", "data", to=""), "empty image"),
    "an image that is not base64": (set_at(M, 0, "content", 1, "source", "data", to="A"), "not base64"),
    "a thought without signature": (set_at(M, 1, "content", 0, "signature", to=""), "signature"),
    "a sealed thought without data": (set_at(M, 1, "content", 1, "data", to=""), "data"),
    "a turn without a thought": (drop_at(M, 1, "content", slice(0, 2)), "begin with a thought"),
    "a thought at the end": (reversed_at(M, 1, "content"), "final block"),
    "a call without object": (set_at(M, 1, "content", 2, "input", to=None), "not an object"),
    "a call without id": (set_at(M, 1, "content", 2, "id", to=""), "a call with id"),
    "a call without result": (drop_at(M, 2, "content", 0), "results for"),
    "two results for one call": (twice_at(M, 2, "content"), "results for"),
    "a result for no call": (set_at(M, 2, "content", 0, "tool_use_id", to="c9"), "results for"),
    "results behind text": (reversed_at(M, 2, "content"), "come first"),
    "an empty result": (set_at(M, 2, "content", 0, "content", to=[]), "empty result"),
    "a marked thought": (set_at(M, 1, "content", 0, "cache_control", to={"type": "ephemeral"}), "cache mark"),
    "a wrong mark": (set_at("system", 0, "cache_control", to={"type": "lasting"}), "cache mark"),
}


def test_a_good_request_has_no_problems() -> None:
    assert problems(json.dumps(GOOD).encode()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found(name: str) -> None:
    change, expected = BROKEN[name]
    body = copy.deepcopy(GOOD)
    change(body)
    assert expected in " ".join(problems(json.dumps(body).encode()))


def test_an_error_result_may_hold_only_text() -> None:
    body = copy.deepcopy(GOOD)
    result = body["messages"][2]["content"][0]
    result.update(is_error=True, content=[body["messages"][0]["content"][1]])
    assert problems(json.dumps(body).encode()) == ["messages.2: image is not allowed here"]


def test_a_call_id_may_be_used_once() -> None:
    body = copy.deepcopy(GOOD)
    body["messages"] += copy.deepcopy(body["messages"][1:])
    assert problems(json.dumps(body).encode()) == ["messages.3: a call id that was used before"]


def test_a_turn_may_begin_without_a_thought_if_the_user_has_spoken_since() -> None:
    body = copy.deepcopy(GOOD)
    del body["messages"][1]["content"][:2]
    said = [{"role": "assistant", "content": [{"type": "text", "text": "done"}]}, body["messages"][0]]
    body["messages"] += said
    assert problems(json.dumps(body).encode()) == []


def test_only_the_first_message_of_a_turn_must_begin_with_a_thought() -> None:
    body = copy.deepcopy(GOOD)
    del body["messages"][2]["content"][1]
    later = copy.deepcopy(body["messages"][1:])
    later[0]["content"][:] = [{**later[0]["content"][2], "id": "c2"}]
    later[1]["content"][0]["tool_use_id"] = "c2"
    body["messages"] += later
    assert problems(json.dumps(body).encode()) == []
    del body["messages"][1]["content"][:2]
    assert problems(json.dumps(body).encode()) == ["thinking is on, but the turn does not begin with a thought"]


def test_more_than_four_cache_marks_are_too_many() -> None:
    body = copy.deepcopy(GOOD)
    body["system"] *= 5
    assert problems(json.dumps(body).encode()) == ["5 cache marks"]


@pytest.mark.parametrize("text", [b"{", b'{"a":NaN}', b'{"a":1,"a":2}', b'{"a":"\xff"}'])
def test_json_that_is_not_strict_is_refused(text: bytes) -> None:
    assert "not strict JSON" in problems(text)[0]
