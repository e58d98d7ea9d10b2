"""Events: their encoding is the line of the protocol."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zot
from zot import events
from zot.encoding import encode, encode_lines
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    AssistantMessage,
    AssistantStart,
    CompactDone,
    ConversationReplaced,
    Done,
    Error,
    ExtNotify,
    ExtWaiting,
    PanelClosed,
    PanelOpened,
    PanelRendered,
    QuestionAnswer,
    QuestionChoice,
    QuestionField,
    QuestionRequest,
    Reconfigured,
    ResultDetails,
    Retry,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    ToolUseArgs,
    ToolUseEnd,
    ToolUseStart,
    TurnEnd,
    TurnStart,
    Usage,
    UserMessage,
    decode,
)
from zot.messages import Counters, ShownCall, ShownImage, TextBlock

NOON = "2026-01-01T12:00:00.000Z"
LINES: list[tuple[AgentEvent, bytes]] = [
    (
        UserMessage((TextBlock("hi"), ShownImage("image/png", 4)), NOON),
        b'{"type":"user_message","content":[{"type":"text","text":"hi"},'
        b'{"type":"image","mime_type":"image/png","bytes":4}],"time":"2026-01-01T12:00:00.000Z"}',
    ),
    (TurnStart(1), b'{"type":"turn_start","step":1}'),
    (AssistantStart(), b'{"type":"assistant_start"}'),
    (TextDelta("a"), b'{"type":"text_delta","delta":"a"}'),
    (TextDelta(""), b'{"type":"text_delta","delta":""}'),
    (ThinkingDelta("a"), b'{"type":"thinking_delta","delta":"a"}'),
    (ToolUseStart("c1", "bash"), b'{"type":"tool_use_start","id":"c1","name":"bash"}'),
    (ToolUseArgs("c1", "{}"), b'{"type":"tool_use_args","id":"c1","delta":"{}"}'),
    (ToolUseEnd("c1"), b'{"type":"tool_use_end","id":"c1"}'),
    (
        Usage(1, 2, 3, 4, 0.5, Counters(5, 6, 7, 8, 1.5)),
        b'{"type":"usage","input":1,"output":2,"cache_read":3,"cache_write":4,"cost_usd":0.5,'
        b'"cumulative":{"input":5,"output":6,"cache_read":7,"cache_write":8,"cost_usd":1.5}}',
    ),
    (
        Usage(0, 0, 0, 0, 0.0, Counters(0, 0, 0, 0, 0.0)),
        b'{"type":"usage","input":0,"output":0,"cache_read":0,"cache_write":0,"cost_usd":0.0,'
        b'"cumulative":{"input":0,"output":0,"cache_read":0,"cache_write":0,"cost_usd":0.0}}',
    ),
    (
        AssistantMessage((ShownCall("c1", "t", {}),), NOON),
        b'{"type":"assistant_message","content":[{"type":"tool_call","id":"c1","name":"t","args":{}}],'
        b'"time":"2026-01-01T12:00:00.000Z"}',
    ),
    (ToolCall("c1", "t", {"a": [1, None]}), b'{"type":"tool_call","id":"c1","name":"t","args":{"a":[1,null]}}'),
    (ToolCall("c1", "t", None), b'{"type":"tool_call","id":"c1","name":"t","args":null}'),
    (ToolProgress("c1", "..."), b'{"type":"tool_progress","id":"c1","text":"..."}'),
    (ToolResult("c1", False, ()), b'{"type":"tool_result","id":"c1","is_error":false,"content":[]}'),
    (TurnEnd("end_turn"), b'{"type":"turn_end","stop":"end_turn"}'),
    (TurnEnd("error", "no"), b'{"type":"turn_end","stop":"error","error":"no"}'),
    (Done(), b'{"type":"done"}'),
    (Error("no"), b'{"type":"error","message":"no"}'),
    (CompactDone("s"), b'{"type":"compact_done","summary":"s"}'),
    (Retry("busy", 1, 500), b'{"type":"retry","reason":"busy","attempt":1,"delay_ms":500}'),
    (
        ApprovalRequest("r1", "bash", {"command": "ls"}, "bash: ls", NOON),
        b'{"type":"approval_request","id":"r1","tool":"bash","args":{"command":"ls"},"summary":"bash: ls",'
        b'"deadline":"2026-01-01T12:00:00.000Z"}',
    ),
    (ApprovalAnswer("r1", "expired"), b'{"type":"approval_answer","id":"r1","decision":"expired"}'),
    (
        ApprovalAnswer("r1", "reject", "alice"),
        b'{"type":"approval_answer","id":"r1","decision":"reject","by":"alice"}',
    ),
    (
        QuestionRequest(
            "q1",
            "mcp:forge",
            "Which branch?",
            "2026-07-14T12:00:00.000Z",
            (QuestionField("branch", "choice", required=True, choices=(QuestionChoice("main"),)),),
            call="c1",
        ),
        b'{"type":"question_request","id":"q1","origin":"mcp:forge","message":"Which branch?",'
        b'"deadline":"2026-07-14T12:00:00.000Z","fields":[{"name":"branch","kind":"choice","required":true,'
        b'"choices":[{"value":"main"}]}],"call":"c1"}',
    ),
    (QuestionAnswer("q1", "decline", "alice"), b'{"type":"question_answer","id":"q1","action":"decline","by":"alice"}'),
    (ConversationReplaced(3), b'{"type":"conversation_replaced","messages":3}'),
    (Reconfigured(), b'{"type":"reconfigured"}'),
    (
        ExtNotify("guard", "warn", "careful", "assistant_message"),
        b'{"type":"ext_notify","extension":"guard","level":"warn","message":"careful","blocked":"assistant_message"}',
    ),
    (
        ExtNotify("guard", "warn", "careful"),
        b'{"type":"ext_notify","extension":"guard","level":"warn","message":"careful"}',
    ),
    (
        ExtWaiting("guard", "intercept tool_call", "2026-07-14T12:00:00.000Z"),
        b'{"type":"ext_waiting","extension":"guard","what":"intercept tool_call","since":"2026-07-14T12:00:00.000Z"}',
    ),
    (
        PanelOpened("todo", "p", "T", ("one",), "f"),
        b'{"type":"panel_open","extension":"todo","panel_id":"p","title":"T","lines":["one"],"footer":"f"}',
    ),
    (
        PanelRendered("todo", "p", "T", ()),
        b'{"type":"panel_render","extension":"todo","panel_id":"p","title":"T","lines":[]}',
    ),
    (PanelClosed("todo", "p"), b'{"type":"panel_close","extension":"todo","panel_id":"p"}'),
    (
        ToolResult("c1", False, (), ResultDetails("todo")),
        b'{"type":"tool_result","id":"c1","is_error":false,"content":[],"details":{"extension":"todo"}}',
    ),
]


@pytest.mark.parametrize(
    ("event", "line"), LINES, ids=lambda value: value.decode()[:40] if isinstance(value, bytes) else ""
)
def test_an_event_is_its_line(event: AgentEvent, line: bytes) -> None:
    assert encode(event) == zot.encode(event) == line
    assert decode(line) == zot.decode(line.decode()) == event


def test_every_event_has_a_line_above() -> None:
    assert {type(event) for event, _ in LINES} == {*get_args(AgentEvent)}


def test_lines_are_their_events_each_with_its_end() -> None:
    assert encode_lines([event for event, _ in LINES]) == b"".join(line + b"\n" for _, line in LINES)
    assert encode_lines([]) == b""


def test_an_unknown_price_is_null() -> None:
    usage = Usage(1, 1, 0, 0, 0.0, Counters(1, 1, 0, 0, 0.0, price_known=False), price_known=False)
    assert encode(usage).count(b'"price_known":false') == 2
    assert usage.cost is None


@given(st.text(st.characters()))
def test_any_text_makes_one_line_that_the_strictest_reader_takes(text: str) -> None:
    line = encode(TextDelta(text))
    assert b"\n" not in line
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert json.loads(line.decode("utf-8", "strict")) == {"type": "text_delta", "delta": clean}
    assert encode_lines([TextDelta(text), Done()]) == line + b'\n{"type":"done"}\n'


_word = st.text(st.characters(), max_size=3)
_json = st.recursive(
    _word | st.integers(0, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_word, inner, max_size=2),
)


@given(_json)
def test_a_lone_surrogate_in_arguments_costs_one_character(value: object) -> None:
    line = encode(ToolCall("c1", "t", {"v": value}))
    assert line.startswith(b'{"type":"tool_call"')
    assert json.loads(line.decode("utf-8", "strict"))["args"].keys() == {"v"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_line_has_a_number_that_json_cannot_express(number: float) -> None:
    assert encode(ToolCall("c1", "t", {"v": number})) == b'{"type":"tool_call","id":"c1","name":"t","args":{"v":null}}'


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b'{"type":"novelty"}', b'{"type":"text_delta"}', b'{"type":"text_delta","delta":1}',
     b'{"type":"text_delta","delta":"\xff"}', b'{"type":"tool_call","id":"a","name":"b","args":' + b"[" * 100_000],
)  # fmt: skip
def test_an_invalid_event_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(line)


def test_the_text_of_events_is_the_model_s_text() -> None:
    said: list[AgentEvent] = [TurnStart(1), TextDelta("a"), ThinkingDelta("x"), TextDelta("b"), Done()]
    assert events.text(said) == "ab"
