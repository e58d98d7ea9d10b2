"""OpenAI Responses: streams become the same events however they arrive, with parts missing, doubled or late."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from decoding import Outcome, cut, decoded, fed, said
from hypothesis import given, settings
from hypothesis import strategies as st

import gpt
from zot.errors import (
    BadRequest,
    ContentRefused,
    ContextTooLong,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
    StreamBroken,
)
from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import CallBlock, Counters, TextBlock, ThinkingBlock, TranscriptBlock
from zot.providers.base import StreamEvent
from zot.providers.openai_responses import ResponsesDecoder
from zot.providers.sse import CallIds

STREAMS = Path(__file__).parent / "streams" / "responses"
NONE = Counters(0, 0, 0, 0, 0.0)


def outcome(pieces: Iterable[bytes]) -> Outcome:
    return decoded(ResponsesDecoder(CallIds()), pieces)


def texts(*pieces: str) -> list[StreamEvent]:
    return [TextDelta(piece) for piece in pieces]


def thoughts(*pieces: str) -> list[StreamEvent]:
    return [ThinkingDelta(piece) for piece in pieces]


def called(call_id: str, name: str, *pieces: str) -> list[StreamEvent]:
    return [ToolUseStart(call_id, name), *(ToolUseArgs(call_id, piece) for piece in pieces), ToolUseEnd(call_id)]


def nested(depth: int) -> str:
    """Return an object with this many levels, itself included."""
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


SEALED = "gAAAAABor0Az9Qk2Y1pVw0c3NlYWxlZA=="
THOUGHT_ID = "rs_68af40310b8c8193bd7a4c0c55e3ad3c0d5"
SORRY = ("I'm sorry,", " I can't", " help with that.")

#: Streams as services send them, in files.
RECORDED: dict[str, Outcome] = {
    "text": Outcome(
        texts("Hel", "lo", " — ", "né", " 😀", "\u2028", "!"),
        said(TextBlock("Hello — né 😀\u2028!"), counters=Counters(76, 9, 1024, 0, 0.0)),
    ),
    "thinking_and_calls": Outcome(
        [
            *thoughts("**Looking", " it up**\n\nI need", " both files.", "\n\n", "**Deciding**"),
            *texts("Let me", " see."),
            *called("call_GqZ1aWBn4v", "read", '{"', "path", '":"', "a.txt", '"}'),
            *called("call_7YkR0dPmUe", "read", '{"path":"b.txt"}'),
        ],
        said(
            ThinkingBlock("**Looking it up**\n\nI need both files.\n\n**Deciding**", SEALED, id=THOUGHT_ID),
            TextBlock("Let me see."),
            CallBlock("call_GqZ1aWBn4v", "read", {"path": "a.txt"}),
            CallBlock("call_7YkR0dPmUe", "read", {"path": "b.txt"}),
            stop="tool_use",
            counters=Counters(252, 180, 2048, 0, 0.0, reasoning=128),
        ),
    ),
    "thinking_without_words": Outcome(
        called("call_GqZ1aWBn4v", "bash", '{"command":"ls"}'),
        said(
            ThinkingBlock("", SEALED, id=THOUGHT_ID),
            CallBlock("call_GqZ1aWBn4v", "bash", {"command": "ls"}),
            stop="tool_use",
            counters=Counters(75, 96, 0, 0, 0.0, reasoning=64),
        ),
    ),
    "refusal": Outcome(
        texts(*SORRY),
        said(TextBlock("".join(SORRY)), counters=Counters(40, 12, 0, 0, 0.0)),
        "ContentRefused: the model refused to answer this",
    ),
    "length_in_a_call": Outcome(
        [*texts("I will", " write it."),
         *called("call_Half", "write", '{"path":"a.txt","content":"one', " two")[:-1]],
        said(TextBlock("I will write it."), stop="length", counters=Counters(60, 64, 0, 0, 0.0)),
    ),
    "content_filter": Outcome(
        texts("Once upon"),
        said(TextBlock("Once upon"), stop="length", counters=Counters(60, 3, 0, 0, 0.0)),
        "ContentRefused: the model refused to answer this",
    ),
    "failed": Outcome(
        texts("half an"),
        said(TextBlock("half an"), counters=NONE),
        "ServiceFailed: server_error: An error occurred while processing your request.",
    ),
    "overloaded": Outcome(
        [],
        said(counters=NONE),
        "Overloaded: server_is_overloaded: Our servers are currently overloaded. Please try again later.",
    ),
    "rate_limited": Outcome(
        [],
        said(counters=NONE),
        "RateLimited: rate_limit_exceeded: Rate limit reached for gpt-5 on tokens per min (TPM).",
    ),
    "what_we_did_not_ask_for": Outcome(
        [*thoughts("Searching"), *texts("Found", " it.")],
        said(
            ThinkingBlock("Searching", SEALED, id=THOUGHT_ID),
            TextBlock("Found it."),
            counters=Counters(900, 40, 0, 0, 0.0, reasoning=16),
        ),
    ),
    "open_weights": Outcome(
        [*thoughts("We should", " greet."), *texts("Hi!")],
        said(
            ThinkingBlock("We should greet.", id="rs_1"),
            TextBlock("Hi!"),
            counters=Counters(30, 12, 0, 0, 0.0, reasoning=5),
        ),
    ),
    "nothing_but_the_end": Outcome(
        [*thoughts("Hm."), *texts("All", "at once"), *called("c1", "list", "{}")],
        said(
            ThinkingBlock("Hm.", "c2VhbA==", id="rs_9"),
            TextBlock("All"),
            TextBlock("at once"),
            CallBlock("c1", "list", {}),
            stop="tool_use",
            counters=Counters(10, 5, 0, 0, 0.0),
        ),
    ),
}  # fmt: skip


def malformed(text: str) -> tuple[list[bytes], Outcome]:
    call = CallBlock("c1", "bash", None, malformed=text)
    return gpt.reply(gpt.tool("c1", "bash", text)), Outcome(called("c1", "bash", text), said(call, stop="tool_use"))


TEXT = gpt.text("Hel", "lo")(0)
#: The events of TEXT by their names.
ADDED, PART_ADDED, FIRST, SECOND, TEXT_DONE, PART_DONE, ITEM_DONE = TEXT
CALL = gpt.tool("c1", "t", '{"a":', "1}")(0)
HELLO = Outcome(texts("Hel", "lo"), said(TextBlock("Hello")))
CALLED = Outcome(called("c1", "t", '{"a":', "1}"), said(CallBlock("c1", "t", {"a": 1}), stop="tool_use"))
CALLED_AT_ONCE = Outcome(called("c1", "t", '{"a":1}'), CALLED.reply)
END = gpt.stop("end_turn")

#: What a server may leave out, send twice, or send late, and other oddities.
ODD: dict[str, tuple[list[bytes], Outcome]] = {
    "empty deltas": (gpt.reply(gpt.text("", "a", "")), Outcome(texts("a"), said(TextBlock("a")))),
    "nothing said": (gpt.reply(), Outcome([], said())),
    "a message of nothing": (gpt.reply(gpt.text()), Outcome([], said())),
    "every event twice, but the deltas": (
        [gpt.start(), ADDED, ADDED, PART_ADDED, FIRST, SECOND, TEXT_DONE, TEXT_DONE, ITEM_DONE, ITEM_DONE, END, END],
        HELLO,
    ),
    "deltas without an announcement": ([gpt.start(), FIRST, SECOND, TEXT_DONE, END], HELLO),
    "deltas without anything else": ([FIRST, SECOND, END], HELLO),
    "the announcement after the deltas": ([gpt.start(), FIRST, ADDED, SECOND, ITEM_DONE, END], HELLO),
    "the whole before its deltas": (
        [gpt.start(), ADDED, FIRST, TEXT_DONE, SECOND, ITEM_DONE, SECOND, END], HELLO,
    ),
    "only the whole": ([gpt.start(), TEXT_DONE, END], Outcome(texts("Hello"), HELLO.reply)),
    "only the item": ([gpt.start(), ITEM_DONE, END], Outcome(texts("Hello"), HELLO.reply)),
    "a delta that got lost on the way": ([gpt.start(), ADDED, FIRST, ITEM_DONE, END], HELLO),
    "a whole that is another": (
        [gpt.start(), ADDED, FIRST, gpt.done(0, **gpt.message(0, gpt.output_text("Goodbye"))), END],
        Outcome(texts("Hel"), said(TextBlock("Goodbye"))),
    ),
    "a whole that is empty": (
        [gpt.start(), ADDED, FIRST, gpt.done(0, **gpt.message(0, gpt.output_text(""))), END],
        Outcome(texts("Hel"), said(TextBlock("Hel"))),
    ),
    "an argument that got lost on the way": (
        [gpt.start(), CALL[0], CALL[2], *CALL[3:], END],
        Outcome(called("c1", "t", "1}"), CALLED.reply),
    ),
    "a call that is told when it begins": (
        [gpt.start(), gpt.added(0, **gpt.call("c1", "t", '{"a":1}')), END], CALLED_AT_ONCE,
    ),
    "an item that is told again at the end": (
        [gpt.start(), *TEXT, gpt.event("response.completed", response=gpt.response(
            "completed", usage=gpt.usage(100, 20), output=[gpt.message(0, gpt.output_text("Hello"))]))],
        HELLO,
    ),
    "a call without an end of its own": ([gpt.start(), *CALL[:-1], END], CALLED),
    "a call without deltas": ([gpt.start(), CALL[0], CALL[-1], END], CALLED_AT_ONCE),
    "a call that is told when it is done": ([gpt.start(), CALL[-1], END], CALLED_AT_ONCE),
    "a call whose name comes last": ([gpt.start(), *CALL[1:], END], CALLED_AT_ONCE),
    "a call whose name never comes": ([gpt.start(), *CALL[1:-1], END], Outcome([], said())),
    "a call that ends twice": ([gpt.start(), *CALL, CALL[-2], CALL[-1], END], CALLED),
    "a call whose arguments are an object": (
        [gpt.start(), gpt.done(0, **{**gpt.call("c1", "t", ""), "arguments": {"a": 1}}), END],
        Outcome(called("c1", "t"), CALLED.reply),
    ),
    "a call without arguments": (
        gpt.reply(gpt.tool("c1", "t")), Outcome(called("c1", "t"), said(CallBlock("c1", "t", {}), stop="tool_use")),
    ),
    "a call that was cut off before its arguments": (
        [gpt.start(), CALL[0], gpt.done(0, **gpt.call("c1", "t", "", "incomplete")), gpt.stop("max_tokens")],
        Outcome([ToolUseStart("c1", "t")], said(stop="length")),
    ),
    "a call that is cut off in a reply that claims to be whole": (
        [gpt.start(), CALL[0], gpt.done(0, **gpt.call("c1", "t", "{}", "incomplete")), END],
        Outcome([ToolUseStart("c1", "t")], said()),
    ),
    "arguments that are not JSON": malformed('{"command": "ls'),
    "arguments that are no object": malformed("[1]"),
    "arguments nested beyond reason": malformed('{"a":' + "[" * 5000),
    "arguments nested too deep": malformed(nested(101)),
    "arguments nested as deep as they may be": (
        gpt.reply(gpt.tool("c1", "t", nested(100))),
        Outcome(called("c1", "t", nested(100)), said(CallBlock("c1", "t", json.loads(nested(100))), stop="tool_use")),
    ),
    "calls without an id, with that of another, and with a strange one": (
        gpt.reply(gpt.tool("", "t"), gpt.tool("c1", "t"), gpt.tool("c1", "t"), gpt.tool("functions.t:0é", "t")),
        Outcome(
            [event for id_ in ("call_1", "c1", "call_3", "functions.t:0é") for event in called(id_, "t")],
            said(
                *(CallBlock(call_id, "t", {}) for call_id in ("call_1", "c1", "call_3", "functions.t:0é")),
                stop="tool_use",
            ),
        ),
    ),
    "items that do not come in order": (
        [gpt.start(), *gpt.text("b")(1), *gpt.text("a")(0), END],
        Outcome(texts("b", "a"), said(TextBlock("a"), TextBlock("b"))),
    ),
    "text in two parts": (
        [gpt.start(), ADDED, gpt.delta(0, "output_text", "a", content_index=0),
         gpt.delta(0, "output_text", "b", content_index=1), END],
        Outcome(texts("a", "b"), said(TextBlock("a"), TextBlock("b"))),
    ),
    "a refusal behind an answer": (
        gpt.reply(gpt.text("Yes, but "), gpt.refusal("not", " that.")),
        Outcome(texts("Yes, but ", "not", " that."), said(TextBlock("Yes, but "), TextBlock("not that."))),
    ),
    "a refusal before a call": (
        gpt.reply(gpt.refusal("No."), gpt.tool("c1", "t")),
        Outcome([*texts("No."), *called("c1", "t")], said(TextBlock("No."), CallBlock("c1", "t", {}), stop="tool_use")),
    ),
    "a refusal after a thought": (
        gpt.reply(gpt.thinking("Hm", signature="s"), gpt.refusal("No.")),
        Outcome(
            [*thoughts("Hm"), *texts("No.")],
            said(ThinkingBlock("Hm", "s", id="rs_s"), TextBlock("No.")),
            "ContentRefused: the model refused to answer this",
        ),
    ),
    "a refusal that is told when it is done": (
        [gpt.start(), gpt.refusal("No.")(0)[-1], END],
        Outcome(texts("No."), said(TextBlock("No.")), "ContentRefused: the model refused to answer this"),
    ),
    "a thought that is told when it is done": (
        [gpt.start(), gpt.thinking("Hm", signature="s")(0)[-1], END],
        Outcome(thoughts("Hm"), said(ThinkingBlock("Hm", "s", id="rs_s"))),
    ),
    "a thought that is not done": (
        [gpt.start(), *gpt.thinking("Hm", signature="s")(0)[:-1], END],
        Outcome(thoughts("Hm"), said(ThinkingBlock("Hm"))),
    ),
    "a summary and the thought itself": (
        [gpt.start(), gpt.delta(0, "reasoning_text", "long", content_index=0),
         gpt.delta(0, "reasoning_summary_text", "short", summary_index=0), END],
        Outcome(thoughts("long", "\n\n", "short"), said(ThinkingBlock("short\n\nlong"))),
    ),
    "half an emoji in a delta": (
        [b'data: {"type":"response.output_text.delta","output_index":0,"delta":"a\\ud83d"}\n\n',
         b'data: {"type":"response.output_text.delta","output_index":0,"delta":"\\ude00b"}\n\n', END],
        Outcome(texts("a\ufffd", "\ufffdb"), said(TextBlock("a\ufffd\ufffdb"))),
    ),
    "half an emoji in an item": (
        [b'data: {"type":"response.output_item.done","output_index":0,"item":'
         b'{"type":"message","content":[{"type":"output_text","text":"a\\ud83d"}]}}\n\n', END],
        Outcome(texts("a\ufffd"), said(TextBlock("a\ufffd"))),
    ),
    "usage told twice, with a cache that was written to": (
        [gpt.event("response.created", response=gpt.response("in_progress", usage=gpt.usage(1, 1))), *TEXT,
         gpt.event("response.completed", response=gpt.response(
             "completed", usage=gpt.usage(1203, 9, cached=1000, written=200, reasoning=4)))],
        Outcome(HELLO.events, said(TextBlock("Hello"), counters=Counters(3, 9, 1000, 200, 0.0, reasoning=4))),
    ),
    "usage without details": (
        [*TEXT, gpt.event("response.completed", response={"usage": {"input_tokens": 5, "output_tokens": None}})],
        Outcome(HELLO.events, said(TextBlock("Hello"), counters=Counters(5, 0, 0, 0, 0.0))),
    ),
    "usage with a cache larger than the input": (
        [*TEXT, gpt.event("response.completed", response={"usage": gpt.usage(5, 1, cached=9)})],
        Outcome(HELLO.events, said(TextBlock("Hello"), counters=Counters(0, 1, 9, 0, 0.0))),
    ),
    "no usage": (
        [*TEXT, gpt.event("response.completed", response={})],
        Outcome(HELLO.events, said(TextBlock("Hello"), counters=NONE)),
    ),
    "incomplete without a reason": (
        [*TEXT, gpt.event("response.incomplete", response={})],
        Outcome(HELLO.events, said(TextBlock("Hello"), stop="length", counters=NONE)),
    ),
    "failed without a reason": (
        [gpt.start(), gpt.event("response.failed", response={})],
        Outcome([], said(counters=NONE), "ServiceFailed: server_error: the service gave no reason"),
    ),
    "an error in the middle": (
        [gpt.start(), *TEXT[:4], gpt.event("error", code="overloaded_error", message="Busy"), ITEM_DONE],
        Outcome(HELLO.events, said(TextBlock("Hello"), counters=NONE), "Overloaded: overloaded_error: Busy"),
    ),
    "no end": (
        [gpt.start(), *TEXT],
        Outcome(
            HELLO.events,
            said(TextBlock("Hello"), counters=NONE),
            "StreamBroken: the answer ended without its final event",
        ),
    ),
    "an end in the middle of a call": (
        [gpt.start(), *CALL[:-1]],
        Outcome(
            CALLED.events[:-1], said(counters=NONE), "StreamBroken: the answer ended without its final event"
        ),
    ),
    "a thought where a message had begun": (
        [gpt.start(), *TEXT, gpt.delta(0, "reasoning_text", "x", content_index=0)],
        Outcome(
            HELLO.events,
            said(TextBlock("Hello"), counters=NONE),
            "StreamBroken: the service mixed up the items of its answer",
        ),
    ),
    "not a stream of this API at all": (
        [b'data: {"choices":[]}\n\n', b"data: []\n\n"],
        Outcome(
            [],
            said(counters=NONE),
            "StreamBroken: the service sent an event that cannot be read: it must be an object, not a list",
        ),
    ),
}  # fmt: skip

GOLDEN: dict[str, tuple[list[bytes], Outcome]] = {
    **{
        name: ([event + b"\n\n" for event in (STREAMS / f"{name}.sse").read_bytes().split(b"\n\n")[:-1]], expected)
        for name, expected in RECORDED.items()
    },
    **ODD,
}


def test_every_recorded_stream_is_understood() -> None:
    assert {path.stem for path in STREAMS.iterdir()} == RECORDED.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_stream_is_understood_event_by_event_whole_and_byte_by_byte(name: str) -> None:
    pieces, expected = GOLDEN[name]
    for way in fed(*pieces):
        assert outcome(way) == expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(GOLDEN)), st.lists(st.integers(0, 20000), max_size=6))
def test_a_stream_is_understood_however_it_is_cut(name: str, places: list[int]) -> None:
    pieces, expected = GOLDEN[name]
    assert outcome(cut(b"".join(pieces), places)) == expected


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_text_is_emitted_twice_whatever_is_missing_or_repeated(data: st.DataObject) -> None:
    """The deltas arrive once and in order; of the other events each may be missing, doubled or anywhere."""
    others = data.draw(st.lists(st.sampled_from([ADDED, PART_ADDED, TEXT_DONE, PART_DONE, ITEM_DONE]), max_size=8))
    order = data.draw(st.permutations([True, True, *([False] * len(others))]))
    deltas, rest = iter([FIRST, SECOND]), iter(others)
    heard = outcome([*(next(deltas) if is_delta else next(rest) for is_delta in order), END])
    assert heard.reply == HELLO.reply
    assert "".join(event.delta for event in heard.events if isinstance(event, TextDelta)) == "Hello"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("overloaded_error", Overloaded),
        ("server_is_overloaded", Overloaded),
        ("rate_limit_exceeded", RateLimited),
        ("context_length_exceeded", ContextTooLong),
        ("invalid_prompt", ContentRefused),
        ("invalid_image", BadRequest),
        ("server_error", ServiceFailed),
        ("novel_error", ServiceFailed),
    ],
)
@pytest.mark.parametrize("form", ["flat", "nested", "failed"])
def test_an_error_inside_a_stream_has_its_type(code: str, kind: type[ProviderError], form: str) -> None:
    fault = {"code": code, "message": "No"}
    event = {
        "flat": gpt.event("error", **fault, param=None),
        "nested": gpt.event("error", error={"type": "some_error", **fault}),
        "failed": gpt.event("response.failed", response=gpt.response("failed", error=fault)),
    }[form]
    with pytest.raises(kind, match=f"^{code}: No$") as caught:
        ResponsesDecoder(CallIds()).feed(event)
    assert (caught.value.code, caught.value.provider, caught.value.status) == (code, "", 0)


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (gpt.reply(gpt.refusal("No.")), "refusal"),
        (gpt.reply(gpt.refusal("No"), ends="max_tokens"), "refusal"),
        (gpt.reply(gpt.text("No."), ends="refusal"), "content_filter"),
    ],
)
def test_a_refusal_is_an_error_of_its_own(stream: list[bytes], code: str) -> None:
    decoder = ResponsesDecoder(CallIds())
    decoder.feed(b"".join(stream))
    with pytest.raises(ContentRefused) as caught:
        decoder.finish()
    assert caught.value.code == code


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"7",
        b'{"type":"response.output_text.delta","output_index":0}',
        b'{"type":"response.completed"}',
        b'{"type":"response.output_item.done","output_index":0,"item":{"type":"message","content":7}}',
        b'{"type":"response.output_item.done","output_index":0,"item":7}',
    ],
)
def test_an_event_that_cannot_be_read_breaks_the_stream(payload: bytes) -> None:
    with pytest.raises(StreamBroken, match="cannot be read"):
        ResponsesDecoder(CallIds()).feed(b"data: " + payload + b"\n\n")


def test_the_received_part_is_available_at_any_moment_without_a_partial_call() -> None:
    parts = (gpt.thinking("Hm", signature="s"), gpt.text("A", "B"), gpt.tool("c1", "t", "{}"))
    decoder = ResponsesDecoder(CallIds())
    contents: list[tuple[TranscriptBlock, ...]] = []
    for piece in gpt.reply(*parts):
        decoder.feed(piece)
        content = decoder.reply().content
        if not contents or contents[-1] != content:
            contents.append(content)
    thought, sealed = ThinkingBlock("Hm"), ThinkingBlock("Hm", "s", id="rs_s")
    assert contents == [
        (),
        (thought,),
        (sealed,),
        (sealed, TextBlock("A")),
        (sealed, TextBlock("AB")),
        (sealed, TextBlock("AB"), CallBlock("c1", "t", {})),
    ]


def test_keep_alives_are_not_progress() -> None:
    decoder = ResponsesDecoder(CallIds())
    waiting = gpt.event("response.queued", response=gpt.response("queued"))
    working = gpt.event("response.in_progress", response=gpt.response("in_progress"))
    seen = []
    for piece in (
        b": hello\n\n",
        gpt.event("keepalive"),
        gpt.event("ping"),
        waiting,
        waiting,
        working,
        b"data: [DONE]\n\n",
        FIRST,
    ):
        decoder.feed(piece)
        seen.append(decoder.progress)
    assert seen == [0, 0, 0, 1, 1, 1, 1, 2]
