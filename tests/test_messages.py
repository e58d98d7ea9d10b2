"""Messages: the form that providers get and the form that clients get."""

from __future__ import annotations

import re

import msgspec
import pytest

from zot.messages import (
    ZERO,
    CallBlock,
    Counters,
    ImageBlock,
    Message,
    ResultBlock,
    ShownCall,
    ShownImage,
    ShownMessage,
    ShownResult,
    TextBlock,
    ThinkingBlock,
    show,
    text_of,
    timestamp,
)

FULL = Message(
    "assistant",
    (
        ThinkingBlock("hm", "sig"),
        TextBlock("a"),
        ImageBlock("image/png", b"1234"),
        CallBlock("c1", "t", {"x": 1}),
        CallBlock("c2", "t", None, malformed="{"),
        ResultBlock("c1", True, (TextBlock("r"), ImageBlock("image/gif", b"12"))),
        TextBlock("b"),
    ),
    "2026-01-01T12:00:00.000Z",
)


def test_clients_see_images_as_a_count_and_no_thinking() -> None:
    assert show(FULL) == ShownMessage(
        "assistant",
        (
            TextBlock("a"),
            ShownImage("image/png", 4),
            ShownCall("c1", "t", {"x": 1}),
            ShownCall("c2", "t", None),
            ShownResult("c1", True, (TextBlock("r"), ShownImage("image/gif", 2))),
            TextBlock("b"),
        ),
        FULL.time,
    )


def test_shown_messages_are_spelled_as_in_the_protocol() -> None:
    assert msgspec.json.encode(show(FULL)) == (
        b'{"role":"assistant","content":[{"type":"text","text":"a"},'
        b'{"type":"image","mime_type":"image/png","bytes":4},'
        b'{"type":"tool_call","id":"c1","name":"t","args":{"x":1}},'
        b'{"type":"tool_call","id":"c2","name":"t","args":null},'
        b'{"type":"tool_result","call_id":"c1","is_error":true,"content":[{"type":"text","text":"r"},'
        b'{"type":"image","mime_type":"image/gif","bytes":2}]},'
        b'{"type":"text","text":"b"}],"time":"2026-01-01T12:00:00.000Z"}'
    )


@pytest.mark.parametrize(("shown", "first"), [("new", [TextBlock("new")]), ("", [])])
def test_a_replaced_text_is_shown_instead_of_the_models_own(shown: str, first: list[TextBlock]) -> None:
    message = msgspec.structs.replace(FULL, shown_text=shown)
    texts = [block for block in show(message).content if isinstance(block, TextBlock)]
    assert texts == first
    assert len(show(message).content) == 4 + len(first)
    assert text_of(message.content) == "ab"


def test_a_message_survives_being_stored() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FULL), type=Message) == FULL


def test_counters_add_up() -> None:
    one = Counters(1, 2, 3, 4, 0.5)
    assert ZERO + one == one
    assert one + one == Counters(2, 4, 6, 8, 1.0)
    assert (one.cost, Counters(1, 2, 3, 4, 0.0, price_known=False).cost) == (0.5, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1.5, "1970-01-01T00:00:01.500Z"),
        (1_767_268_800.25, "2026-01-01T12:00:00.250Z"),
        (951_782_400, "2000-02-29T00:00:00.000Z"),
    ],
)
def test_times_are_utc_with_milliseconds(seconds: float, text: str) -> None:
    assert timestamp(seconds) == text


def test_now_is_the_current_time() -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", timestamp())
    assert timestamp(0) < timestamp()
