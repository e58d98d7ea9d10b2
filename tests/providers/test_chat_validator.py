"""The validator of Chat Completions must reject requests: each of its rules, broken once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from chat_validator import problems
from test_validator import drop_at, reversed_at, set_at, twice_at

from zot.config.vendors import VENDORS

GOOD: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9000,
    "stream": True,
    "stream_options": {"include_usage": True},
    "reasoning_effort": "low",
    "tools": [{"type": "function", "function": {"name": "t", "description": "", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "t", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "tool", "tool_call_id": "c2", "content": "ok"},
        {"role": "user", "content": "go on"},
    ],
}
M = "messages"
CALLS = (M, 2, "tool_calls")
BROKEN: dict[str, tuple[Callable[[Any], None], str]] = {
    "an unknown key": (set_at("metadata", to=1), "wrong keys"),
    "another name for the tokens": (set_at("max_completion_tokens", to=1), "wrong keys"),
    "a missing key": (drop_at("stream_options"), "wrong keys"),
    "no stream": (set_at("stream", to=False), "not a stream"),
    "no usage": (set_at("stream_options", to={}), "not a stream"),
    "no tokens": (set_at("max_tokens", to=0), "tokens"),
    "an unknown effort": (set_at("reasoning_effort", to="huge"), "effort"),
    "unknown thinking": (set_at("thinking", to=True), "thinking"),
    "unknown reasoning": (set_at("reasoning", to={}), "reasoning"),
    "no tools": (set_at("tools", to=[]), "none"),
    "a repeated tool": (twice_at("tools"), "two tools"),
    "a bad tool name": (set_at("tools", 0, "function", "name", to="a b"), "not a tool"),
    "a schema of something else": (set_at("tools", 0, "function", "parameters", to={"type": "string"}), "not a tool"),
    "no messages": (set_at(M, to=[]), "no messages"),
    "a system message in the middle": (set_at(M, 5, "role", to="system"), "not the first"),
    "a first assistant": (drop_at(M, 1), "begins with"),
    "a last assistant": (set_at(M, 5, "role", to="assistant"), "last message"),
    "two of one speaker": (set_at(M, 0, "role", to="user"), "twice in a row"),
    "an unknown role": (set_at(M, 0, "role", to="developer"), "with the keys"),
    "a surplus key": (set_at(M, 5, "name", to="x"), "with the keys"),
    "empty content": (set_at(M, 5, "content", to=""), "content"),
    "no content": (set_at(M, 5, "content", to=None), "content"),
    "an empty list": (set_at(M, 1, "content", to=[]), "content"),
    "a list for a tool": (set_at(M, 3, "content", to=[{"type": "text", "text": "a"}]), "content"),
    "a list for one text": (drop_at(M, 1, "content", 1), "for one text"),
    "blank text": (set_at(M, 1, "content", 0, "text", to="\n"), "strange part"),
    "an unknown part": (set_at(M, 1, "content", 0, "type", to="video"), "strange part"),
    "an image of another type": (
        set_at(M, 1, "content", 1, "image_url", "url", to="data:image/tiff;base64,AAAA"),
        "not taken",
    ),
    "an image elsewhere": (set_at(M, 1, "content", 1, "image_url", "url", to="https://x.test/a.png"), "not taken"),
    "an empty image": (set_at(M, 1, "content", 1, "image_url", "url", to="data:image/png;base64,"), "0 bytes"),
    "an image that is not base64": (
        set_at(M, 1, "content", 1, "image_url", "url", to="data:image/png;base64,A"),
        "not base64",
    ),
    "no calls": (set_at(*CALLS, to=[]), "content"),
    "a call without a type": (drop_at(*CALLS, 0, "type"), "not a call"),
    "a call with arguments that are an object": (set_at(*CALLS, 0, "function", "arguments", to={}), "not a call"),
    "a call with arguments that are none": (set_at(*CALLS, 0, "function", "arguments", to="[]"), "no object"),
    "a call with a bad name": (set_at(*CALLS, 0, "function", "name", to=""), "a call of"),
    "a call with a bad id": (set_at(*CALLS, 0, "id", to=""), "with the id"),
    "two calls with one id": (set_at(*CALLS, 0, "id", to="c2"), "one id"),
    "a call without result": (drop_at(M, 3), "before the results"),
    "a result for no call": (set_at(M, 3, "tool_call_id", to="c9"), "for no call"),
    "two results for one call": (set_at(M, 4, "tool_call_id", to="c1"), "for no call"),
    "calls at the end": (drop_at(M, slice(3, None)), "without results"),
    "everything backwards": (reversed_at(M), "for no call"),
    "thoughts": (set_at(M, 2, "reasoning_content", to="Hm"), "nobody asked for"),
}


def test_a_good_request_has_no_problems() -> None:
    assert problems(json.dumps(GOOD).encode()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found(name: str) -> None:
    change, expected = BROKEN[name]
    body = copy.deepcopy(GOOD)
    change(body)
    assert expected in " ".join(problems(json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("vendor", "expected"),
    [
        ("openai", ["wrong keys", "tokens"]),
        ("deepseek", ["an image of 3 bytes", "thoughts in []"]),
        ("mistral", ["wrong keys", "the id 'c1'", "a user after a tool"]),
    ],
)
def test_each_vendor_has_rules_of_its_own(vendor: str, expected: list[str]) -> None:
    found = " ".join(problems(json.dumps(GOOD).encode(), VENDORS[vendor].chat))
    assert [word for word in expected if word not in found] == []


@pytest.mark.parametrize(("details", "fine"), [([{}], True), ([], False), ("x", False)])
def test_sealed_thoughts_are_a_list(details: Any, *, fine: bool) -> None:
    body = copy.deepcopy(GOOD)
    body[M][2]["reasoning_details"] = details
    assert (problems(json.dumps(body).encode(), VENDORS["openrouter"].chat) == []) is fine


@pytest.mark.parametrize("text", [b"{", b'{"a":NaN}', b'{"a":1,"a":2}', b'{"a":"\xff"}', b"[]"])
def test_an_object_that_is_not_strict_is_refused(text: bytes) -> None:
    assert len(problems(text)) == 1
