"""Gemini generateContent: requests equal the recorded ones, and the service accepts them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import asking
import pytest
from asking import CALL, RESULT, results, user
from gemini_validator import problems
from inline_snapshot import snapshot

from zot.messages import (
    CallBlock,
    ImageBlock,
    Message,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolSpec,
    TranscriptBlock,
)
from zot.providers.base import EncodedMessages, Reasoning
from zot.providers.gemini import GeminiGenerateContent

OLD, NEW = "gemini-2.5-flash", "gemini-3-flash"
TOOLS = (
    ToolSpec(
        "read",
        "Read a file.",
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "additionalProperties": False,
        },
    ),
    ToolSpec("bash", "Run a command.", {"type": "object"}),
)


ask = partial(asking.ask, model=OLD)


def api(base_url: str = "https://api.test") -> GeminiGenerateContent:
    return GeminiGenerateContent(base_url=base_url, origin="gemini")


def body_of(*messages: Message, **changes: Any) -> dict[str, Any]:
    request = ask(*messages, **changes)
    body = api().request(request, "k").body
    assert problems(body, request.model) == []
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def contents(*messages: Message, **changes: Any) -> Any:
    return body_of(*messages, **changes)["contents"]


assistant = partial(asking.assistant, origin="gemini")


def test_the_smallest_request() -> None:
    request = api().request(ask(user("hi")), "k")
    assert (request.method, request.url) == (
        "POST",
        "https://api.test/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
    )
    assert request.headers == {
        "x-goog-api-key": "k",
        "content-type": "application/json",
        "accept": "text/event-stream",
    }
    assert request.headers.keys() & request.secret_headers == {"x-goog-api-key"}
    assert json.loads(request.body) == snapshot(
        {
            "generationConfig": {"maxOutputTokens": 1000, "thinkingConfig": {"thinkingBudget": 0}},
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        }
    )


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1beta", "/v1beta/"])
def test_the_address_may_be_written_with_or_without_its_version(ending: str) -> None:
    request = api(f"https://api.test/google{ending}").request(ask(user("hi"), model="models/a/b?c"), "")
    assert request.url == "https://api.test/google/v1beta/models/a%2Fb%3Fc:streamGenerateContent?alt=sse"
    assert "x-goog-api-key" not in request.headers


def test_the_key_is_never_part_of_the_address() -> None:
    request = api().request(ask(user("hi")), "sk-1234")
    assert "sk-1234" not in request.url
    assert b"sk-1234" not in request.body


def test_system_and_tools() -> None:
    body = body_of(user("one"), assistant("two"), user("three", "four"), system="Be brief.", tools=TOOLS)
    assert body == snapshot(
        {
            "generationConfig": {"maxOutputTokens": 1000, "thinkingConfig": {"thinkingBudget": 0}},
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "tools": [
                {
                    "functionDeclarations": [
                        {
                            "name": "read",
                            "description": "Read a file.",
                            "parametersJsonSchema": {
                                "type": "object",
                                "properties": {"path": {"type": "string"}},
                                "additionalProperties": False,
                            },
                        },
                        {"name": "bash", "description": "Run a command.", "parametersJsonSchema": {"type": "object"}},
                    ]
                }
            ],
            "contents": [
                {"role": "user", "parts": [{"text": "one"}]},
                {"role": "model", "parts": [{"text": "two"}]},
                {"role": "user", "parts": [{"text": "three"}, {"text": "four"}]},
            ],
        }
    )


SHOWN = {"includeThoughts": True}


@pytest.mark.parametrize(
    ("model", "reasoning", "config"),
    [
        ("gemini-2.5-flash", "off", {"thinkingBudget": 0}),
        ("gemini-2.5-flash-lite", "off", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "off", {"thinkingBudget": 128}),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 2048, **SHOWN}),
        ("gemini-2.5-pro", "medium", {"thinkingBudget": 8192, **SHOWN}),
        ("gemini-2.5-pro", "high", {"thinkingBudget": 16384, **SHOWN}),
        ("gemini-3-flash-preview", "off", {"thinkingLevel": "MINIMAL"}),
        ("gemini-3-flash-preview", "low", {"thinkingLevel": "LOW", **SHOWN}),
        ("gemini-3-flash-preview", "medium", {"thinkingLevel": "MEDIUM", **SHOWN}),
        ("gemini-3-pro-preview", "off", {"thinkingLevel": "LOW"}),
        ("gemini-3-pro-preview", "medium", {"thinkingLevel": "HIGH", **SHOWN}),
        ("gemini-3-pro-preview", "high", {"thinkingLevel": "HIGH", **SHOWN}),
        ("gemini-3.7-flash", "off", {"thinkingLevel": "LOW"}),
    ],
)
def test_each_generation_gets_the_reasoning_effort_in_its_own_terms(
    model: str, reasoning: Reasoning, config: dict[str, Any]
) -> None:
    assert body_of(user("hi"), model=model, reasoning=reasoning)["generationConfig"]["thinkingConfig"] == config


@pytest.mark.parametrize(
    ("model", "reasoning", "config"),
    [
        ("gemini-2.0-flash", "off", None),
        ("gemini-robotics-er-1.5-preview", "off", None),
        ("lab-1", "off", None),
        ("lab-1", "high", SHOWN),
        ("gemini-flash-latest", "off", {"thinkingLevel": "LOW"}),
        ("gemini-12-ultra", "medium", {"thinkingLevel": "MEDIUM", **SHOWN}),
    ],
)
def test_unknown_models_get_a_request_that_any_accepts(
    model: str, reasoning: Reasoning, config: dict[str, Any] | None
) -> None:
    body = json.loads(api().request(ask(user("hi"), model=model, reasoning=reasoning), "k").body)
    assert body["generationConfig"].get("thinkingConfig") == config


@pytest.mark.parametrize(
    ("model", "reasoning", "max_tokens", "expected"),
    [
        ("gemini-2.5-flash", "off", 1000, 1000),
        ("gemini-2.5-pro", "off", 1000, 4224),
        ("gemini-2.5-flash", "high", 1000, 20480),
        ("gemini-2.5-flash", "high", 65536, 65536),
        ("gemini-3-flash", "off", 1000, 4096),
        ("gemini-3-pro", "off", 1000, 8192),
        ("gemini-3-pro", "high", 1000, 32768),
        ("lab-1", "high", 1000, 1000),
    ],
)
def test_the_reasoning_budget_leaves_room_for_the_answer(
    model: str, reasoning: Reasoning, max_tokens: int, expected: int
) -> None:
    body = body_of(user("hi"), model=model, reasoning=reasoning, max_tokens=max_tokens)
    assert body["generationConfig"]["maxOutputTokens"] == expected


def test_calls_and_their_results() -> None:
    conversation = (
        user("go"),
        assistant("Yes.", CallBlock("c1", "read", {"path": "x"}), CallBlock("c2", "bash", None, malformed="{")),
        results(
            ResultBlock("c1", is_error=False, content=(TextBlock("seen"), ImageBlock("image/png", b"PNG"))),
            ResultBlock("c2", is_error=True, content=(TextBlock("not JSON"), ImageBlock("image/gif", b"GIF"))),
        ),
        user("and?"),
    )
    assert contents(*conversation, tools=TOOLS) == snapshot(
        [
            {"role": "user", "parts": [{"text": "go"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Yes."},
                    {"functionCall": {"id": "c1", "name": "read", "args": {"path": "x"}}},
                    {"functionCall": {"id": "c2", "name": "bash", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "c1",
                            "name": "read",
                            "response": {"output": "seen\n[image 1 follows the results]"},
                        }
                    },
                    {
                        "functionResponse": {
                            "id": "c2",
                            "name": "bash",
                            "response": {"error": "not JSON\n[an image was left out: image/gif, 3 bytes]"},
                        }
                    },
                    {"inlineData": {"mimeType": "image/png", "data": "UE5H"}},
                    {"text": "and?"},
                ],
            },
        ]
    )


@pytest.mark.parametrize("content", [(), (TextBlock(""),), (TextBlock(" \n"),)])
def test_a_result_without_output_says_so(content: tuple[TextBlock, ...]) -> None:
    told = contents(user("go"), assistant(CALL), results(ResultBlock("c1", False, content)))[2]
    assert told["parts"][0]["functionResponse"]["response"] == {"output": "(no output)"}


def test_a_result_without_its_call_is_named_after_itself() -> None:
    body = json.loads(api().request(ask(user("go"), RESULT), "k").body)
    assert body["contents"][0]["parts"][1]["functionResponse"]["name"] == "c1"


def test_messages_of_one_role_are_merged_and_empty_ones_omitted() -> None:
    conversation = (user("a"), user("b"), assistant(""), user(" "), user("c"), assistant("d"), user("e"), user(" "))
    assert contents(*conversation) == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}, {"text": "c"}]},
        {"role": "model", "parts": [{"text": "d"}]},
        {"role": "user", "parts": [{"text": "e"}]},
    ]


def test_images_are_sent_and_unsupported_ones_described() -> None:
    images = (ImageBlock("image/webp", b"RIFF"), ImageBlock("image/gif", b"GIF"), ImageBlock("image/png", b""))
    assert contents(user("look", *images, ImageBlock("", b"x")))[0]["parts"] == [
        {"text": "look"},
        {"inlineData": {"mimeType": "image/webp", "data": "UklGRg=="}},
        {"text": "[an image was left out: image/gif, 3 bytes]"},
        {"text": "[an image was left out: image/png, 0 bytes]"},
        {"text": "[an image was left out: unknown type, 1 bytes]"},
    ]


SEAL = ThinkingBlock(signature="c2ln")


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ((ThinkingBlock("unsigned"), "b"), [{"text": "b"}]),
        (("b", SEAL), [{"text": "b", "thoughtSignature": "c2ln"}]),
        (
            ("b", SEAL, "c", SEAL),
            [{"text": "b", "thoughtSignature": "c2ln"}, {"text": "c", "thoughtSignature": "c2ln"}],
        ),
        (("b", SEAL, SEAL), [{"text": "b", "thoughtSignature": "c2ln"}, {"text": "", "thoughtSignature": "c2ln"}]),
        ((SEAL, "b"), [{"text": "", "thoughtSignature": "c2ln"}, {"text": "b"}]),
        (
            (ThinkingBlock("Hm", "c2ln"), "b"),
            [{"text": "Hm", "thought": True, "thoughtSignature": "c2ln"}, {"text": "b"}],
        ),
        ((ThinkingBlock(redacted="sealed"), "b"), [{"text": "b"}]),
    ],
)
def test_signatures_go_back_where_they_came_from(
    said: tuple[TranscriptBlock | str, ...], parts: list[dict[str, Any]]
) -> None:
    assert contents(user("a"), assistant(*said), user("z"))[1] == {"role": "model", "parts": parts}


@pytest.mark.parametrize("said", [(SEAL,), (ThinkingBlock("Hm", "c2ln"),), (ThinkingBlock("Hm"),), (" ", SEAL)])
def test_a_reply_of_thoughts_alone_is_not_sent(said: tuple[TranscriptBlock | str, ...]) -> None:
    assert contents(user("a"), assistant(*said), user("z")) == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "z"}]}
    ]


def signatures(*calls: CallBlock, model: str, origin: str = "gemini") -> list[str | None]:
    """The signatures that the calls of one reply are sent with."""
    answers = results(*(ResultBlock(call.id, False, (TextBlock("ok"),)) for call in calls))
    said = contents(user("a"), assistant(*calls, origin=origin), answers, model=model)[1]
    return [part.get("thoughtSignature") for part in said["parts"]]


NOBODY = "skip_thought_signature_validator"
SIGNED = (CallBlock("c1", "t", {}, signature="c2ln"), CallBlock("c2", "t", {}))


@pytest.mark.parametrize(
    ("model", "origin", "expected"),
    [
        (NEW, "gemini", ["c2ln", None]),
        (NEW, "", ["c2ln", None]),
        (NEW, "anthropic", [NOBODY, None]),
        (OLD, "gemini", ["c2ln", None]),
        (OLD, "anthropic", [None, None]),
    ],
)
def test_calls_are_sent_back_sealed_and_foreign_ones_marked(
    model: str, origin: str, expected: list[str | None]
) -> None:
    assert signatures(*SIGNED, model=model, origin=origin) == expected


def test_our_unsealed_call_is_marked_for_a_model_that_wants_a_seal() -> None:
    assert signatures(CALL, model=NEW) == [NOBODY]
    assert signatures(CALL, model="gemini-flash-latest") == [NOBODY]
    assert signatures(CALL, model="lab-1") == [None]


def test_thoughts_sealed_by_another_provider_are_not_sent() -> None:
    said = assistant(ThinkingBlock("Hm", "s"), "b", SEAL, origin="anthropic")
    assert contents(user("a"), said, user("z"))[1]["parts"] == [{"text": "b"}]


@pytest.mark.parametrize("half", ["\ud83d", "a\ude00", "\ud83d\ude00"])
def test_a_lone_surrogate_does_not_break_a_conversation(half: str) -> None:
    whole = half.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    told = results(ResultBlock("c1", False, (TextBlock(half),)))
    body = body_of(user(half), assistant(CallBlock("c1", "t", {half: half})), told, system=half)
    assert body["systemInstruction"]["parts"][0]["text"] == whole
    assert body["contents"][0]["parts"][0]["text"] == whole
    assert body["contents"][1]["parts"][0]["functionCall"]["args"] == {whole: whole}
    assert body["contents"][2]["parts"][0]["functionResponse"]["response"] == {"output": whole}


def test_a_conversation_is_encoded_once_and_anew_for_a_model_that_wants_seals() -> None:
    ours, memory = api(), EncodedMessages()
    messages = [user("a"), assistant(CALL), RESULT]
    for model in (OLD, OLD, NEW, OLD):
        for more in ((), (assistant("b"), user("c"))):
            messages += more
            grown = ask(*messages, model=model, encoded=memory)
            fresh = ask(*messages, model=model)
            assert ours.request(grown, "k").body == api().request(fresh, "k").body
