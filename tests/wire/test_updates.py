"""Updates: the events of a session as each kind of client gets them, with their numbers, and the end of a turn."""

from __future__ import annotations

import json
import typing
from collections.abc import Sequence
from typing import Any

import pytest

from zot import events
from zot.encoding import encode
from zot.errors import AgentError
from zot.events import (
    PIECES,
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
    QuestionRequest,
    Reconfigured,
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
)
from zot.messages import Counters, ShownImage, TextBlock
from zot.run_summary import RunSummary
from zot.wire.daemon import Dialect
from zot.wire.daemon_types import PendingApproval
from zot.wire.jsonrpc import INTERNAL_ERROR, RpcError
from zot.wire.updates import TurnSummary, Updates

NOON = "2026-01-01T12:00:00.000Z"
NOON_S = 1_767_268_800.0
USED = Usage(1, 2, 3, 4, 0.5, Counters(5, 6, 7, 8, 1.5))
ASKED = ApprovalRequest("approval_1_1", "bash", {"command": "ls"}, "bash: ls", "2026-01-01T12:02:00.000Z")
#: A whole run, with everything that can be in one.
RUN: list[AgentEvent] = [
    UserMessage((TextBlock("look"), ShownImage("image/png", 3)), NOON),
    TurnStart(1),
    Retry("busy", 1, 500),
    AssistantStart(),
    ThinkingDelta("hm"),
    TextDelta("Let "),
    TextDelta("me"),
    ToolUseStart("c1", "bash"),
    ToolUseArgs("c1", "{}"),
    ToolUseEnd("c1"),
    USED,
    AssistantMessage((TextBlock("Let me"),), NOON),
    ToolCall("c1", "bash", {"command": "ls"}),
    TurnEnd("tool_use"),
    ASKED,
    ApprovalAnswer("approval_1_1", "allow_once", "unix:pid=1"),
    ToolProgress("c1", "a"),
    ToolResult("c1", False, (TextBlock("a.txt"), ShownImage("image/png", 3))),
    TurnStart(2),
    AssistantStart(),
    TextDelta("Done."),
    Usage(1, 1, 0, 0, 0.0, Counters(6, 7, 7, 8, 1.5, price_known=False), price_known=False),
    AssistantMessage((TextBlock("Done."),), NOON),
    TurnEnd("end_turn"),
    Done(),
]
HEARD: list[dict[str, Any]] = [
    {"type": "state", "state": "running", "prompt": "look", "seq": 10},
    {"type": "agent_thought_chunk", "text": "hm", "seq": 14},
    {"type": "agent_message_chunk", "text": "Let ", "seq": 15},
    {"type": "agent_message_chunk", "text": "me", "seq": 16},
    {
        "type": "usage", "input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "costUsd": 0.5, "reasoning": 0,
        "cumulative": {"input": 5, "output": 6, "cacheRead": 7, "cacheWrite": 8, "costUsd": 1.5, "reasoning": 0},
        "seq": 20,
    },
    {"type": "tool_call", "toolCallId": "c1", "name": "bash", "rawInput": {"command": "ls"}, "seq": 22},
    {
        "type": "approval_request", "requestId": "approval_1_1", "toolName": "bash", "argumentsSummary": "bash: ls",
        "timeoutSecs": 120, "deadline": "2026-01-01T12:02:00.000Z", "seq": 24,
    },
    {"type": "state", "state": "running", "requestId": "approval_1_1", "decision": "allow_once", "seq": 25},
    {
        "type": "tool_result", "toolCallId": "c1", "name": "bash", "rawOutput": "a.txt\n[image/png, 3 bytes]",
        "isError": False, "seq": 27,
    },
    {"type": "agent_message_chunk", "text": "Done.", "seq": 30},
    {
        "type": "usage", "input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "costUsd": None, "reasoning": 0,
        "cumulative": {"input": 6, "output": 7, "cacheRead": 7, "cacheWrite": 8, "costUsd": None, "reasoning": 0},
        "seq": 31,
    },
    {"type": "turn_complete", "outcome": "completed", "content": "Done.", "stopReason": "end_turn", "seq": 34},
]  # fmt: skip
UNSAID: list[AgentEvent] = [
    CompactDone("s", auto=True),
    ConversationReplaced(0),
    Reconfigured(),
    ExtNotify("guard", "warn", "careful"),
    ExtWaiting("guard", "intercept", "2026-01-01T00:00:00.000Z"),
    PanelOpened("todo", "p", "T", ("one",)),
    PanelRendered("todo", "p", "T", ()),
    PanelClosed("todo", "p"),
    Error("no"),
    QuestionRequest("question_1_1", "mcp:x", "who?", NOON),
    QuestionAnswer("question_1_1", "accept"),
]


def client(dialect: Dialect = Dialect.CAMEL) -> Updates:
    return Updates("s1", dialect, now=lambda: NOON_S)


def heard(lines: bytes) -> list[dict[str, Any]]:
    """Return the parameters of every line, without the session."""
    assert lines.endswith(b"\n") or not lines
    params = []
    for line in lines.split(b"\n")[:-1]:
        frame = json.loads(line)
        assert (frame.pop("jsonrpc"), frame.pop("method"), [*frame]) == ("2.0", "session/update", ["params"])
        update = frame["params"]
        assert (update.pop("sessionId", None) or update.pop("session_id", None)) == "s1"
        params.append(update)
    return params


def snaked(value: Any) -> Any:
    def name(key: str) -> str:
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)

    return {name(key): snaked(item) for key, item in value.items()} if isinstance(value, dict) else value


def ending(*happened: AgentEvent) -> TurnSummary:
    run = RunSummary()
    run.take(happened)
    return TurnSummary.of(run)


def test_every_event_has_an_example() -> None:
    assert {type(event) for event in (*RUN, *UNSAID)} == {*typing.get_args(events.AgentEvent)}


def test_the_lines_are_the_published_ones_with_their_numbers() -> None:
    lines = client().lines(7, [TextDelta("Hello"), ToolCall("tc_1", "bash", {"command": "ls"})])
    assert lines == (
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","type":"agent_message_chunk",'
        b'"text":"Hello","seq":7}}\n'
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","type":"tool_call",'
        b'"toolCallId":"tc_1","name":"bash","rawInput":{"command":"ls"},"seq":8}}\n'
    )


def test_a_run_becomes_updates_with_the_numbers_of_its_events() -> None:
    assert heard(client().lines(10, RUN)) == HEARD


def test_a_client_with_another_spelling_gets_the_same_updates() -> None:
    assert heard(client(Dialect.SNAKE).lines(10, RUN)) == [snaked(update) for update in HEARD]


@pytest.mark.parametrize("dialect", Dialect)
def test_the_batching_of_events_does_not_matter(dialect: Dialect) -> None:
    one_by_one, whole = client(dialect), client(dialect)
    assert b"".join(one_by_one.lines(10 + n, [event]) for n, event in enumerate(RUN)) == whole.lines(10, RUN)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("cut", range(len(RUN)))
def test_a_reconnecting_client_gets_the_rest_like_the_others(dialect: Dialect, cut: int) -> None:
    back, whole = client(dialect), client(dialect)
    back.skip(RUN[:cut])
    before = client(dialect).lines(10, RUN[:cut])
    assert before + back.lines(10 + cut, RUN[cut:]) == whole.lines(10, RUN)


def test_a_client_that_asked_for_events_gets_every_event_unchanged() -> None:
    updates = client(Dialect.EVENTS)
    assert heard(updates.lines(10, RUN)) == [
        {"type": "event", "event": json.loads(encode(event)), "seq": 10 + n} for n, event in enumerate(RUN)
    ]
    assert heard(updates.lines(0, UNSAID)) == [
        {"type": "event", "event": json.loads(encode(event))} for event in UNSAID
    ]


@pytest.mark.parametrize("dialect", [Dialect.CAMEL, Dialect.SNAKE])
def test_of_unrecorded_events_only_the_end_of_a_turn_is_sent(dialect: Dialect) -> None:
    updates = client(dialect)
    assert updates.lines(0, [*UNSAID, *RUN[:-1], TextDelta("x"), ThinkingDelta("y")]) == b""
    [end] = heard(
        updates.lines(0, [TurnStart(3), TurnEnd("error", "the disk is full"), Error("the disk is full"), Done()])
    )
    assert "seq" not in end
    assert (end["type"], end["outcome"], end["content"]) == ("turn_complete", "failed", "the disk is full")


def test_internal_events_are_not_sent() -> None:
    assert client().lines(1, UNSAID) == b""


@pytest.mark.parametrize("dialect", Dialect)
def test_lone_surrogates_and_line_separators_do_not_break_a_line(dialect: Dialect) -> None:
    strange: list[AgentEvent] = [
        TextDelta("a\ud800b\u2028"),
        ThinkingDelta("\udc00"),
        ToolCall("c", "t", {"\ud800": ["\n"]}),
    ]
    lines = Updates("s\ud800", dialect).lines(1, strange)
    assert lines.count(b"\n") == 3
    assert all(json.loads(line)["params"]["seq"] for line in lines.split(b"\n")[:-1])
    assert "a\ufffdb\u2028" in lines.decode()


def test_text_is_the_same_alone_and_among_others_whatever_the_session_is_called() -> None:
    deltas = [TextDelta(text) for text in ("100 %", "%s\n", "\u2028", "", "\ud800")]
    alone = Updates("50%d %", Dialect.CAMEL).lines(7, deltas)
    among = Updates("50%d %", Dialect.CAMEL).lines(6, [AssistantStart(), *deltas])
    said = [json.loads(line)["params"] for line in alone.splitlines()]
    assert alone == among
    assert [(one["sessionId"], one["seq"]) for one in said] == [("50%d %", seq) for seq in range(7, 12)]
    assert [one["text"] for one in said] == ["100 %", "%s\n", "\u2028", "", "\ufffd"]


def test_a_call_whose_arguments_are_not_an_object_has_null() -> None:
    assert heard(client().lines(1, [ToolCall("c", "t", None)]))[0]["rawInput"] is None


def test_a_result_without_its_call_has_no_name_and_one_of_another_run_has_none() -> None:
    updates = client()
    result = ToolResult("c1", True, (TextBlock("no"),))
    assert [update.get("name") for update in heard(updates.lines(1, [ToolCall("c1", "bash", {}), result]))] == [
        "bash"
    ] * 2
    updates.lines(3, [Done()])
    [late] = heard(updates.lines(4, [result]))
    assert (late["name"], late["rawOutput"], late["isError"]) == ("", "no", True)


@pytest.mark.parametrize(("now", "left"), [(NOON_S, 120), (NOON_S + 0.5, 120), (NOON_S + 119.9, 1), (NOON_S + 500, 0)])
def test_the_time_that_is_left_for_an_answer_counts_from_now(now: float, left: int) -> None:
    assert PendingApproval.of(ASKED, now).timeout_secs == left
    [asked] = heard(Updates("s1", Dialect.SNAKE, now=lambda: now).lines(1, [ASKED]))
    assert (asked["timeout_secs"], asked["deadline"]) == (left, ASKED.deadline)


def said(text: str) -> list[AgentEvent]:
    return [TurnStart(1), AssistantStart(), TextDelta(text), USED, AssistantMessage((TextBlock(text),), NOON)]


BLOCKED = ExtNotify("guard", "warn", "rude", "assistant_message")
ENDINGS: list[tuple[str, Sequence[AgentEvent], tuple[str, str, str, str], str]] = [
    ("completed", [*said("Hi"), TurnEnd("end_turn")], ("completed", "end_turn", "Hi", ""), "Hi"),
    ("cut off", [*said("Hi"), TurnEnd("length")], ("completed", "length", "Hi", ""), "Hi"),
    ("cancelled", [*said("H"), TurnEnd("aborted")], ("cancelled", "cancelled", "H", ""), "H"),
    ("cancelled at once", [TurnEnd("aborted")], ("cancelled", "cancelled", "", ""), ""),
    (
        "cancelled in a tool",
        [*said("H"), TurnEnd("tool_use"), ToolResult("c", True, ()), TurnEnd("aborted")],
        ("cancelled", "cancelled", "H", ""),
        "H",
    ),
    (
        "failed half way",
        [*said("H"), TurnEnd("error", "gone"), Error("gone")],
        ("failed", "error", "H", "gone"),
        "gone",
    ),
    ("blocked by a guard", [TurnStart(1), TurnEnd("error", "not now")], ("failed", "error", "", "not now"), "not now"),
    (
        "too many steps",
        [*said("H"), TurnEnd("tool_use"), Error("too many steps")],
        ("failed", "error", "H", "too many steps"),
        "too many steps",
    ),
    (
        "held back by a guard",
        [TurnStart(1), USED, BLOCKED, TurnEnd("end_turn")],
        ("completed", "end_turn", "", ""),
        "",
    ),
    (
        "held back, then said better",
        [TurnStart(1), USED, BLOCKED, TurnEnd("tool_use"), *said("Hi"), TurnEnd("end_turn")],
        ("completed", "end_turn", "Hi", ""),
        "Hi",
    ),
    ("compacted", [USED, CompactDone("short")], ("completed", "end_turn", "short", ""), "short"),
    ("nothing to compact", [Error("nothing")], ("failed", "error", "", "nothing"), "nothing"),
    ("failed without a word", [TurnStart(1), TurnEnd("error")], ("failed", "error", "", "the turn failed"),
     "the turn failed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("happened", "expected", "shown"), [row[1:] for row in ENDINGS], ids=[row[0] for row in ENDINGS]
)
def test_the_end_of_a_turn_is_sent(
    happened: Sequence[AgentEvent], expected: tuple[str, str, str, str], shown: str
) -> None:
    summary = ending(*happened)
    assert (summary.outcome, summary.stop_reason, summary.content, summary.error) == expected
    updates = client()
    end = heard(updates.lines(1, [*happened, Done()]))[-1]
    assert end.pop("seq") == len(happened) + 1
    error = {name: text for name in ("error", "notice") if (text := getattr(summary, name))}
    outcome, stop_reason = expected[:2]
    assert end == {"type": "turn_complete", "outcome": outcome, "content": shown, "stopReason": stop_reason, **error}


def test_pieces_of_a_complete_message_do_not_change_how_a_turn_ended() -> None:
    pieces: list[AgentEvent] = [TextDelta("x"), ThinkingDelta("y"), ToolUseArgs("c", "{"), ToolProgress("c", "z")]
    start, *rest = [*said("Hi"), TurnEnd("end_turn")]
    whole = [event for event in rest if type(event) not in PIECES]
    assert ending(start, *pieces, *whole) == ending(start, *pieces[1:], *whole, *pieces[1:]) == ending(start, *whole)


def test_a_turn_that_failed_in_the_middle_of_a_message_has_the_text_that_arrived() -> None:
    failed: list[AgentEvent] = [
        TurnStart(1),
        AssistantStart(),
        TextDelta("H"),
        TextDelta("i"),
        TurnEnd("error", "full disk"),
    ]
    assert ending(*failed).content == "Hi"
    assert ending(*said("before"), *failed, *said("after"), TurnEnd("end_turn")).content == "after"


def test_the_next_turn_begins_empty() -> None:
    updates = client()
    failed = [*said("H"), TurnEnd("error", "gone"), Error("gone"), Done()]
    updates.lines(1, failed)
    end = heard(updates.lines(9, [*said("Hi"), TurnEnd("end_turn"), Done()]))[-1]
    assert (end["outcome"], end["content"]) == ("completed", "Hi")


def test_a_prompt_is_answered_with_the_same_outcome() -> None:
    reply = ending(*said("Hi"), *said("Ho"), TurnEnd("end_turn")).reply("s1")
    assert (reply.session_id, reply.stop_reason, reply.content, reply.usage.input) == ("s1", "end_turn", "Ho", 2)
    assert ending(*said("H"), TurnEnd("aborted")).reply("s1").stop_reason == "cancelled"


def test_a_prompt_whose_turn_failed_is_answered_with_an_error_with_the_text_so_far() -> None:
    with pytest.raises(RpcError) as caught:
        ending(*said("H"), TurnEnd("error", "gone"), Error("gone")).reply("s1")
    assert isinstance(caught.value, AgentError)
    assert (caught.value.code, caught.value.message) == (INTERNAL_ERROR, "gone")
    data = caught.value.data
    assert (data.stop_reason, data.content, data.usage.output) == ("error", "H", 2)
