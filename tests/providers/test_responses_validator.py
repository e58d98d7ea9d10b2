"""The validator must reject requests: each of its rules, broken once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from responses_validator import problems

GOOD: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "store": False,
    "max_output_tokens": 16,
    "prompt_cache_key": "k",
    "instructions": "s",
    "parallel_tool_calls": True,
    "tools": [
        {"type": "function", "name": "t", "description": "", "parameters": {"type": "object"}, "strict": False},
    ],
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hi"},
                {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AAAA"},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "sealed",
        },
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "sealed"},
        {"type": "function_call", "call_id": "c1", "name": "t", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "t", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "ok"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "reasoning", "id": "rs_3", "summary": [], "encrypted_content": "sealed"},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_8",
            "status": "completed",
            "content": [{"type": "output_text", "text": "so", "annotations": []}],
        },
    ],
}


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = to

    return change


def _drop(*path: str | int | slice) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        del body[path[-1]]

    return change


def _twice(*path: str | int) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        body.insert(path[-1], copy.deepcopy(body[path[-1]]))

    return change


def test_a_good_request_is_accepted() -> None:
    assert problems(json.dumps(GOOD).encode()) == []


@pytest.mark.parametrize(
    "change",
    [
        _drop("model"),
        _set("surprise", to=1),
        _set("stream", to=False),
        _set("store", to=True),
        _set("max_output_tokens", to=15),
        _set("prompt_cache_key", to=""),
        _set("prompt_cache_key", to="k" * 65),
        _set("instructions", to=""),
        _twice("tools", 0),
        _drop("tools", 0, "strict"),
        _set("tools", 0, "strict", to=True),
        _set("tools", 0, "type", to="custom"),
        _set("tools", 0, "name", to="a b"),
        _set("tools", 0, "parameters", to={"type": "array"}),
        _drop("include"),
        _drop("reasoning"),
        _set("include", to=[]),
        _set("reasoning", "effort", to="off"),
        _set("reasoning", "summary", to="loud"),
        _set("reasoning", "surprise", to=1),
        _set("input", to=[]),
        _set("input", to="hi"),
        _set("input", 0, "type", to="novelty"),
        _set("input", 0, "role", to="system"),
        _set("input", 0, "id", to="msg_1"),
        _set("input", 0, "content", to=[]),
        _set("input", 0, "content", to="hi"),
        _set("input", 0, "content", 0, "text", to=" "),
        _set("input", 0, "content", 0, "type", to="output_text"),
        _drop("input", 0, "content", 1, "detail"),
        _set("input", 0, "content", 1, "image_url", to="https://a.test/b.png"),
        _set("input", 0, "content", 1, "image_url", to="data:image/tiff;base64,AAAA"),
        _set("input", 0, "content", 1, "image_url", to="data:image/png;base64,"),
        _set("input", 0, "content", 1, "image_url", to="data:image/png;base64,A"),
        _set("input", 0, "content", 1, "image_url", to="data:image/png;base64," + "A" * 20_000_004),
        _set("input", 1, "id", to=""),
        _set("input", 1, "id", to="rs_2"),
        _set("input", 1, "encrypted_content", to=""),
        _drop("input", 1, "summary"),
        _set("input", 1, "summary", 0, "text", to=""),
        _set("input", 3, "name", to=""),
        _set("input", 3, "name", to="a.b"),
        _set("input", 3, "call_id", to="c" * 65),
        _set("input", 3, "call_id", to="c2"),
        _set("input", 3, "arguments", to="{"),
        _set("input", 3, "arguments", to="[]"),
        _set("input", 3, to={**GOOD["input"][3], "id": "rs_2"}),
        _set("input", 1, to={"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}", "id": "fc_1"}),
        _twice("input", 3),
        _drop("input", 3),
        _drop("input", 5),
        _twice("input", 5),
        _set("input", 5, "output", to=""),
        _set("input", 6, "output", to=[]),
        _drop("input", slice(3, 9)),
        _drop("input", 8),
        _set("input", 8, "role", to="user"),
        _set("input", 8, "id", to="8"),
        _set("input", 8, "status", to="done"),
        _drop("input", 8, "id"),
        _twice("input", 8),
        _set("input", 5, to={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}),
    ],
)
def test_a_bad_request_is_refused(change: Callable[[Any], None]) -> None:
    body = copy.deepcopy(GOOD)
    change(body)
    assert problems(json.dumps(body).encode()) != []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"a": NaN}', b'{"a": 1, "a": 1}'])
def test_json_that_is_not_strict_is_refused(body: bytes) -> None:
    [problem] = problems(body)
    assert problem.startswith("not strict JSON")
