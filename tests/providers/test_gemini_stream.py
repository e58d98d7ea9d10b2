"""Gemini streamGenerateContent: streams become the same events however they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from decoding import Outcome, cut, decoded, fed, said
from hypothesis import given, settings
from hypothesis import strategies as st

from zot.errors import ContentRefused, ProviderError, ServiceFailed
from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import CallBlock, Counters, Stop, TextBlock, ThinkingBlock
from zot.providers.base import StreamEvent
from zot.providers.gemini import GeminiDecoder
from zot.providers.sse import CallIds

STREAMS = Path(__file__).parent / "streams" / "gemini"
HALF = Counters(100, 0, 0, 0, 0.0)
NONE = Counters(0, 0, 0, 0, 0.0)
DEEP = '{"a":' + "[" * 100 + "]" * 100 + "}"


def outcome(pieces: Iterable[bytes], calls: CallIds | None = None) -> Outcome:
    return decoded(GeminiDecoder(calls or CallIds()), pieces)


def called(call_id: str, name: str, args: str = "") -> list[StreamEvent]:
    written: list[StreamEvent] = [ToolUseArgs(call_id, args)] if args else []
    return [ToolUseStart(call_id, name), *written, ToolUseEnd(call_id)]


NOT_READ = "Malformed function call: call:default_api:bash{command:<ctrl46>ls}"
NOT_PYTHON = "Malformed function call: print(default_api.edit(path='a', edits=[)"
NOT_OFFERED = "Unexpected tool call: google_search(query='x')"

GOLDEN: dict[str, Outcome] = {
    "text": Outcome([TextDelta("Hel"), TextDelta("lo"), TextDelta(" wörld 🙂")], said(TextBlock("Hello wörld 🙂"))),
    "text_then_empty_end": Outcome([TextDelta("Hello")], said(TextBlock("Hello"))),
    "end_without_content": Outcome([TextDelta("Hello")], said(TextBlock("Hello"))),
    "indented_json_and_comments": Outcome([TextDelta("Hi")], said(TextBlock("Hi"))),
    "thinking": Outcome(
        [ThinkingDelta("**Let me**"), ThinkingDelta(" see"), TextDelta("Yes")],
        said(ThinkingBlock("**Let me** see"), TextBlock("Yes"), counters=Counters(100, 55, 0, 0, 0.0, reasoning=35)),
    ),
    "thinking_signed_on_text": Outcome(
        [ThinkingDelta("Hm"), TextDelta("Y"), TextDelta("es")],
        said(ThinkingBlock("Hm"), TextBlock("Yes"), ThinkingBlock(signature="c2VhbA==")),
    ),
    "text_part_with_signature": Outcome(
        [TextDelta("Y"), TextDelta("es"), TextDelta(" indeed")],
        said(TextBlock("Yes"), ThinkingBlock(signature="c2VhbA=="), TextBlock(" indeed")),
    ),
    "thought_part_with_signature": Outcome(
        [ThinkingDelta("Hm"), TextDelta("Yes")], said(ThinkingBlock("Hm", "c2VhbA=="), TextBlock("Yes"))
    ),
    "call": Outcome(
        [TextDelta("I will look."), *called("fc-8f2b", "read", '{"path":"a.txt","n":1.0}')],
        said(
            TextBlock("I will look."),
            CallBlock("fc-8f2b", "read", {"path": "a.txt", "n": 1.0}, signature="c2VhbA=="),
            stop="tool_use",
        ),
    ),
    "calls_side_by_side": Outcome(
        [
            *called("call_1", "read", '{"path":"a"}'),
            *called("call_2", "read", '{"path":"b"}'),
            *called("call_3", "list"),
        ],
        said(
            CallBlock("call_1", "read", {"path": "a"}, signature="c2VhbA=="),
            CallBlock("call_2", "read", {"path": "b"}),
            CallBlock("call_3", "list", {}),
            stop="tool_use",
        ),
    ),
    "call_ids_used_twice": Outcome(
        [event for id_ in ("x", "call_2", "functions.t:0", "call_4") for event in called(id_, "t", "{}")],
        said(*(CallBlock(id_, "t", {}) for id_ in ("x", "call_2", "functions.t:0", "call_4")), stop="tool_use"),
    ),
    "arguments_that_are_no_object": Outcome(
        [*called("x", "bash", '["ls"]'), *called("y", "bash", '"ls"'), *called("z", "bash")],
        said(
            CallBlock("x", "bash", None, malformed='["ls"]'),
            CallBlock("y", "bash", None, malformed='"ls"'),
            CallBlock("z", "bash", {}),
            stop="tool_use",
        ),
    ),
    "arguments_too_deep": Outcome(
        called("x", "bash", DEEP), said(CallBlock("x", "bash", None, malformed=DEEP), stop="tool_use")
    ),
    "call_without_a_name": Outcome(called("x", "unknown", "{}"), said(CallBlock("x", "unknown", {}), stop="tool_use")),
    "malformed_call": Outcome(
        [TextDelta("I will"), *called("call_1", "bash", NOT_READ)],
        said(TextBlock("I will"), CallBlock("call_1", "bash", None, malformed=NOT_READ), stop="tool_use"),
    ),
    "malformed_call_in_python": Outcome(
        called("call_1", "edit", NOT_PYTHON),
        said(CallBlock("call_1", "edit", None, malformed=NOT_PYTHON), stop="tool_use"),
    ),
    "malformed_call_without_a_word": Outcome(
        called("call_1", "unknown", "MALFORMED_FUNCTION_CALL"),
        said(CallBlock("call_1", "unknown", None, malformed="MALFORMED_FUNCTION_CALL"), stop="tool_use"),
    ),
    "unexpected_call": Outcome(
        called("call_1", "google_search", NOT_OFFERED),
        said(CallBlock("call_1", "google_search", None, malformed=NOT_OFFERED), stop="tool_use"),
    ),
    "refused_in_the_middle": Outcome(
        [TextDelta("I can")],
        said(TextBlock("I can")),
        "ContentRefused: the service ended the answer (SAFETY): Blocked.",
    ),
    "prompt_blocked": Outcome(
        [], said(counters=HALF), "ContentRefused: the service refused the prompt (PROHIBITED_CONTENT)"
    ),
    "prompt_judged_but_not_blocked": Outcome([TextDelta("Hello")], said(TextBlock("Hello"))),
    "service_gave_up": Outcome(
        [TextDelta("Hel")], said(TextBlock("Hel")), "ServiceFailed: the service gave up on the answer (OTHER)"
    ),
    "error_in_the_middle": Outcome(
        [TextDelta("a"), TextDelta("b")],
        said(TextBlock("ab"), counters=HALF),
        "Overloaded: UNAVAILABLE: The model is overloaded.",
    ),
    "error_without_a_word": Outcome([], said(counters=NONE), "ServiceFailed: 500: "),
    "no_end": Outcome(
        [TextDelta("half an")],
        said(TextBlock("half an"), counters=HALF),
        "StreamBroken: the answer ended without its final event",
    ),
    "nothing": Outcome([], said(counters=NONE), "StreamBroken: the answer ended without its final event"),
    "stop_said_with_every_chunk": Outcome([TextDelta("Hel"), TextDelta("lo")], said(TextBlock("Hello"))),
    "too_long": Outcome([TextDelta("and so on")], said(TextBlock("and so on"), stop="length")),
    "usage_with_everything": Outcome(
        [ThinkingDelta("Hm"), TextDelta("Hi")],
        said(ThinkingBlock("Hm"), TextBlock("Hi"), counters=Counters(107, 39, 900, 0, 0.0, reasoning=30)),
    ),
    "usage_never_told": Outcome([TextDelta("Hi")], said(TextBlock("Hi"), counters=NONE)),
    "novelties": Outcome([TextDelta("Hi")], said(TextBlock("Hi"))),
    "half_an_emoji": Outcome(
        [TextDelta("a\ufffd"), TextDelta("\ufffdb"), *called("x", "t", '{"a":"\\ufffd"}')],
        said(TextBlock("a\ufffd\ufffdb"), CallBlock("x", "t", {"a": "\ufffd"}), stop="tool_use"),
    ),
    "not_gemini": Outcome(
        [],
        said(counters=NONE),
        "StreamBroken: the service sent an event that cannot be read: it must be an object, not a list",
    ),
}


def stream(name: str) -> bytes:
    return (STREAMS / f"{name}.sse").read_bytes()


def test_every_golden_stream_has_its_meaning_written_down() -> None:
    assert {path.stem for path in STREAMS.iterdir()} == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_stream_is_understood_whole_and_byte_by_byte(name: str) -> None:
    for way in fed(stream(name)):
        assert outcome(way) == GOLDEN[name]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(GOLDEN)), st.lists(st.integers(0, 5000), max_size=6))
def test_a_stream_is_understood_however_it_is_cut(name: str, places: list[int]) -> None:
    assert outcome(cut(stream(name), places)) == GOLDEN[name]


def ending(reason: str) -> bytes:
    chunk = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": reason}]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "length"),
        ("FINISH_REASON_UNSPECIFIED", "end_turn"),
        ("SOMETHING_NEW", "end_turn"),
    ],
)
def test_every_finish_reason_has_its_meaning(reason: str, stop: Stop) -> None:
    assert outcome([ending(reason)]) == Outcome([TextDelta("Hi")], said(TextBlock("Hi"), stop=stop, counters=NONE))


REFUSED = ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")
FAILED = ("OTHER", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS")


@pytest.mark.parametrize(
    ("reason", "kind"), [*((name, ContentRefused) for name in REFUSED), *((name, ServiceFailed) for name in FAILED)]
)
def test_an_answer_that_was_cut_off_is_an_error(reason: str, kind: type[ProviderError]) -> None:
    decoder = GeminiDecoder(CallIds())
    assert decoder.feed(ending(reason)) == [TextDelta("Hi")]
    with pytest.raises(kind) as caught:
        decoder.finish()
    assert caught.value.code == reason


def test_a_call_is_whole_the_moment_it_arrives() -> None:
    decoder = GeminiDecoder(CallIds())
    decoder.feed(stream("call").partition(b"\r\n\r\ndata: ")[0] + b"\r\n\r\n")
    assert decoder.reply().content == (TextBlock("I will look."),)
    decoder.feed(stream("call").split(b"\r\n\r\n")[1] + b"\r\n\r\n")
    assert [type(block) for block in decoder.reply().content] == [TextBlock, CallBlock]


def test_invalid_utf_8_costs_neither_the_call_nor_the_reply() -> None:
    args = b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"t","args":{"a":"\xff"}}}]}}]}'
    said = b'{"candidates":[{"content":{"parts":[{"text":"\xff"}]},"finishReason":"STOP"}]}'
    found = outcome([b"data: " + args + b"\n\ndata: " + said + b"\n\n"])
    assert found.reply.content == (CallBlock("call_1", "t", {"a": "\ufffd"}), TextBlock("\ufffd"))
    assert found.error is None


def test_a_second_candidate_is_ignored() -> None:
    candidates = [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"} for text in ("one", "two")]
    data = f"data: {json.dumps({'candidates': candidates})}\n\n".encode()
    assert outcome([data]).events == [TextDelta("one")]


def test_comments_and_empty_chunks_are_not_progress() -> None:
    decoder = GeminiDecoder(CallIds())
    decoder.feed(b": ping\n\n: ping\n\ndata: {}\n\n" + b'data: {"type":"ping","candidates":7}\n\n')
    assert decoder.progress == 0
    decoder.feed(ending("STOP"))
    assert decoder.progress == 1


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(st.sampled_from('{}[]":,\\nadtpcefr0 '), max_size=120).map(str.encode))
def test_no_input_breaks_the_decoder(data: bytes) -> None:
    outcome([b"data: " + data + b"\n\n"])
    outcome([b'data: {"candidates":[{"content":{"parts":[' + data + b"]}}]}\n\n"])
