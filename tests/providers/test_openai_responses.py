"""OpenAI Responses: requests equal the recorded ones, and the service accepts every one of them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import asking
import pytest
from asking import CALL, RESULT, TOOLS, results, user
from inline_snapshot import snapshot
from responses_validator import problems

from zot.messages import (
    CallBlock,
    ImageBlock,
    Message,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    TranscriptBlock,
)
from zot.providers.base import EncodedMessages, Reasoning
from zot.providers.openai_responses import OpenAIResponses

API = OpenAIResponses(base_url="https://api.test", origin="openai")


ask = partial(asking.ask, model="gpt-4.1")


def body_of(*messages: Message, **changes: Any) -> dict[str, Any]:
    body = API.request(ask(*messages, **changes), "k").body
    assert problems(body) == []
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def items_of(*messages: Message) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = body_of(*messages)["input"]
    return items


assistant = partial(asking.assistant, origin="openai")


THOUGHT = ThinkingBlock("hm", "sealed", id="rs_1")


def test_the_smallest_request() -> None:
    request = API.request(ask(user("hi")), "k")
    assert (request.method, request.url) == ("POST", "https://api.test/v1/responses")
    assert request.headers == snapshot(
        {"content-type": "application/json", "accept": "text/event-stream", "authorization": "Bearer k"}
    )
    assert json.loads(request.body) == snapshot(
        {
            "model": "gpt-4.1",
            "stream": True,
            "store": False,
            "max_output_tokens": 1000,
            "prompt_cache_key": "zot-d1484adb3d0937ace49c0145539bfd70",
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        }
    )


def test_a_server_that_needs_no_key_gets_none() -> None:
    assert "authorization" not in API.request(ask(user("hi")), "").headers


@pytest.mark.parametrize(
    "base_url", ["https://api.test", "https://api.test/", "https://api.test/v1", "https://api.test/v1/"]
)
def test_the_address_may_be_written_with_or_without_its_version(base_url: str) -> None:
    api = OpenAIResponses(base_url=base_url, origin="openai")
    assert api.request(ask(user("hi")), "k").url == "https://api.test/v1/responses"


def test_instructions_and_tools() -> None:
    body = body_of(user("one"), assistant("two"), user("three", "four"), system="Be brief.", tools=TOOLS)
    assert body == snapshot(
        {
            "model": "gpt-4.1",
            "stream": True,
            "store": False,
            "max_output_tokens": 1000,
            "prompt_cache_key": "zot-77f39c37199424b2d4bf825b096a119e",
            "instructions": "Be brief.",
            "tools": [
                {
                    "type": "function",
                    "name": "read",
                    "description": "Read a file.",
                    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
                    "strict": False,
                },
                {
                    "type": "function",
                    "name": "bash",
                    "description": "Run a command.",
                    "parameters": {"type": "object"},
                    "strict": False,
                },
            ],
            "parallel_tool_calls": True,
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "two", "annotations": []}],
                    "id": "msg_1",
                },
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "three"}, {"type": "input_text", "text": "four"}],
                },
            ],
        }
    )


@pytest.mark.parametrize(
    ("model", "efforts"),
    [
        ("gpt-4.1", (None, None, None, None)),
        ("gpt-4o-mini", (None, None, None, None)),
        ("gpt-5-chat-latest", (None, None, None, None)),
        ("gpt-5", ("minimal", "low", "medium", "high")),
        ("gpt-5-mini-2025-08-07", ("minimal", "low", "medium", "high")),
        ("openai/gpt-5-nano", ("minimal", "low", "medium", "high")),
        ("gpt-5.1", ("none", "low", "medium", "high")),
        ("gpt-5.4-mini", ("none", "low", "medium", "high")),
        ("gpt-5-codex", ("low", "low", "medium", "high")),
        ("gpt-5.1-codex-max", ("low", "low", "medium", "high")),
        ("gpt-5.1-codex-mini", ("medium", "medium", "medium", "high")),
        ("gpt-5-pro", ("high", "high", "high", "high")),
        ("gpt-5.4-pro", ("medium", "medium", "medium", "high")),
        ("o3", ("low", "low", "medium", "high")),
        ("o4-mini", ("low", "low", "medium", "high")),
        ("somebody-elses", (None, "low", "medium", "high")),
    ],
)
def test_each_family_gets_a_supported_effort(model: str, efforts: tuple[str | None, ...]) -> None:
    wanted: tuple[Reasoning, ...] = ("off", "low", "medium", "high")
    bodies = [body_of(user("hi"), model=model, reasoning=reasoning) for reasoning in wanted]
    assert tuple(body.get("reasoning", {}).get("effort") for body in bodies) == efforts
    shown = [body["reasoning"].get("summary") for body in bodies if "reasoning" in body and body is not bodies[0]]
    assert shown == ["auto"] * len(shown)
    assert "summary" not in bodies[0].get("reasoning", {})


def test_thoughts_are_sent_back_sealed_right_before_their_calls() -> None:
    silent = ThinkingBlock("", "sealed too", id="rs_2")
    conversation = (user("a"), assistant(THOUGHT, silent, "b", ThinkingBlock("x", "s", id="rs_3"), CALL), RESULT)
    assert items_of(*conversation)[1:-1] == snapshot(
        [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "sealed",
            },
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "sealed too"},
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "b", "annotations": []}],
                "id": "msg_3",
            },
            {
                "type": "reasoning",
                "id": "rs_3",
                "summary": [{"type": "summary_text", "text": "x"}],
                "encrypted_content": "s",
            },
            {"type": "function_call", "call_id": "c1", "name": "t", "arguments": "{}"},
        ]
    )


@pytest.mark.parametrize(
    "blocks",
    [
        (ThinkingBlock("unsealed", id="rs_1"), "b"),
        (ThinkingBlock("sealed by another API", "sig"), "b"),
        (ThinkingBlock(redacted="of another API"), "b"),
        ("b", THOUGHT),
        ("b", THOUGHT, " "),
        ("b", THOUGHT, ThinkingBlock("aborted")),
    ],
)
def test_an_unsendable_thought_is_omitted(blocks: tuple[TranscriptBlock | str, ...]) -> None:
    assert items_of(user("a"), assistant(*blocks), user("c")) == items_of(user("a"), assistant("b"), user("c"))


def test_a_thought_without_a_consequence_is_omitted() -> None:
    assert items_of(user("a"), assistant(THOUGHT), user("c")) == items_of(user("a"), user("c"))


def test_thoughts_sealed_by_another_provider_are_not_sent() -> None:
    kinds = [
        [item["type"] for item in items_of(user("a"), assistant(THOUGHT, CALL, origin=origin), RESULT)]
        for origin in ("", "openai", "anthropic")
    ]
    own = ["message", "reasoning", "function_call", "function_call_output"]
    assert kinds == [own, own, ["message", "function_call", "function_call_output"]]


def test_images_are_sent_and_unsupported_ones_described() -> None:
    images = (
        ImageBlock("image/png", b"\x89PNG"),
        ImageBlock("image/tiff", b"II*"),
        ImageBlock("image/png", b""),
        ImageBlock("", b"x"),
    )
    assert items_of(user("look", *images)) == snapshot(
        [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw=="},
                    {"type": "input_text", "text": "[an image was left out: image/tiff, 3 bytes]"},
                    {"type": "input_text", "text": "[an image was left out: image/png, 0 bytes]"},
                    {"type": "input_text", "text": "[an image was left out: unknown type, 1 bytes]"},
                ],
            }
        ]
    )


@pytest.mark.parametrize(("size", "kind"), [(15_000_000, "input_image"), (15_000_001, "input_text")])
def test_an_image_has_a_largest_size(size: int, kind: str) -> None:
    [item] = items_of(user(ImageBlock("image/png", bytes(size))))
    assert [part["type"] for part in item["content"]] == [kind]


def test_calls_and_their_results() -> None:
    conversation = (
        user("go"),
        assistant("Yes.", CallBlock("c1", "read", {"path": "ö"}), CallBlock("c2", "bash", None, malformed="{")),
        results(
            ResultBlock("c1", is_error=False, content=(TextBlock("seen"), ImageBlock("image/gif", b"GIF"))),
            ResultBlock("c2", is_error=True, content=(TextBlock("not JSON"), TextBlock("at all"))),
        ),
        user("and?"),
    )
    assert items_of(*conversation) == snapshot(
        [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Yes.", "annotations": []}],
                "id": "msg_1",
            },
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"ö"}'},
            {"type": "function_call", "call_id": "c2", "name": "bash", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [
                    {"type": "input_text", "text": "seen"},
                    {"type": "input_image", "detail": "auto", "image_url": "data:image/gif;base64,R0lG"},
                ],
            },
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": """\
[error]
not JSON
at all\
""",
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and?"}]},
        ]
    )


@pytest.mark.parametrize("content", [(), (TextBlock(""),), (TextBlock(" \n"),)])
def test_a_result_without_output_says_so(content: tuple[TextBlock, ...]) -> None:
    outputs = [
        items_of(user("go"), assistant(CALL), results(ResultBlock("c1", is_error, content)))[2]["output"]
        for is_error in (False, True)
    ]
    assert outputs == ["(no output)", "[error]\n(no output)"]


def test_a_failed_call_with_an_image_says_that_it_failed() -> None:
    failed = results(ResultBlock("c1", True, (ImageBlock("image/gif", b"GIF"),)))
    output = items_of(user("go"), assistant(CALL), failed)[2]["output"]
    assert [part.get("text") for part in output] == ["[error]", None]


def test_empty_messages_are_not_sent() -> None:
    conversation = (user(" "), user("a"), assistant("", " "), user(""), user("b", "\n"))
    assert items_of(*conversation) == items_of(user("a"), user("b"))


def test_ids_and_names_of_other_services_are_made_to_fit() -> None:
    ids = ["x" * 65, "x" * 66, "x" * 64]
    names = ["no such.tool", "", "y" * 99]
    calls = (CallBlock(id_, name, {}) for id_, name in zip(ids, names, strict=True))
    answers = (ResultBlock(id_, False, (TextBlock(id_),)) for id_ in ids)
    items = items_of(user("go"), assistant(*calls, origin="kimi"), results(*answers))
    assert [item["name"] for item in items[1:4]] == ["no_such_tool", "unknown", "y" * 64]
    assert [item["call_id"] for item in items[1:4]] == [item["call_id"] for item in items[4:]]
    assert items[3]["call_id"] == "x" * 64


def test_the_smallest_answer() -> None:
    assert body_of(user("hi"), max_tokens=1)["max_output_tokens"] == 16


def test_a_conversation_keeps_its_place_in_the_cache_and_shares_it_with_no_other() -> None:
    def key(*messages: Message, system: str = "s") -> str:
        told: str = body_of(*messages, system=system)["prompt_cache_key"]
        return told

    first = key(user("a"))
    assert key(user("a"), assistant("b"), user("c")) == first
    assert len({first, key(user("b")), key(user("a"), system="t")}) == 3


@pytest.mark.parametrize("half", ["\ud83d", "a\ude00", "\ud83d\ude00"])
def test_a_lone_surrogate_does_not_break_a_conversation(half: str) -> None:
    whole = half.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    conversation = (user(half), assistant(CallBlock("c1", "t", {half: half})), results(
        ResultBlock("c1", False, (TextBlock(half),))))  # fmt: skip
    body = body_of(*conversation, system=half)
    assert body["instructions"] == whole
    assert body["input"][0]["content"][0]["text"] == whole
    assert json.loads(body["input"][1]["arguments"]) == {whole: whole}
    assert body["input"][2]["output"] == whole


def test_earlier_messages_are_not_encoded_again() -> None:
    looked: list[str] = []

    class Watched(TextBlock, tag="text", frozen=True, gc=False):
        def __getattribute__(self, name: str) -> object:
            if name == "text":
                looked.append(name)
            return super().__getattribute__(name)

    messages = [user("start"), *(user(Watched("word")) for _ in range(100))]
    encoded = EncodedMessages()
    API.request(ask(*messages, encoded=encoded), "k")
    after_first = len(looked)
    assert after_first >= 100
    messages += [assistant("b"), user("c")]
    body = API.request(ask(*messages, encoded=encoded), "k").body
    assert len(looked) == after_first
    assert body == API.request(ask(*messages), "k").body
