"""Anthropic Messages: streams become the same events however they arrive; requests equal the recorded ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import asking
import pytest
from asking import CALL, RESULT, TOOLS, assistant, results, user
from decoding import Outcome, cut, decoded, fed, said
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from validator import problems

import claude
from zot.errors import ContentRefused, Overloaded, ProviderError, ServiceFailed, StreamBroken
from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import (
    CallBlock,
    Counters,
    ImageBlock,
    Message,
    ResultBlock,
    Stop,
    TextBlock,
    ThinkingBlock,
    TranscriptBlock,
)
from zot.providers.anthropic import AnthropicDecoder, AnthropicMessages
from zot.providers.base import Reasoning
from zot.providers.sse import CallIds


def outcome(pieces: Iterable[bytes]) -> Outcome:
    return decoded(AnthropicDecoder(CallIds()), pieces)


def nested(depth: int) -> str:
    """Return an object with this many levels, itself included."""
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


GOLDEN: dict[str, tuple[list[bytes], Outcome]] = {
    "text": (
        claude.reply(claude.text("Hel", "lo", "")),
        Outcome([TextDelta("Hel"), TextDelta("lo"), TextDelta("")], said(TextBlock("Hello"))),
    ),
    "text that begins with its block": (
        [
            claude.start(),
            *claude.block(0, {"type": "text", "text": "Hi"}, claude.delta(0, "text_delta", text="!")),
            *claude.stop("end_turn", output_tokens=20),
        ],
        Outcome([TextDelta("Hi"), TextDelta("!")], said(TextBlock("Hi!"))),
    ),
    "thinking with its signature": (
        claude.reply(claude.thinking("Let me", " see", signature="c2ln"), claude.text("Yes")),
        Outcome(
            [ThinkingDelta("Let me"), ThinkingDelta(" see"), TextDelta("Yes")],
            said(ThinkingBlock("Let me see", "c2ln"), TextBlock("Yes")),
        ),
    ),
    "a signature in two pieces": (
        [
            claude.start(),
            *claude.block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                claude.delta(0, "signature_delta", signature="c2"),
                claude.delta(0, "signature_delta", signature="ln"),
            ),
            *claude.stop("end_turn", output_tokens=20),
        ],
        Outcome([], said(ThinkingBlock("", "c2ln"))),
    ),
    "redacted thinking": (
        claude.reply(claude.redacted("c2VhbGVk"), claude.text("Yes")),
        Outcome([TextDelta("Yes")], said(ThinkingBlock(redacted="c2VhbGVk"), TextBlock("Yes"))),
    ),
    "a call with split arguments": (
        claude.reply(claude.tool("c1", "bash", "", '{"comm', 'and": "ls', ' ö"}'), ends="tool_use"),
        Outcome(
            [
                ToolUseStart("c1", "bash"),
                ToolUseArgs("c1", '{"comm'),
                ToolUseArgs("c1", 'and": "ls'),
                ToolUseArgs("c1", ' ö"}'),
                ToolUseEnd("c1"),
            ],
            said(CallBlock("c1", "bash", {"command": "ls ö"}), stop="tool_use"),
        ),
    ),
    "a call without arguments": (
        claude.reply(claude.tool("c1", "list"), ends="tool_use"),
        Outcome([ToolUseStart("c1", "list"), ToolUseEnd("c1")], said(CallBlock("c1", "list", {}), stop="tool_use")),
    ),
    "a call whose arguments come with its block": (
        [
            claude.start(),
            *claude.block(0, {"type": "tool_use", "id": "c1", "name": "t", "input": {"a": 1}}),
            *claude.stop("tool_use", output_tokens=20),
        ],
        Outcome([ToolUseStart("c1", "t"), ToolUseEnd("c1")], said(CallBlock("c1", "t", {"a": 1}), stop="tool_use")),
    ),
    "arguments that are not JSON": (
        claude.reply(claude.tool("c1", "bash", '{"command": "ls'), ends="tool_use"),
        Outcome(
            [ToolUseStart("c1", "bash"), ToolUseArgs("c1", '{"command": "ls'), ToolUseEnd("c1")],
            said(CallBlock("c1", "bash", None, malformed='{"command": "ls'), stop="tool_use"),
        ),
    ),
    "arguments that are no object": (
        claude.reply(claude.tool("c1", "bash", "[1]"), ends="tool_use"),
        Outcome(
            [ToolUseStart("c1", "bash"), ToolUseArgs("c1", "[1]"), ToolUseEnd("c1")],
            said(CallBlock("c1", "bash", None, malformed="[1]"), stop="tool_use"),
        ),
    ),
    "arguments nested beyond reason": (
        claude.reply(claude.tool("c1", "bash", '{"a":' + "[" * 5000), ends="tool_use"),
        Outcome(
            [ToolUseStart("c1", "bash"), ToolUseArgs("c1", '{"a":' + "[" * 5000), ToolUseEnd("c1")],
            said(CallBlock("c1", "bash", None, malformed='{"a":' + "[" * 5000), stop="tool_use"),
        ),
    ),
    "arguments nested too deep": (
        claude.reply(claude.tool("c1", "bash", nested(101)), ends="tool_use"),
        Outcome(
            [ToolUseStart("c1", "bash"), ToolUseArgs("c1", nested(101)), ToolUseEnd("c1")],
            said(CallBlock("c1", "bash", None, malformed=nested(101)), stop="tool_use"),
        ),
    ),
    "arguments nested as deep as they may be": (
        claude.reply(claude.tool("c1", "bash", nested(100)), ends="tool_use"),
        Outcome(
            [ToolUseStart("c1", "bash"), ToolUseArgs("c1", nested(100)), ToolUseEnd("c1")],
            said(CallBlock("c1", "bash", json.loads(nested(100))), stop="tool_use"),
        ),
    ),
    "arguments nested too deep in the head of their block": (
        [
            claude.start(),
            *claude.block(0, {"type": "tool_use", "id": "c1", "name": "t", "input": json.loads(nested(101))}),
            *claude.stop("tool_use", output_tokens=20),
        ],
        Outcome([ToolUseStart("c1", "t"), ToolUseEnd("c1")], said(CallBlock("c1", "t", None), stop="tool_use")),
    ),
    "calls without an id, with that of another, with a strange one, and with one we might have made up": (
        claude.reply(
            claude.tool("", "t", "{}"),
            claude.tool("c-A_1", "t"),
            claude.tool("c-A_1", "t", "{}"),
            claude.tool("functions.t:0é", "t"),
            claude.tool("call_1", "t"),
            ends="tool_use",
        ),
        Outcome(
            [
                ToolUseStart("call_1", "t"),
                ToolUseArgs("call_1", "{}"),
                ToolUseEnd("call_1"),
                ToolUseStart("c-A_1", "t"),
                ToolUseEnd("c-A_1"),
                ToolUseStart("call_3", "t"),
                ToolUseArgs("call_3", "{}"),
                ToolUseEnd("call_3"),
                ToolUseStart("functions.t:0é", "t"),
                ToolUseEnd("functions.t:0é"),
                ToolUseStart("call_5", "t"),
                ToolUseEnd("call_5"),
            ],
            said(
                *(CallBlock(call_id, "t", {}) for call_id in ("call_1", "c-A_1", "call_3", "functions.t:0é", "call_5")),
                stop="tool_use",
            ),
        ),
    ),
    "citations, pings, comments and what is new since": (
        [
            b": welcome\n\n",
            claude.event("ping"),
            claude.start(),
            claude.event("novelty", index={"a": []}),
            *claude.block(
                0,
                {"type": "text", "text": "", "citations": []},
                claude.delta(0, "citations_delta", citation={"cited_text": "x"}),
                claude.delta(0, "novelty_delta", novelty=7),
                claude.delta(0, "text_delta", text="Hi"),
            ),
            *claude.block(1, {"type": "novelty", "content": 7}),
            claude.event("ping"),
            *claude.stop("end_turn", output_tokens=20),
        ],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"))),
    ),
    "blocks that do not come in order": (
        [
            claude.start(),
            claude.event("content_block_start", index=1, content_block={"type": "text", "text": "b"}),
            claude.event("content_block_start", index=0, content_block={"type": "text", "text": "a"}),
            claude.delta(1, "text_delta", text="B"),
            claude.delta(0, "text_delta", text="A"),
            *claude.stop("end_turn", output_tokens=20),
        ],
        Outcome(
            [TextDelta("b"), TextDelta("a"), TextDelta("B"), TextDelta("A")], said(TextBlock("aA"), TextBlock("bB"))
        ),
    ),
    "half an emoji in a delta": (
        [
            claude.start(),
            claude.event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\\ud83d"}}\n\n',
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ude00b"}}\n\n',
            *claude.stop("end_turn", output_tokens=20),
        ],
        Outcome([TextDelta("a\ufffd"), TextDelta("\ufffdb")], said(TextBlock("a\ufffd\ufffdb"))),
    ),
    "usage with cache counters, told twice": (
        [
            claude.start(input_tokens=3, cache_read_input_tokens=1000, cache_creation_input_tokens=200),
            *claude.text("Hi")(0),
            claude.event("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 5}),
            *claude.stop(
                "end_turn",
                input_tokens=3,
                output_tokens=9,
                cache_read_input_tokens=1000,
                cache_creation_input_tokens=200,
            ),
        ],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"), counters=Counters(3, 9, 1000, 200, 0.0))),
    ),
    "usage without numbers": (
        [
            claude.event("message_start", message={}),
            *claude.text("Hi")(0),
            claude.event("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": None}),
        ],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"), counters=Counters(0, 0, 0, 0, 0.0))),
    ),
    "nothing said": (claude.reply(), Outcome([], said())),
    "an error in the middle": (
        [
            claude.start(),
            *claude.text("a", "b")(0)[:-1],
            claude.event("error", error={"type": "overloaded_error", "message": "Overloaded"}),
            claude.delta(0, "text_delta", text="never"),
        ],
        Outcome(
            [TextDelta("a"), TextDelta("b")],
            said(TextBlock("ab"), counters=Counters(100, 1, 0, 0, 0.0)),
            "Overloaded: overloaded_error: Overloaded",
        ),
    ),
    "an error without a word": (
        [claude.start(), claude.event("error", error={})],
        Outcome([], said(counters=Counters(100, 1, 0, 0, 0.0)), "ServiceFailed: api_error: "),
    ),
    "no end": (
        [claude.start(), *claude.text("half an")(0)],
        Outcome(
            [TextDelta("half an")],
            said(TextBlock("half an"), counters=Counters(100, 1, 0, 0, 0.0)),
            "StreamBroken: the answer ended without its final event",
        ),
    ),
    "an end in the middle of a call": (
        [
            claude.start(),
            *claude.text("I will")(0),
            *claude.tool("c1", "bash", '{"command": "ls"}')(1)[:-1],
        ],
        Outcome(
            [TextDelta("I will"), ToolUseStart("c1", "bash"), ToolUseArgs("c1", '{"command": "ls"}')],
            said(TextBlock("I will"), counters=Counters(100, 1, 0, 0, 0.0)),
            "StreamBroken: the answer ended without its final event",
        ),
    ),
    "a delta from nowhere": (
        [claude.start(), claude.delta(4, "text_delta", text="x")],
        Outcome(
            [],
            said(counters=Counters(100, 1, 0, 0, 0.0)),
            "StreamBroken: a delta for a block that was never started",
        ),
    ),
    "an end of a block from nowhere": (
        [claude.start(), claude.event("content_block_stop", index=4), *claude.stop("end_turn", output_tokens=20)],
        Outcome([], said()),
    ),
    "a refusal": (
        claude.reply(claude.text("I cannot"), ends="refusal"),
        Outcome(
            [TextDelta("I cannot")],
            said(TextBlock("I cannot")),
            "ContentRefused: the model refused to answer this",
        ),
    ),
    "not an Anthropic stream at all": (
        [b'data: {"choices":[]}\n\n', b"data: []\n\n"],
        Outcome(
            [],
            said(counters=Counters(0, 0, 0, 0, 0.0)),
            "StreamBroken: the service sent an event that cannot be read: it must be an object, not a list",
        ),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_stream_is_understood_event_by_event_whole_and_byte_by_byte(name: str) -> None:
    pieces, expected = GOLDEN[name]
    for way in fed(*pieces):
        assert outcome(way) == expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(GOLDEN)), st.lists(st.integers(0, 5000), max_size=6))
def test_a_stream_is_understood_however_it_is_cut(name: str, places: list[int]) -> None:
    pieces, expected = GOLDEN[name]
    assert outcome(cut(b"".join(pieces), places)) == expected


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("pause_turn", "end_turn"),
        ("tool_use", "tool_use"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("something_new", "end_turn"),
    ],
)
def test_every_stop_reason_has_its_meaning(reason: str, stop: Stop) -> None:
    assert outcome(claude.reply(claude.text("Hi"), ends=reason)) == Outcome(
        [TextDelta("Hi")], said(TextBlock("Hi"), stop=stop)
    )


@pytest.mark.parametrize(
    ("code", "kind"), [("overloaded_error", Overloaded), ("api_error", ServiceFailed), ("novel_error", ServiceFailed)]
)
def test_an_error_inside_a_stream_has_its_type(code: str, kind: type[ProviderError]) -> None:
    decoder = AnthropicDecoder(CallIds())
    with pytest.raises(kind, match=f"^{code}: No$") as caught:
        decoder.feed(claude.event("error", error={"type": code, "message": "No"}))
    assert (caught.value.code, caught.value.provider, caught.value.status) == (code, "", 0)


def test_a_refusal_is_an_error_of_its_own() -> None:
    decoder = AnthropicDecoder(CallIds())
    decoder.feed(b"".join(claude.reply(ends="refusal")))
    with pytest.raises(ContentRefused) as caught:
        decoder.finish()
    assert caught.value.code == "refusal"


@pytest.mark.parametrize("payload", [b"{", b"7", b'{"type":"content_block_delta","index":0}', b'{"type":"error"}'])
def test_an_event_that_cannot_be_read_breaks_the_stream(payload: bytes) -> None:
    with pytest.raises(StreamBroken, match="cannot be read"):
        AnthropicDecoder(CallIds()).feed(b"data: " + payload + b"\n\n")


def test_the_received_part_is_available_at_any_moment_without_a_partial_call() -> None:
    parts = (claude.thinking("Hm", signature="s"), claude.text("A", "B"), claude.tool("c1", "t", "{}"))
    decoder = AnthropicDecoder(CallIds())
    contents: list[tuple[TranscriptBlock, ...]] = []
    for piece in claude.reply(*parts, ends="tool_use"):
        decoder.feed(piece)
        content = decoder.reply().content
        if not contents or contents[-1] != content:
            contents.append(content)
    thought, signed = ThinkingBlock("Hm"), ThinkingBlock("Hm", "s")
    assert contents == [
        (),
        (thought,),
        (signed,),
        (signed, TextBlock("A")),
        (signed, TextBlock("AB")),
        (signed, TextBlock("AB"), CallBlock("c1", "t", {})),
    ]


def test_pings_and_comments_are_not_progress() -> None:
    decoder = AnthropicDecoder(CallIds())
    decoder.feed(b": hello\n\n" + claude.event("ping"))
    assert decoder.progress == 0
    decoder.feed(claude.start() + claude.event("ping"))
    assert decoder.progress == 1


# Requests.


ask = partial(asking.ask, model="claude-sonnet-4-5")


def body_of(*messages: Message, **changes: Any) -> dict[str, Any]:
    body = (
        AnthropicMessages(base_url="https://api.test", origin="anthropic").request(ask(*messages, **changes), "k").body
    )
    assert problems(body) == []
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def _blocks(blocks: Sequence[TranscriptBlock | str]) -> tuple[TranscriptBlock, ...]:
    return tuple(TextBlock(block) if isinstance(block, str) else block for block in blocks)


def test_the_smallest_request() -> None:
    request = AnthropicMessages(base_url="https://api.test", origin="anthropic").request(ask(user("hi")), "k")
    assert (request.method, request.url) == ("POST", "https://api.test/v1/messages")
    assert request.headers == snapshot(
        {
            "x-api-key": "k",
            "anthropic-version": "2023-06-01",
            "content-type": "application/json",
            "accept": "text/event-stream",
        }
    )
    assert json.loads(request.body) == snapshot(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 1000,
            "stream": True,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
            ],
        }
    )


@pytest.mark.parametrize(
    "base_url", ["https://api.test", "https://api.test/", "https://api.test/v1", "https://api.test/v1/"]
)
def test_the_address_may_be_written_with_or_without_its_version(base_url: str) -> None:
    api = AnthropicMessages(base_url=base_url, origin="anthropic")
    assert api.request(ask(user("hi")), "k").url == "https://api.test/v1/messages"


def test_system_tools_and_the_newest_user_message_are_marked_for_caching() -> None:
    conversation = (user("one"), assistant("two"), user("three", "four"))
    assert body_of(*conversation, system="Be brief.", tools=TOOLS) == snapshot(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 1000,
            "stream": True,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "tools": [
                {
                    "name": "read",
                    "description": "Read a file.",
                    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
                },
                {
                    "name": "bash",
                    "description": "Run a command.",
                    "input_schema": {"type": "object"},
                    "cache_control": {"type": "ephemeral"},
                },
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "one"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "three"},
                        {"type": "text", "text": "four", "cache_control": {"type": "ephemeral"}},
                    ],
                },
            ],
        }
    )


@pytest.mark.parametrize(
    ("reasoning", "max_tokens", "expected"),
    [
        ("off", 1000, (1000, None)),
        ("low", 1000, (6144, {"type": "enabled", "budget_tokens": 2048})),
        ("medium", 64000, (64000, {"type": "enabled", "budget_tokens": 8192})),
        ("high", 1000, (20480, {"type": "enabled", "budget_tokens": 16384})),
    ],
)
def test_thinking_has_a_budget_and_room_beyond_it(
    reasoning: Reasoning, max_tokens: int, expected: tuple[int, dict[str, Any] | None]
) -> None:
    body = body_of(user("hi"), reasoning=reasoning, max_tokens=max_tokens)
    assert (body["max_tokens"], body.get("thinking")) == expected


CALL_2 = CallBlock("c2", "t", {})
RESULT_2 = results(ResultBlock("c2", False, (TextBlock("ok"),)))
THOUGHT = ThinkingBlock("hm", "sig")


@pytest.mark.parametrize(
    ("conversation", "thinks"),
    [
        ([user("a")], True),
        ([user("a"), assistant("b"), user("c")], True),
        ([user("a"), assistant(THOUGHT, CALL), RESULT], True),
        ([user("a"), assistant(ThinkingBlock(redacted="sealed"), CALL), RESULT], True),
        ([user("a"), assistant(THOUGHT, CALL), RESULT, assistant(CALL_2), RESULT_2], True),
        ([user("a"), assistant(CALL), RESULT], False),
        ([user("a"), assistant("I will.", CALL), RESULT], False),
        ([user("a"), assistant("I will.", THOUGHT, CALL), RESULT], False),
        ([user("a"), assistant(ThinkingBlock("unsigned"), CALL), RESULT], False),
        ([user("a"), assistant(CALL), RESULT, assistant(THOUGHT, CALL_2), RESULT_2], False),
        ([user("a"), assistant(CALL), RESULT, user("b")], False),
        ([user("a"), assistant(CALL), RESULT, assistant("done"), user("b")], True),
        (
            [user("a"), assistant(CALL), RESULT, assistant("done"), user("b"), assistant(THOUGHT, CALL_2), RESULT_2],
            True,
        ),
    ],
)
def test_a_model_does_not_begin_to_reason_in_mid_turn(conversation: list[Message], *, thinks: bool) -> None:
    body = body_of(*conversation, reasoning="low", tools=TOOLS)
    assert (body.get("thinking"), body["max_tokens"]) == (
        ({"type": "enabled", "budget_tokens": 2048}, 6144) if thinks else (None, 1000)
    )


def test_thinking_is_sent_back_with_its_signature_only() -> None:
    conversation = (
        user("hi"),
        assistant(ThinkingBlock("a", "sig"), ThinkingBlock("unsigned"), ThinkingBlock(redacted="sealed"), "b"),
        user("c"),
    )
    assert body_of(*conversation)["messages"][1] == snapshot(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "a", "signature": "sig"},
                {"type": "redacted_thinking", "data": "sealed"},
                {"type": "text", "text": "b"},
            ],
        }
    )


def test_a_message_that_ends_in_thinking_loses_that_thought() -> None:
    conversation = (
        user("a"),
        assistant("b", ThinkingBlock("x", "sig")),
        user("c"),
        assistant(ThinkingBlock("x", "sig"), ThinkingBlock(redacted="sealed"), " "),
        user("d"),
    )
    assert body_of(*conversation)["messages"][1:] == snapshot(
        [
            {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "c"},
                    {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ]
    )


def test_images_are_sent_and_unsupported_ones_described() -> None:
    conversation = (
        user(
            "look",
            ImageBlock("image/png", b"\x89PNG"),
            ImageBlock("image/tiff", b"II*"),
            ImageBlock("image/png", b""),
            ImageBlock("", b"x"),
        ),
    )
    assert body_of(*conversation)["messages"] == snapshot(
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                    {"type": "text", "text": "[an image was left out: image/tiff, 3 bytes]"},
                    {"type": "text", "text": "[an image was left out: image/png, 0 bytes]"},
                    {
                        "type": "text",
                        "text": "[an image was left out: unknown type, 1 bytes]",
                        "cache_control": {"type": "ephemeral"},
                    },
                ],
            }
        ]
    )


def test_an_error_with_an_image_is_sent_as_text_with_one() -> None:
    failed = ResultBlock("c1", is_error=True, content=(TextBlock("broken"), ImageBlock("image/gif", b"GIF")))
    conversation = (user("go"), assistant(CallBlock("c1", "read", {"path": "x"})), results(failed))
    assert body_of(*conversation, tools=TOOLS)["messages"][-1]["content"] == snapshot(
        [
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [
                    {"type": "text", "text": "[error]"},
                    {"type": "text", "text": "broken"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"}},
                ],
                "is_error": False,
                "cache_control": {"type": "ephemeral"},
            }
        ]
    )


def test_calls_and_their_results() -> None:
    conversation = (
        user("go"),
        assistant("Yes.", CallBlock("c1", "read", {"path": "x"}), CallBlock("c2", "bash", None, malformed="{")),
        results(
            ResultBlock("c1", is_error=False, content=(TextBlock("seen"), ImageBlock("image/gif", b"GIF"))),
            ResultBlock("c2", is_error=True, content=(TextBlock("not JSON"),)),
        ),
        user("and?"),
    )
    assert body_of(*conversation, tools=TOOLS)["messages"] == snapshot(
        [
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Yes."},
                    {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "x"}},
                    {"type": "tool_use", "id": "c2", "name": "bash", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [
                            {"type": "text", "text": "seen"},
                            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"}},
                        ],
                        "is_error": False,
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "content": [{"type": "text", "text": "not JSON"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ]
    )


@pytest.mark.parametrize("content", [(), (TextBlock(""),), (TextBlock(" \n"),)])
def test_a_result_without_output_says_so(content: tuple[TextBlock, ...]) -> None:
    conversation = (user("go"), assistant(CallBlock("c1", "t", {})), results(ResultBlock("c1", False, content)))
    result = body_of(*conversation)["messages"][2]["content"][0]
    assert result["content"] == [{"type": "text", "text": "(no output)"}]


def test_messages_of_one_role_are_merged_and_empty_ones_omitted() -> None:
    conversation = (user("a"), user("b"), assistant(""), user(" "), user("c"), assistant("d"), user("e"), user(" "))
    assert body_of(*conversation)["messages"] == snapshot(
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                    {"type": "text", "text": "c"},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
            {"role": "user", "content": [{"type": "text", "text": "e", "cache_control": {"type": "ephemeral"}}]},
        ]
    )


@pytest.mark.parametrize("half", ["\ud83d", "a\ude00", "\ud83d\ude00"])
def test_a_lone_surrogate_does_not_break_a_conversation(half: str) -> None:
    whole = half.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    body = body_of(user(half), assistant(CallBlock("c1", "t", {half: half})), results(
        ResultBlock("c1", False, (TextBlock(half),))), system=half)  # fmt: skip
    assert body["system"][0]["text"] == whole
    assert body["messages"][0]["content"][0]["text"] == whole
    assert body["messages"][1]["content"][0]["input"] == {whole: whole}
    assert body["messages"][2]["content"][0]["content"][0]["text"] == whole


def test_thoughts_sealed_by_another_provider_are_not_sent() -> None:
    thought = (ThinkingBlock("Hm", "s"), CallBlock("c1", "t", {}, signature="g"))
    said = [
        body_of(user("a"), Message("assistant", thought, "t", origin=origin), RESULT)["messages"][1]
        for origin in ("", "anthropic", "gemini")
    ]
    call = {"type": "tool_use", "id": "c1", "name": "t", "input": {}}
    own = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": "s"}, call]}
    assert said == [own, own, {"role": "assistant", "content": [call]}]
