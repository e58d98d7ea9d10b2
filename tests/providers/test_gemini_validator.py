"""The validator of Gemini requests accepts valid requests and finds errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gemini_validator import problems

#: The bytes of Google's own client for a conversation with an image, a thought, a call and its result.
THEIRS = (Path(__file__).parent / "streams" / "gemini_request.json").read_bytes()


def request() -> dict[str, Any]:
    return {
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Hm", "thought": True, "thoughtSignature": "c2ln"},
                    {"functionCall": {"id": "a", "name": "t", "args": {}}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"id": "b", "name": "u", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "a", "name": "t", "response": {"output": "x"}}},
                    {"functionResponse": {"id": "b", "name": "u", "response": {"error": "y"}}},
                    {"text": "and?"},
                ],
            },
        ],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "tools": [{"functionDeclarations": [tool("t"), tool("u")]}],
        "generationConfig": {"maxOutputTokens": 100, "thinkingConfig": {"thinkingLevel": "LOW"}},
    }


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": "d", "parametersJsonSchema": {"type": "object"}}


def found(change: Callable[[dict[str, Any]], object], model: str = "gemini-3-flash") -> list[str]:
    changed = request()
    change(changed)
    return problems(json.dumps(changed).encode(), model)


def test_a_right_request_has_no_problems() -> None:
    assert found(lambda body: None) == []
    assert problems(THEIRS, "gemini-3-flash") == []


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "wrong keys": lambda body: body.update(model="x"),
    "no contents": lambda body: body.update(contents=[]),
    "the system instruction is not text": lambda body: body.update(systemInstruction={"parts": [{"text": ""}]}),
    "two tools with one name": lambda body: body["tools"].append({"functionDeclarations": [tool("t")]}),
    "tool name '1'": lambda body: body.update(tools=[{"functionDeclarations": [tool("1")]}]),
    "tool with the keys": lambda body: body["tools"][0]["functionDeclarations"][0].update(parameters={}),
    "tool t: the schema is not of an object": lambda body: body["tools"][0]["functionDeclarations"][0][
        "parametersJsonSchema"
    ].update({"$schema": "x"}),
    "maxOutputTokens": lambda body: body["generationConfig"].update(maxOutputTokens=0),
    "a thinking budget and a level": lambda body: body["generationConfig"]["thinkingConfig"].update(thinkingBudget=0),
    "the thinking level": lambda body: body["generationConfig"]["thinkingConfig"].update(thinkingLevel="OFF"),
    "roles do not alternate": lambda body: body["contents"].append({"role": "user", "parts": [{"text": "x"}]}),
    "contents.0: not a role with parts": lambda body: body["contents"][0].update(parts=[]),
    "contents.0: blank text": lambda body: body["contents"][0]["parts"][0].update(text=" "),
    "contents.0: a part of ['functionCall']": lambda body: body["contents"][0]["parts"].append({"functionCall": {}}),
    "contents.0: a part of []": lambda body: body["contents"][0]["parts"].append({}),
    "contents.0: a part with the keys": lambda body: body["contents"][0]["parts"][0].update(thoughtSignature="c2ln"),
    "contents.0: an image of type": lambda body: body["contents"][0]["parts"][1]["inlineData"].update(mimeType="a/b"),
    "contents.0: an image that": lambda body: body["contents"][0]["parts"][1]["inlineData"].update(data=""),
    "contents.1: the signature": lambda body: body["contents"][1]["parts"][1].update(thoughtSignature="?"),
    "contents.1: a call without": lambda body: body["contents"][1]["parts"][1].pop("thoughtSignature"),
    "contents.1: not a call": lambda body: body["contents"][1]["parts"][1]["functionCall"].update(args=None),
    "contents.1: a call with id ''": lambda body: body["contents"][1]["parts"][1]["functionCall"].update(id=""),
    "a call id that was used": lambda body: body["contents"][1]["parts"][1]["functionCall"].update(id="b"),
    "calls without results": lambda body: body["contents"].pop(),
    "contents.2: results must": lambda body: body["contents"][2]["parts"].insert(0, {"text": "x"}),
    "contents.2: these are not": lambda body: body["contents"][2]["parts"].pop(0),
    "contents.2: not a result": lambda body: body["contents"][2]["parts"][0]["functionResponse"].update(x=1),
    "contents.2: an empty": lambda body: body["contents"][2]["parts"][0]["functionResponse"].update(response={}),
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_broken_rule_is_found(problem: str) -> None:
    assert any(text.startswith(problem) for text in found(WRONG[problem]))


@pytest.mark.parametrize(
    ("model", "budget", "fine"),
    [
        ("gemini-2.5-pro", 128, True),
        ("gemini-2.5-pro", 0, False),
        ("gemini-2.5-flash", 0, True),
        ("gemini-2.5-flash", 24577, False),
        ("gemini-3-pro", 128, False),
    ],
)
def test_budgets_are_for_models_that_support_them(model: str, budget: int, *, fine: bool) -> None:
    config = {"maxOutputTokens": 40000, "thinkingConfig": {"thinkingBudget": budget}}
    assert (found(lambda body: body.update(generationConfig=config), model) == []) is fine


@pytest.mark.parametrize("body", [b"", b"{", b'{"a":NaN}', b'{"a":1,"a":2}', b"\xff"])
def test_json_that_is_not_strict_is_refused(body: bytes) -> None:
    assert problems(body)[0].startswith("not strict JSON")
