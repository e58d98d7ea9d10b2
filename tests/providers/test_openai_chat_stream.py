"""Chat Completions: every dialect becomes the same events, however its bytes arrive."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from decoding import Outcome, decoded, said
from hypothesis import given, settings
from hypothesis import strategies as st

import completions as gpt
from zot.errors import ContentRefused, Overloaded, ProviderError, RateLimited, ServiceFailed, StreamBroken
from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import CallBlock, Counters, Stop, TextBlock, ThinkingBlock, TranscriptBlock
from zot.providers.base import StreamEvent
from zot.providers.openai_chat import ChatDecoder
from zot.providers.sse import CallIds

RECORDED = Path(__file__).parent / "streams" / "chat"
NOTHING = Counters(0, 0, 0, 0, 0.0)


def called(call_id: str, name: str, *pieces: str) -> list[StreamEvent]:
    return [ToolUseStart(call_id, name), *(ToolUseArgs(call_id, piece) for piece in pieces)]


def outcome(pieces: Iterable[bytes], *, think_tags: bool = False) -> Outcome:
    return decoded(ChatDecoder(CallIds(), think_tags=think_tags), pieces)


# One whole stream of each vendor.

OPENROUTER_SEAL = (
    '[{"type":"reasoning.text","format":"anthropic-claude-v1","index":0,"signature":"EqoB==",'
    '"text":"I need the file."},'
    '{"type":"reasoning.encrypted","format":"openai-responses-v1","id":"rs_1","index":1,"data":"gAAA"}]'
)
DIALECTS: dict[str, Outcome] = {
    "openai": Outcome(
        [
            TextDelta("Let me"),
            TextDelta(" look ☃"),
            *called("call_Ab1", "read", '{"pa', 'th":"a.txt"}'),
            *called("call_Ab2", "bash", '{"command":"ls"}'),
            ToolUseEnd("call_Ab1"),
            ToolUseEnd("call_Ab2"),
        ],
        said(
            TextBlock("Let me look ☃"),
            CallBlock("call_Ab1", "read", {"path": "a.txt"}),
            CallBlock("call_Ab2", "bash", {"command": "ls"}),
            stop="tool_use",
            counters=Counters(176, 310, 1024, 0, 0.0, reasoning=256),
        ),
    ),
    "deepseek": Outcome(
        [
            ThinkingDelta("The user"),
            ThinkingDelta(" wants a list."),
            TextDelta("I will"),
            TextDelta(" list."),
            *called("call_00_Hq", "bash", '{"command": ', '"ls"}'),
            ToolUseEnd("call_00_Hq"),
        ],
        said(
            ThinkingBlock("The user wants a list."),
            TextBlock("I will list."),
            CallBlock("call_00_Hq", "bash", {"command": "ls"}),
            stop="tool_use",
            counters=Counters(116, 60, 384, 0, 0.0, reasoning=20),
        ),
    ),
    "kimi": Outcome(
        [
            ThinkingDelta("List"),
            ThinkingDelta(" it."),
            *called("functions.bash:0", "bash", '{"command":', '"ls"}'),
            ToolUseEnd("functions.bash:0"),
        ],
        said(
            ThinkingBlock("List it."),
            CallBlock("functions.bash:0", "bash", {"command": "ls"}),
            stop="tool_use",
            counters=Counters(26, 30, 64, 0, 0.0),
        ),
    ),
    "openrouter": Outcome(
        [
            ThinkingDelta("I need"),
            ThinkingDelta(" the file."),
            TextDelta("Looking."),
            *called("toolu_01A", "read", '{"path": "a"}'),
            ToolUseEnd("toolu_01A"),
        ],
        said(
            ThinkingBlock("I need the file.", signature=OPENROUTER_SEAL),
            TextBlock("Looking."),
            CallBlock("toolu_01A", "read", {"path": "a"}),
            stop="tool_use",
            counters=Counters(100, 50, 100, 200, 0.0, reasoning=11),
        ),
    ),
    "openrouter_error": Outcome(
        [TextDelta("Half")],
        said(TextBlock("Half"), counters=NOTHING),
        "ServiceFailed: 502: Provider returned error: upstream hung up",
    ),
    "ollama": Outcome(
        [
            ThinkingDelta("Two"),
            ThinkingDelta(" files."),
            *called("call_m1", "read", '{"path":"a"}'),
            *called("call_m2", "read", '{"path":"b"}'),
            ToolUseEnd("call_m1"),
            ToolUseEnd("call_m2"),
        ],
        said(
            ThinkingBlock("Two files."),
            CallBlock("call_m1", "read", {"path": "a"}),
            CallBlock("call_m2", "read", {"path": "b"}),
            stop="tool_use",
            counters=Counters(210, 44, 0, 0, 0.0),
        ),
    ),
    "groq": Outcome(
        [ThinkingDelta("Simple"), TextDelta("4"), TextDelta("2")],
        said(ThinkingBlock("Simple"), TextBlock("42"), counters=Counters(64, 12, 16, 0, 0.0, reasoning=5)),
    ),
    "mistral": Outcome(
        [
            ThinkingDelta("Let"),
            ThinkingDelta(" me see."),
            TextDelta("Right"),
            TextDelta(", then."),
            *called("D681PevKs", "bash", '{"command": "ls"}'),
            *called("x8fZp01Qa", "bash", '{"command": "pwd"}'),
            ToolUseEnd("D681PevKs"),
            ToolUseEnd("x8fZp01Qa"),
        ],
        said(
            ThinkingBlock("Let me see."),
            TextBlock("Right, then."),
            CallBlock("D681PevKs", "bash", {"command": "ls"}),
            CallBlock("x8fZp01Qa", "bash", {"command": "pwd"}),
            stop="tool_use",
            counters=Counters(70, 40, 0, 0, 0.0),
        ),
    ),
    "xai": Outcome(
        [ThinkingDelta("Easy"), TextDelta("For"), TextDelta("ty")],
        said(ThinkingBlock("Easy"), TextBlock("Forty"), counters=Counters(26, 102, 4, 0, 0.0, reasoning=100)),
    ),
    "compatible": Outcome(
        [ThinkingDelta("Hm"), ThinkingDelta(" no"), TextDelta("Yes <think>"), TextDelta("!")],
        said(ThinkingBlock("Hm no"), TextBlock("Yes <think>!"), counters=Counters(9, 8, 0, 0, 0.0)),
    ),
    "function_call": Outcome(
        [*called("call_1", "bash", '{"command"', ':"ls"}'), ToolUseEnd("call_1")],
        said(CallBlock("call_1", "bash", {"command": "ls"}), stop="tool_use", counters=NOTHING),
    ),
}


def test_every_recorded_stream_has_its_outcome() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == DIALECTS.keys()


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_is_understood_whole_and_byte_by_byte(name: str) -> None:
    stream = (RECORDED / f"{name}.sse").read_bytes()
    tagged = name == "compatible"
    assert outcome([stream], think_tags=tagged) == DIALECTS[name]
    assert outcome((bytes([byte]) for byte in stream), think_tags=tagged) == DIALECTS[name]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(DIALECTS)), st.lists(st.integers(0, 5000), max_size=6))
def test_a_dialect_is_understood_however_it_is_cut(name: str, places: list[int]) -> None:
    stream = (RECORDED / f"{name}.sse").read_bytes()
    bounds = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    pieces = (stream[a:b] for a, b in pairwise(bounds))
    assert outcome(pieces, think_tags=name == "compatible") == DIALECTS[name]


# One oddity each.


def of_call(*pieces: bytes) -> list[bytes]:
    return gpt.reply(list(pieces), ends="tool_calls")


def one_call(args: dict[str, Any] | None, *pieces: str, malformed: str = "", call_id: str = "c1") -> Outcome:
    events = [*called(call_id, "t", *pieces), ToolUseEnd(call_id)]
    return Outcome(events, said(CallBlock(call_id, "t", args, malformed=malformed), stop="tool_use"))


def two_calls(first: str, second: str, *, ids: tuple[str, str] = ("c1", "c2")) -> Outcome:
    return Outcome(
        [*called(ids[0], "t", first), *called(ids[1], "t", second), ToolUseEnd(ids[0]), ToolUseEnd(ids[1])],
        said(CallBlock(ids[0], "t", {"a": 1}), CallBlock(ids[1], "t", {"b": 2}), stop="tool_use"),
    )


def no_call(args: Any) -> list[bytes]:
    return of_call(gpt.chunk(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "t", "arguments": args}}]))


A, B = '{"a":1}', '{"b":2}'
ODD: dict[str, tuple[list[bytes], Outcome]] = {
    "a call that is whole at once": (of_call(gpt.call(0, "c1", "t", A)), one_call({"a": 1}, A)),
    "id and name in every piece": (
        of_call(gpt.call(0, "c1", "t", '{"a"'), gpt.call(0, "c1", "t", ":1}")),
        one_call({"a": 1}, '{"a"', ":1}"),
    ),
    "only the name in every piece": (
        of_call(gpt.call(0, name="t", args='{"a"'), gpt.call(0, name="t", args=":1}")),
        one_call({"a": 1}, '{"a"', ":1}", call_id="call_1"),
    ),
    "another id in every piece": (
        of_call(gpt.call(0, "c1", "t", '{"a"'), gpt.call(0, "c9", args=":1}")),
        one_call({"a": 1}, '{"a"', ":1}"),
    ),
    "no id": (of_call(gpt.call(0, None, "t", A)), one_call({"a": 1}, A, call_id="call_1")),
    "an id that is empty": (of_call(gpt.call(0, "", "t", A)), one_call({"a": 1}, A, call_id="call_1")),
    "two calls without ids": (
        of_call(gpt.call(0, None, "t", A), gpt.call(1, None, "t", B)),
        two_calls(A, B, ids=("call_1", "call_2")),
    ),
    "two calls with one id": (
        of_call(gpt.call(0, "c1", "t", A), gpt.call(1, "c1", "t", B)),
        two_calls(A, B, ids=("c1", "call_2")),
    ),
    "an id that we might have made up": (
        of_call(gpt.call(0, None, "t", A), gpt.call(1, "call_1", "t", B)),
        two_calls(A, B, ids=("call_1", "call_2")),
    ),
    "calls that all have the number 0": (
        of_call(gpt.call(0, "c1", "t", A), gpt.call(0, "c2", "t", B)),
        two_calls(A, B),
    ),
    "calls that all have the number 0 and no id": (
        of_call(gpt.call(0, None, "t", A), gpt.call(0, None, "t", B)),
        two_calls(A, B, ids=("call_1", "call_2")),
    ),
    "calls without numbers": (of_call(gpt.call(None, "c1", "t", A), gpt.call(None, "c2", "t", B)), two_calls(A, B)),
    "calls without numbers and ids": (
        of_call(gpt.call(None, None, "t", A), gpt.call(None, None, "t", B)),
        two_calls(A, B, ids=("call_1", "call_2")),
    ),
    "calls of two tools without numbers and ids": (
        of_call(gpt.call(None, None, "t", ""), gpt.call(None, None, "u", B)),
        Outcome(
            [ToolUseStart("call_1", "t"), *called("call_2", "u", B), ToolUseEnd("call_1"), ToolUseEnd("call_2")],
            said(CallBlock("call_1", "t", {}), CallBlock("call_2", "u", {"b": 2}), stop="tool_use"),
        ),
    ),
    "pieces without numbers": (
        of_call(gpt.call(None, "c1", "t", ""), gpt.call(None, None, None, '{"a"'), gpt.call(None, "c1", None, ":1}")),
        one_call({"a": 1}, '{"a"', ":1}"),
    ),
    "calls whose pieces are mixed": (
        of_call(
            gpt.call(0, "c1", "t", '{"a"'),
            gpt.call(1, "c2", "t", '{"b"'),
            gpt.call(1, args=":2}"),
            gpt.call(0, args=":1}"),
        ),
        Outcome(
            [
                *called("c1", "t", '{"a"'),
                *called("c2", "t", '{"b"'),
                ToolUseArgs("c2", ":2}"),
                ToolUseArgs("c1", ":1}"),
                ToolUseEnd("c1"),
                ToolUseEnd("c2"),
            ],
            said(CallBlock("c1", "t", {"a": 1}), CallBlock("c2", "t", {"b": 2}), stop="tool_use"),
        ),
    ),
    "two calls in one chunk": (
        of_call(
            gpt.chunk(
                tool_calls=[
                    {"index": 0, "id": "c1", "function": {"name": "t", "arguments": A}},
                    {"index": 1, "id": "c2", "function": {"name": "t", "arguments": B}},
                ]
            )
        ),
        two_calls(A, B),
    ),
    "a name that comes late": (
        of_call(gpt.call(0, "c1"), gpt.call(0, args='{"a"'), gpt.call(0, name="t"), gpt.call(0, args=":1}")),
        one_call({"a": 1}, '{"a"', ":1}"),
    ),
    "no name at all": (
        of_call(gpt.call(0, "c1", None, A)),
        Outcome([*called("c1", "", A), ToolUseEnd("c1")], said(CallBlock("c1", "", {"a": 1}), stop="tool_use")),
    ),
    "a call without a function": (
        of_call(gpt.chunk(tool_calls=[{"index": 0, "id": "c1"}]), gpt.call(0, name="t", args=A)),
        one_call({"a": 1}, A),
    ),
    "arguments that are an object": (no_call({"a": 1}), one_call({"a": 1}, '{"a":1}')),
    "arguments that are nothing": (no_call(None), one_call({})),
    "arguments in an array": (no_call('[{"a": 1}]'), one_call({"a": 1}, '[{"a": 1}]')),
    "arguments that are an array": (no_call([{"a": 1}]), one_call({"a": 1}, '[{"a":1}]')),
    "two objects in an array": (no_call("[{},{}]"), one_call(None, "[{},{}]", malformed="[{},{}]")),
    "arguments that are a number": (no_call(7), one_call(None, "7", malformed="7")),
    "arguments that are not JSON": (no_call('{"a": "ls'), one_call(None, '{"a": "ls', malformed='{"a": "ls')),
    "arguments that are too deep": (
        no_call('{"a":' + "[" * 5000),
        one_call(None, '{"a":' + "[" * 5000, malformed='{"a":' + "[" * 5000),
    ),
    "text after a call": (
        gpt.reply(gpt.text("before"), gpt.tool(0, "c1", "t", A), gpt.text("af", "ter"), ends="tool_calls"),
        Outcome(
            [TextDelta("before"), *called("c1", "t", A), TextDelta("af"), TextDelta("ter"), ToolUseEnd("c1")],
            said(TextBlock("before"), CallBlock("c1", "t", {"a": 1}), TextBlock("after"), stop="tool_use"),
        ),
    ),
    "a thought in two spellings": (
        gpt.reply([gpt.chunk(reasoning_content="Hm", reasoning="Hm")], gpt.text("Yes")),
        Outcome([ThinkingDelta("Hm"), TextDelta("Yes")], said(ThinkingBlock("Hm"), TextBlock("Yes"))),
    ),
    "a thought in details alone": (
        gpt.reply([gpt.chunk(reasoning_details=[{"type": "reasoning.summary", "summary": "Hm"}])], gpt.text("Yes")),
        Outcome(
            [ThinkingDelta("Hm"), TextDelta("Yes")],
            said(ThinkingBlock("Hm", '[{"type":"reasoning.summary","summary":"Hm"}]'), TextBlock("Yes")),
        ),
    ),
    "a sealed thought alone": (
        gpt.reply([gpt.chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}])], gpt.text("Yes")),
        Outcome(
            [TextDelta("Yes")],
            said(ThinkingBlock(signature='[{"type":"reasoning.encrypted","data":"x"}]'), TextBlock("Yes")),
        ),
    ),
    "sealed thoughts with ids of their own": (
        gpt.reply(
            [
                gpt.chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "x", "id": "1"}]),
                gpt.chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "y", "id": "2"}]),
            ],
        ),
        Outcome(
            [],
            said(
                ThinkingBlock(
                    signature='[{"type":"reasoning.encrypted","id":"1","data":"x"},'
                    '{"type":"reasoning.encrypted","id":"2","data":"y"}]'
                )
            ),
        ),
    ),
    "a thought that is one text": (
        gpt.reply([gpt.chunk(content=[{"type": "thinking", "thinking": "Hm"}, {"type": "reference", "ids": [1]}])]),
        Outcome([ThinkingDelta("Hm")], said(ThinkingBlock("Hm"))),
    ),
    "a whole message instead of a delta": (
        [gpt.event(choices=[{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]), gpt.DONE],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"), counters=NOTHING)),
    ),
    "tags where no tags are expected": (
        gpt.reply(gpt.text("<think>", "Hm</think>")),
        Outcome([TextDelta("<think>"), TextDelta("Hm</think>")], said(TextBlock("<think>Hm</think>"))),
    ),
    "comments, empty chunks, and what is new since": (
        [
            b": welcome\n\n",
            gpt.event(choices=[]),
            gpt.event(choices=None, novelty={"a": []}),
            gpt.event(type="ping"),
            gpt.event(type="novelty", choices=7),
            gpt.chunk(role="assistant", content="", novelty=7),
            *gpt.text("Hi"),
            gpt.chunk("stop"),
            gpt.usage(),
            gpt.DONE,
        ],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"))),
    ),
    "errors that are none": (
        [gpt.event(error="", choices=[{"delta": {"content": "Hi"}, "finish_reason": "stop"}]), gpt.event(message="")],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"), counters=NOTHING)),
    ),
    "an end that is empty until it comes": (
        [gpt.chunk("", content="Hi"), gpt.chunk("stop"), gpt.usage()],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"))),
    ),
    "an end that comes twice": (
        [gpt.call(0, "c1", "t", A), gpt.chunk("tool_calls"), gpt.chunk("stop"), gpt.usage(), gpt.DONE],
        one_call({"a": 1}, A),
    ),
    "a call after the end": (
        [gpt.call(0, "c1", "t", A), gpt.chunk("tool_calls"), gpt.call(0, "c2", "t", B), gpt.usage(), gpt.DONE],
        Outcome(
            [*called("c1", "t", A), ToolUseEnd("c1"), *called("c2", "t", B), ToolUseEnd("c2")],
            said(CallBlock("c1", "t", {"a": 1}), CallBlock("c2", "t", {"b": 2}), stop="tool_use"),
        ),
    ),
    "no [DONE]": (
        [*gpt.text("Hi"), gpt.chunk("stop"), gpt.usage()],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"))),
    ),
    "no usage": (
        [*gpt.text("Hi"), gpt.chunk("stop"), gpt.DONE],
        Outcome([TextDelta("Hi")], said(TextBlock("Hi"), counters=NOTHING)),
    ),
    "no end but [DONE]": (
        [*gpt.text("Hi"), gpt.DONE],
        Outcome(
            [TextDelta("Hi")],
            said(TextBlock("Hi"), counters=NOTHING),
            "StreamBroken: the answer ended without its final event",
        ),
    ),
    "an end in the middle of a call": (
        [*gpt.text("I will"), gpt.call(0, "c1", "t", A)],
        Outcome(
            [TextDelta("I will"), *called("c1", "t", A)],
            said(TextBlock("I will"), counters=NOTHING),
            "StreamBroken: the answer ended without its final event",
        ),
    ),
    "half an emoji in a delta": (
        [
            b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
            b'data: {"choices":[{"delta":{"content":"\\ude00b"},"finish_reason":"stop"}]}\n\n',
        ],
        Outcome([TextDelta("a\ufffd"), TextDelta("\ufffdb")], said(TextBlock("a\ufffd\ufffdb"), counters=NOTHING)),
    ),
    "a filter that let nothing through": (
        gpt.reply(ends="content_filter"),
        Outcome([], said(), "ContentRefused: the content filter of the service ended the answer"),
    ),
    "a filter that ended an answer": (
        gpt.reply(gpt.text("Well"), ends="content_filter"),
        Outcome(
            [TextDelta("Well")],
            said(TextBlock("Well")),
            "ContentRefused: the content filter of the service ended the answer",
        ),
    ),
    "a refusal in words": (
        gpt.reply([gpt.chunk(refusal="I "), gpt.chunk(refusal="cannot")]),
        Outcome(
            [TextDelta("I "), TextDelta("cannot")],
            said(TextBlock("I cannot")),
            "ContentRefused: the model refused to answer this",
        ),
    ),
    "a service that ran out of machines": (
        gpt.reply(gpt.text("a"), ends="insufficient_system_resource"),
        Outcome([TextDelta("a")], said(TextBlock("a")), "Overloaded: the service ended the answer: it is overloaded"),
    ),
    "an end that is an error": (
        gpt.reply(gpt.text("a"), ends="error"),
        Outcome([TextDelta("a")], said(TextBlock("a")), "ServiceFailed: the service ended the answer with an error"),
    ),
    "an error in the middle": (
        [*gpt.text("a", "b"), gpt.event(error={"message": "No", "code": "overloaded_error"}), *gpt.text("never")],
        Outcome(
            [TextDelta("a"), TextDelta("b")],
            said(TextBlock("ab"), counters=NOTHING),
            "Overloaded: overloaded_error: No",
        ),
    ),
    "an error that is a text": (
        [*gpt.text("a"), gpt.event(error="model runner has stopped")],
        Outcome([TextDelta("a")], said(TextBlock("a"), counters=NOTHING), "ServiceFailed: model runner has stopped"),
    ),
    "an error beside nothing": (
        [gpt.event(object="error", message="too long", type="BadRequestError", code=400)],
        Outcome([], said(counters=NOTHING), "BadRequest: 400: too long"),
    ),
    "something else altogether": (
        [b"data: []\n\n"],
        Outcome(
            [],
            said(counters=NOTHING),
            "StreamBroken: the service sent an event that cannot be read: it must be an object, not a list",
        ),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_oddity_is_understood_in_pieces_whole_and_byte_by_byte(name: str) -> None:
    pieces, expected = ODD[name]
    stream = b"".join(pieces)
    assert outcome(pieces) == expected
    assert outcome([stream]) == expected
    assert outcome(bytes([byte]) for byte in stream) == expected


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("stop", "end_turn"),
        ("length", "length"),
        ("model_length", "length"),
        ("tool_calls", "tool_use"),
        ("function_call", "tool_use"),
        ("something_new", "end_turn"),
    ],
)
def test_every_finish_reason_has_its_meaning(reason: str, stop: Stop) -> None:
    assert outcome(gpt.reply(gpt.text("Hi"), ends=reason)) == Outcome(
        [TextDelta("Hi")], said(TextBlock("Hi"), stop=stop)
    )


@pytest.mark.parametrize(
    ("told", "counters"),
    [
        ({}, Counters(100, 20, 0, 0, 0.0)),
        ({"prompt_tokens": None, "completion_tokens": None}, Counters(0, 0, 0, 0, 0.0)),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, Counters(100, 20, 0, 0, 0.0)),
        ({"prompt_tokens_details": {"cached_tokens": None}}, Counters(100, 20, 0, 0, 0.0)),
        ({"prompt_tokens_details": {"cached_tokens": 60}}, Counters(40, 20, 60, 0, 0.0)),
        ({"prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40}, Counters(40, 20, 60, 0, 0.0)),
        ({"cached_tokens": 60}, Counters(40, 20, 60, 0, 0.0)),
        ({"prompt_tokens_details": {"cached_tokens": 500}}, Counters(0, 20, 500, 0, 0.0)),
        ({"prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 7}}, Counters(88, 20, 5, 7, 0.0)),
        ({"completion_tokens_details": {"reasoning_tokens": 15}}, Counters(100, 20, 0, 0, 0.0, reasoning=15)),
        (
            {"completion_tokens_details": {"reasoning_tokens": 15}, "total_tokens": 135},
            Counters(100, 35, 0, 0, 0.0, reasoning=15),
        ),
    ],
)
def test_tokens_are_counted_once_in_every_spelling(told: dict[str, Any], counters: Counters) -> None:
    pieces = [gpt.usage(completion_tokens=3), *gpt.text("Hi"), gpt.chunk("stop"), gpt.usage(**told), gpt.usage(**told)]
    assert outcome(pieces).reply.counters == counters


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ({"message": "m", "code": "rate_limit_exceeded"}, RateLimited, "rate_limit_exceeded"),
        ({"message": "m", "code": 429}, RateLimited, "429"),
        ({"message": "m", "code": None, "type": "server_error"}, ServiceFailed, "server_error"),
        ("m", ServiceFailed, ""),
    ],
)
def test_an_error_inside_a_stream_has_its_type(error: Any, kind: type[ProviderError], code: str) -> None:
    with pytest.raises(kind) as caught:
        ChatDecoder(CallIds()).feed(gpt.event(error=error))
    assert (caught.value.code, caught.value.provider, caught.value.status) == (code, "", 0)


@pytest.mark.parametrize(
    ("reason", "kind"), [("content_filter", ContentRefused), ("insufficient_system_resource", Overloaded)]
)
def test_a_forced_end_has_its_code(reason: str, kind: type[ProviderError]) -> None:
    decoder = ChatDecoder(CallIds())
    decoder.feed(gpt.chunk(reason))
    with pytest.raises(kind) as caught:
        decoder.finish()
    assert caught.value.code == reason


@pytest.mark.parametrize("payload", [b"{", b"7", b"[DONE", b'{"choices":7}', b'{"choices":[{"delta":{"content":7}}]}'])
def test_an_event_that_cannot_be_read_breaks_the_stream(payload: bytes) -> None:
    with pytest.raises(StreamBroken, match="cannot be read"):
        ChatDecoder(CallIds()).feed(b"data: " + payload + b"\n\n")


def test_the_received_part_is_available_at_any_moment_without_a_partial_call() -> None:
    decoder = ChatDecoder(CallIds())
    contents: list[tuple[TranscriptBlock, ...]] = []
    for piece in gpt.reply(gpt.thinking("Hm"), gpt.text("A", "B"), gpt.tool(0, "c1", "t", "{}"), ends="tool_calls"):
        decoder.feed(piece)
        content = decoder.reply().content
        if not contents or contents[-1] != content:
            contents.append(content)
    thought, text = ThinkingBlock("Hm"), TextBlock("AB")
    assert contents == [
        (),
        (thought,),
        (thought, TextBlock("A")),
        (thought, text),
        (thought, text, CallBlock("c1", "t", {})),
    ]


@pytest.mark.parametrize(
    "piece",
    [
        b": OPENROUTER PROCESSING\n\n",
        gpt.event(choices=[]),
        gpt.chunk(role="assistant", content=""),
        gpt.chunk(),
        gpt.DONE,
    ],
)
def test_empty_chunks_are_not_progress(piece: bytes) -> None:
    decoder = ChatDecoder(CallIds())
    decoder.feed(piece * 3)
    assert decoder.progress == 0
    decoder.feed(gpt.chunk(content="a") + piece)
    assert decoder.progress == 1


@pytest.mark.parametrize(
    "piece",
    [
        gpt.chunk(content="a"),
        gpt.chunk(reasoning="a"),
        gpt.chunk(reasoning_details=[{"data": "a"}]),
        gpt.call(0, "c1"),
        gpt.chunk("stop"),
        gpt.usage(),
    ],
)
def test_chunks_with_content_are_progress(piece: bytes) -> None:
    decoder = ChatDecoder(CallIds())
    decoder.feed(piece)
    assert decoder.progress == 1


def test_a_word_that_may_be_a_tag_is_progress_while_it_is_held() -> None:
    decoder = ChatDecoder(CallIds(), think_tags=True)
    assert decoder.feed(gpt.chunk(content="<thi")) == []
    assert decoder.progress == 1


# Thoughts in tags.


@pytest.mark.parametrize(
    ("written", "thought", "text"),
    [
        ("<think>a</think>b", "a", "b"),
        ("\n <think>\na\n</think>\n\nb\n", "\na\n", "b\n"),
        ("<think></think>b", "", "b"),
        ("<think>a", "a", ""),
        ("<think>a</thin", "a</thin", ""),
        ("<think>a < b </ c</think>d", "a < b </ c", "d"),
        ("<think>a</think>\n\n", "a", ""),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("a<think>b</think>", "", "a<think>b</think>"),
        ("<thinker>", "", "<thinker>"),
        ("<thi", "", "<thi"),
        (" \n", "", " \n"),
        ("", "", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_thought_in_tags_is_a_thought_at_the_beginning_only(written: str, thought: str, text: str, size: int) -> None:
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    content = outcome(gpt.reply(gpt.text(*pieces)), think_tags=True).reply.content
    assert "".join(block.text for block in content if isinstance(block, ThinkingBlock)) == thought
    assert "".join(block.text for block in content if isinstance(block, TextBlock)) == text
    assert len(content) == bool(thought) + bool(text)


def test_a_call_ends_what_may_have_been_a_tag() -> None:
    stream = gpt.reply(gpt.text("<th"), gpt.tool(0, "c1", "t", "{}"), ends="tool_calls")
    assert outcome(stream, think_tags=True) == Outcome(
        [TextDelta("<th"), *called("c1", "t", "{}"), ToolUseEnd("c1")],
        said(TextBlock("<th"), CallBlock("c1", "t", {}), stop="tool_use"),
    )
