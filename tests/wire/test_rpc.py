"""zot RPC v1 as bytes: every command, every invalid one, and the frames for each feature of a client."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zot.encoding import encode
from zot.errors import ProtocolError
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    Done,
    ExtNotify,
    ExtWaiting,
    QuestionAnswer,
    QuestionRequest,
    Retry,
    TextDelta,
    ThinkingDelta,
    TurnEnd,
    TurnStart,
    Usage,
    decode,
)
from zot.messages import Counters
from zot.wire import rpc
from zot.wire.rpc import EventEncoder
from zot.wire.rpc_greeting import PONG, Greeting, Hello, Ping, decode_greeting, fail_frame, succeed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["type", "id", "ID", "Type", "message", "images", "token", "features", "queue", "model", "x"])
NAMES = st.sampled_from(["prompt", "hello", "abort", "steer", "set_model", "ping", "approve", "run_command", "nope"])
NEARLY_COMMANDS = st.builds(
    lambda fields, name: json.dumps({"type": name, **fields}).encode(), st.dictionaries(FIELDS, JSON, max_size=4), NAMES
)


def refused(line: bytes) -> tuple[str, bytes, str]:
    """Return why a line is no command, and the id and type that could be read."""
    with pytest.raises(ProtocolError) as caught:
        rpc.decode_command(line)
    return str(caught.value), caught.value.frame_id, caught.value.frame_type


@given(line=st.binary() | NEARLY_COMMANDS | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"type":"prompt","message":' + b"[" * 100_000)
@example(b'{"type":"ping","x":' + b'{"a":' * 100_000)
@example(b'{"type":"ping","type":"ping"' + b"[" * 100_000)
@example(b'{"id":' + b"9" * 5000 + b',"type":"ping"}')
@example(b'{"id":1e999,"type":"ping"}')
@example(b'{"type":"ping","n":' + b"9" * 5000 + b',"o":{"type":1}}')
@example(b'{"type":"ping","x":"\x01","o":{"type":1}}')
@example(b'{"id":NaN,"type":"ping"}')
@example(b'{"id":"\\ud800","type":"ping"}')
@example(b'{"type":"\\ud800"}')
@example(b'{"type":"prompt","message":"\\ud800"}')
@example(b'{"type":"set_model","model":"\xff"}')
@example(b"\xef\xbb\xbf{}")
@example(b"\0")
def test_any_line_is_a_command_or_a_protocol_error_and_can_be_answered(line: bytes) -> None:
    try:
        answer = succeed(rpc.decode_command(line))
    except ProtocolError as problem:
        answer = fail_frame(problem)
    assert answer.count(b"\n") == 1
    assert answer.endswith(b"}\n")
    assert json.loads(answer.decode())["type"] == "response"


@given(frame_id=st.text(st.characters(exclude_categories=["Cs"])) | st.integers(-(2**63), 2**64 - 1))
def test_an_id_is_returned_unchanged(frame_id: str | int) -> None:
    line = json.dumps({"type": "ping", "id": frame_id}).encode()
    answer = json.loads(succeed(rpc.decode_command(line)))
    assert answer.get("id", "") == frame_id


@pytest.mark.parametrize(
    ("raw", "echoed"),
    [("1.50", "1.50"), ("1e3", "1e3"), ("-0", "-0"), ('"\\u00e9"', '"\\u00e9"'), ("null", None), ('""', None)],
)
def test_an_id_is_echoed_verbatim_and_an_empty_one_is_none(raw: str, echoed: str | None) -> None:
    answer = succeed(rpc.decode_command(b'{"id":%b,"type":"ping"}' % raw.encode()))
    assert answer == (
        b'{"type":"response",%b"command":"ping","success":true}\n' % (f'"id":{echoed},'.encode() if echoed else b"")
    )


@pytest.mark.parametrize(
    ("line", "frame_id", "frame_type"),
    [
        (b"garbage", b"", ""),
        (b"{", b"", ""),
        (b"[]", b"", ""),
        (b"null", b"", ""),
        (b'"x"', b"", ""),
        (b"42", b"", ""),
        (b"{}", b"", ""),
        (b'{"id":"2"}', b'"2"', ""),
        (b'{"id":"3","type":""}', b'"3"', ""),
        (b'{"id":"3","type":null}', b'"3"', ""),
        (b'{"id":"5","type":5}', b'"5"', ""),
        (b'{"id":"1","type":"frobnicate"}', b'"1"', "frobnicate"),
        (b'{"id":"13","type":"PING"}', b'"13"', "PING"),
        (b'{"id":[1],"type":"ping"}', b"", "ping"),
        (b'{"id":{},"type":"ping"}', b"", "ping"),
        (b'{"id":true,"type":"ping"}', b"", "ping"),
        (b'{"id":[1],"type":"nope"}', b"", "nope"),
        (b'{"id":"6","type":"ping"', b"", ""),
        (b'{"id":"7","type":"ping"} trailing', b"", ""),
        (b'{"id":"8","type":"ping"}{"type":"ping"}', b"", ""),
        (b'\xef\xbb\xbf{"id":"1","type":"ping"}', b"", ""),
        (b'{"id":"1","type":"ping","x":"\xff"}', b'"1"', "ping"),
        (b'{"id":"\xff","type":"ping"}', b"", "ping"),
        (b'{"id":"1","type":"ping","type":"abort"}', b"", ""),
        (b'{"id":"17","type":"set_model","model":5}', b'"17"', "set_model"),
        (b'{"id":"22","type":"prompt","message":5}', b'"22"', "prompt"),
        (b'{"id":"23","type":"prompt","images":"x"}', b'"23"', "prompt"),
        (b'{"id":"24","type":"prompt","message":"a","images":[{"data":"!!!"}]}', b'"24"', "prompt"),
        (b'{"id":"25","type":"prompt","message":"a","images":[{"data":5}]}', b'"25"', "prompt"),
        (b'{"id":26,"type":"hello","token":5}', b"26", "hello"),
        (b'{"id":27,"type":"hello","features":"seq"}', b"27", "hello"),
        (b'{"id":28,"type":"hello","features":[1]}', b"28", "hello"),
        (b'{"id":29,"type":"abort","queue":"yes"}', b"29", "abort"),
        (b'{"id":30,"type":"steer","message":[]}', b"30", "steer"),
        (b'{"id":31,"type":"approve","request":1}', b"31", "approve"),
    ],
)
def test_an_invalid_command_is_refused_with_the_readable_part(line: bytes, frame_id: bytes, frame_type: str) -> None:
    reason, *read = refused(line)
    assert read == [frame_id, frame_type]
    assert reason


def test_a_refusal_explains_the_error_in_words() -> None:
    assert refused(b"\xef\xbb\xbf{}")[0] == "not a JSON object: the line begins with a byte order mark"
    assert refused(b'{"type":"ping","x":"\xff"}')[0] == "ping: invalid UTF-8 at byte 20"
    assert refused(b'{"type":"prompt","message":"\\ud83d"}')[0] == ("prompt: unpaired surrogate escape")
    assert refused(b'{"type":"ping","x":' + b"[" * 100_000)[0] == "not a command: the JSON is nested too deeply"
    assert refused(b'{"type":"nope"}')[0] == "unknown command 'nope'"
    assert "more than one type" in refused(b'{"type":"ping","type":"ping"}')[0]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b'{"type":"prompt","message":"a"}', rpc.Prompt(message="a")),
        (b'{"type":"prompt","message":null,"images":null,"id":null}', rpc.Prompt(id=msgspec.Raw(b"null"))),
        (b'{"type":"hello","token":null,"features":null}', Hello()),
        (b'{"type":"abort","queue":null}', rpc.Abort()),
        (b'{"type":"abort","queue":true}', rpc.Abort(queue=True)),
        (b'{"TYPE":"prompt","Message":"a"}', rpc.Prompt(message="a")),
        (b' \t{ "type" : "ping" } ', Ping()),
        (b'{"\\u0074ype":"ping"}', Ping()),
        (b'{"type":"ping","unknown":{"type":"x","id":1}}', Ping()),
        (b'{"type":"prompt","message":"\\"type\\" \\"type\\""}', rpc.Prompt(message='"type" "type"')),
        (b'{"type":"prompt","message":"a","message":"b"}', rpc.Prompt(message="b")),
        (b'{"type":"prompt","images":[{"mime_type":"image/png","data":"AAEC"}]}',
         rpc.Prompt(images=(rpc.ImageInput(data=b"\0\1\2", mime_type="image/png"),))),
    ],
)  # fmt: skip
def test_a_command_is_read(line: bytes, command: rpc.AnyCommand) -> None:
    assert rpc.decode_command(line) == command


def test_of_a_repeated_key_the_last_value_counts() -> None:
    assert rpc.decode_command(b'{"id":"14","type":"ping","id":"15"}').id == msgspec.Raw(b'"15"')


# Frames for a client.

PRICED = Counters(1, 2, 3, 4, 0.5)
UNPRICED = Counters(1, 2, 3, 4, 0.0, price_known=False)


def usage(of: Counters) -> Usage:
    return Usage(of.input, of.output, of.cache_read, of.cache_write, of.cost_usd, of, of.price_known)


def told(events: list[AgentEvent], *features: str) -> list[dict[str, Any]]:
    lines = EventEncoder().lines(events, frozenset(features), run=1)
    assert lines == b"" or lines.endswith(b"\n")
    return [json.loads(line) for line in lines.splitlines()]


GATED: list[tuple[str, AgentEvent]] = [
    ("thinking", ThinkingDelta("hm")),
    ("retries", Retry("busy", 1, 500)),
    ("approvals", ApprovalRequest("1", "bash", {}, "run it", "2026-01-01T00:00:00.000Z")),
    ("questions", QuestionRequest("1", "mcp:x", "who?", "2026-01-01T00:00:00.000Z")),
    ("questions", QuestionAnswer("1", "accept")),
    ("extensions", ExtNotify("x", "info", "hello")),
    ("extensions", ExtWaiting("x", "start", "2026-07-14T12:00:00.000Z")),
]


@pytest.mark.parametrize(("feature", "event"), GATED)
def test_a_newer_event_is_sent_on_request(feature: str, event: AgentEvent) -> None:
    others = {name for name, _ in GATED} - {feature}
    assert told([TurnStart(1), event, Done()], *others) == told([TurnStart(1), Done()])
    assert told([event], feature) == [json.loads(encode(event))]


def test_events_about_answers_are_not_sent_in_version_1() -> None:
    everything = [name for name, _ in GATED]
    assert told([TurnStart(1), ApprovalAnswer("1", "reject", "alice"), Done()], *everything) == told(
        [TurnStart(1), Done()]
    )


def test_numbers_are_contiguous_over_sent_events() -> None:
    encoder = EventEncoder()
    first = encoder.lines([TurnStart(1), ThinkingDelta("hm"), TextDelta("a")], frozenset({"seq"}), run=7)
    second = encoder.lines([Done()], frozenset({"seq"}), run=7)
    assert first + second == (
        b'{"type":"turn_start","step":1,"seq":1,"run":7}\n'
        b'{"type":"text_delta","delta":"a","seq":2,"run":7}\n'
        b'{"type":"done","seq":3,"run":7}\n'
    )


def test_an_unknown_price_is_zero_unless_a_client_asks_for_null() -> None:
    [plain] = told([usage(UNPRICED)])
    [precise] = told([usage(UNPRICED)], "prices")
    assert plain.keys() == told([usage(PRICED)], "prices")[0].keys()
    assert plain["cost_usd"] == 0
    assert "price_known" not in plain["cumulative"]
    assert (precise["price_known"], precise["cumulative"]["price_known"]) == (False, False)


def test_the_type_comes_first() -> None:
    lines = EventEncoder().lines([TurnEnd("error", "x")], frozenset({"seq"}), run=1)
    assert lines.startswith(b'{"type":"turn_end",')
    assert succeed(Ping(), PONG).startswith(b'{"type":"response",')


@given(text=st.text(st.characters()))
def test_every_written_line_is_strict_json(text: str) -> None:
    line = EventEncoder().lines([TextDelta(text)], frozenset(), run=1)
    assert line.count(b"\n") == 1
    shown = json.loads(line.decode())["delta"]
    assert shown == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_a_lone_surrogate_becomes_a_replacement_character_and_a_pair_one_character() -> None:
    assert told([TextDelta("a\ud800b"), TextDelta("\ud83d\ude00")]) == [
        {"type": "text_delta", "delta": "a\ufffdb"},
        {"type": "text_delta", "delta": "😀"},
    ]


@pytest.mark.parametrize("event", [TurnStart(1), TextDelta("a\u2028b"), usage(PRICED), Done(), TurnEnd("aborted")])
def test_a_line_decodes_to_its_event(event: AgentEvent) -> None:
    assert decode(EventEncoder().lines([event], frozenset(), run=1)) == event


# The greeting.


def greeting(token: str = "") -> Greeting:
    return Greeting(version="1.2", provider="lab", model=lambda: "lab-1", token=token)


def test_hello_names_product_and_version() -> None:
    assert json.loads(greeting().answer(Hello(id=msgspec.Raw(b"0")))) == {
        "type": "response",
        "id": 0,
        "command": "hello",
        "success": True,
        "data": {"protocol_version": 1, "version": "1.2", "provider": "lab", "model": "lab-1"},
    }


def test_unknown_features_are_ignored() -> None:
    hello = Hello(features=("seq", "teleport", "thinking"))
    door = greeting()
    assert json.loads(door.answer(hello))["data"]["features"] == ["seq", "thinking"]
    assert door.features == {"seq", "thinking"}


def test_a_second_hello_changes_the_features_only_if_it_names_some() -> None:
    door = greeting()
    door.answer(Hello(features=("seq",)))
    door.answer(Hello())
    assert door.features == {"seq"}
    door.answer(Hello(features=()))
    assert door.features == set()


@pytest.mark.parametrize("command", [Hello(), Hello(token=""), Hello(token="s3cre"), Hello(token="s3cret\0"), Ping()])
def test_a_connection_without_its_token_stays_locked(command: rpc.AnyCommand) -> None:
    door = greeting("s3cret")
    assert door.refusal(command)
    assert door.locked


def test_the_right_token_unlocks_the_connection_permanently() -> None:
    door = greeting("s3crét \ud800")
    assert door.refusal(Hello(token="s3crét \ud800")) is None
    assert not door.locked
    assert door.refusal(Ping()) is None
    assert door.refusal(Hello(token="wrong")) is None


@pytest.mark.parametrize("line", [b'{"type":"ping","ty\\u0070e":"get_state"}', b'{"\\u0074ype":"ping","type":"ping"}'])
def test_a_type_repeated_in_other_letters_is_found(line: bytes) -> None:
    assert refused(line)[0] == "not a command: the frame has more than one type"
    assert decode_greeting(line) is None


def test_escapes_in_a_message_are_not_a_repeated_type() -> None:
    command = rpc.decode_command(b'{"type":"prompt","message":"t\\u0079pe \\"type\\""}')
    assert command == rpc.Prompt(message='type "type"')
