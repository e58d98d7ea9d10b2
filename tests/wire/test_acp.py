"""The Agent Client Protocol's session updates: every event has its place, and every update is a valid one."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor import check
from zot import events
from zot.events import (
    AgentEvent,
    ApprovalRequest,
    CompactDone,
    ExtNotify,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    Usage,
)
from zot.messages import CallBlock, Counters, ImageBlock, Message, ResultBlock, ShownImage, TextBlock, ThinkingBlock
from zot.wire import acp
from zot.wire.acp_greeting import ClientCapabilities, SessionCapabilities
from zot.wire.jsonrpc import RpcError

ABLE = ClientCapabilities(session=SessionCapabilities({}, {}))
COUNTERS = Counters(1, 2, 3, 4, 0.5)
EXAMPLES: dict[type, AgentEvent] = {
    ToolResult: ToolResult("c", False, (TextBlock("out"), ShownImage("image/png", 7))),
    ToolCall: ToolCall("c", "bash", {"command": "ls"}),
    Usage: Usage(1, 2, 3, 4, 0.5, COUNTERS),
    CompactDone: CompactDone("short"),
    ExtNotify: ExtNotify("guard", "warn", "careful"),
}


def maker(client: ClientCapabilities = ABLE) -> acp.UpdateMaker:
    return acp.UpdateMaker(acp.ToolCards(lambda: "/work"), client, "m")


def updates(*given: AgentEvent, window: int = 1000) -> list[acp.Update]:
    found = list(maker().updates(given, window=window))
    for update in found:
        check("SessionNotification", {"sessionId": "s", "update": update})
    return found


def example(kind: type[msgspec.Struct]) -> AgentEvent:
    values = {
        "content": (),
        "args": {},
        "lines": (),
        "stop": "end_turn",
        "level": "info",
        "decision": "reject",
        "action": "accept",
    }
    numbers = ("step", "attempt", "delay_ms", "messages")
    fields = {
        field.name: values.get(field.name, 1 if field.name in numbers else field.name)
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    return EXAMPLES.get(kind) or msgspec.convert({**fields, "type": kind.__struct_config__.tag}, kind)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", get_args(AgentEvent), ids=lambda kind: kind.__name__)
def test_every_event_becomes_valid_updates_or_none(kind: type[msgspec.Struct]) -> None:
    shown = {one["sessionUpdate"] for one in updates(example(kind))}
    expected = {
        "TextDelta": {"agent_message_chunk"},
        "ThinkingDelta": {"agent_thought_chunk"},
        "ToolCall": {"tool_call"},
        "ToolProgress": {"tool_call_update"},
        "ToolResult": {"tool_call_update"},
        "Usage": {"usage_update"},
        "CompactDone": {"compaction_update"},
        "Retry": {"notice"},
        "ExtNotify": {"notice"},
        "ExtWaiting": {"notice"},
    }
    assert shown == expected.get(kind.__name__, set())


def test_clients_without_the_capability_get_no_notices_and_compactions() -> None:
    given: list[AgentEvent] = [events.Retry("busy", 1, 10), CompactDone("short"), ExtNotify("guard", "warn", "careful")]
    assert list(maker(ClientCapabilities()).updates(given)) == []


def test_pieces_are_joined_and_live_output_is_repeated_once_and_bounded() -> None:
    found = updates(
        TextDelta("a"), TextDelta("b"), ThinkingDelta("c"), TextDelta("d"),
        ToolCall("1", "bash", {"command": "x"}), ToolProgress("1", "y" * 20_000), ToolProgress("1", "end"),
    )  # fmt: skip
    assert [one["content"]["text"] for one in found[:3]] == ["ab", "c", "d"]
    assert [one["sessionUpdate"] for one in found[3:]] == ["tool_call", "tool_call_update"]
    shown = found[-1]["content"][0]["content"]["text"]
    assert shown.endswith("yend\n```")
    assert len(shown) < 9000


def test_output_of_a_call_that_ended_in_the_same_batch_is_not_repeated() -> None:
    found = updates(ToolCall("1", "bash", {"command": "x"}), ToolProgress("1", "y"), ToolResult("1", True, ()))
    assert [one.get("status") for one in found] == ["in_progress", "failed"]


def test_usage_without_a_window_or_a_price() -> None:
    assert updates(Usage(1, 2, 3, 4, 0.0, COUNTERS), window=0) == []
    unknown = Counters(1, 2, 3, 4, 0.0, price_known=False)
    assert "cost" not in updates(Usage(1, 2, 3, 4, 0.0, unknown))[0]


def test_an_approval_is_about_the_call_with_the_same_arguments() -> None:
    cards = acp.ToolCards(lambda: "/work")
    for number in (1, 2):
        cards.call(str(number), "bash", {"command": f"c{number}"})
    asked = cards.asked(ApprovalRequest("a", "bash", {"command": "c2"}, "", ""))
    assert (asked["toolCallId"], asked["title"], asked["status"]) == ("2", "c2", "pending")
    assert cards.asked(ApprovalRequest("a", "bash", {"command": "changed"}, "", ""))["toolCallId"] == "1"
    assert cards.asked(ApprovalRequest("a", "other", {}, "", ""))["toolCallId"] == "a"


def test_a_conversation_is_replayed_with_its_images() -> None:
    messages = [
        Message("user", (TextBlock("look"), ImageBlock("image/png", b"png")), "t"),
        Message("assistant", (ThinkingBlock("hm"), TextBlock("ok"), CallBlock("1", "read", {"path": "a"})), "t"),
        Message("tool", (ResultBlock("1", False, (TextBlock("text"), ImageBlock("image/png", b"x"))),), "t"),
        Message("assistant", (TextBlock("hidden"),), "t", shown_text="shown"),
    ]
    cards = acp.ToolCards(lambda: "/work")
    found = [update for message in messages for update in acp.replay(message, cards, "m-1")]
    for update in found:
        check("SessionNotification", {"sessionId": "s", "update": update})
    assert [one["sessionUpdate"] for one in found] == [
        "user_message_chunk", "user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call",
        "tool_call_update", "agent_message_chunk",
    ]  # fmt: skip
    assert found[1]["content"]["data"] == "cG5n"
    assert found[-1]["content"]["text"] == "shown"


TEXT = st.text(max_size=20)
ARGS = st.dictionaries(st.sampled_from(["path", "content", "edits", "command", "offset", "name"]), st.one_of(
    TEXT, st.integers(-5, 5), st.none(), st.lists(st.dictionaries(st.sampled_from(["oldText", "newText"]), TEXT))
))  # fmt: skip


@given(st.sampled_from(["bash", "read", "write", "edit", "skill", "x"]), st.none() | ARGS, TEXT, st.booleans())
def test_any_call_makes_a_valid_card(name: str, args: dict[str, object] | None, text: str, fails: bool) -> None:
    result = ToolResult("1", fails, (TextBlock(text),))
    updates(ToolCall("1", name, args), ToolProgress("1", text), result)


def test_a_blob_is_an_image_or_only_named() -> None:
    image = msgspec.convert({"uri": "file:///a.png", "blob": "cG5n", "mimeType": "image/png"}, acp._Resource)
    other = msgspec.convert({"uri": "http://x/a.zip", "blob": "cG5n"}, acp._Resource)
    blocks = [acp.EmbeddedResource(image), acp.EmbeddedResource(other)]
    assert acp.prompt_of(blocks) == ("[Document: http://x/a.zip]", (ImageBlock("image/png", b"png"),))
    with pytest.raises(RpcError, match="audio"):
        acp.prompt_of([acp.Audio()])


@pytest.mark.parametrize(
    "result", [None, b"1", b'{"outcome":{"outcome":"cancelled"}}', b'{"outcome":{"outcome":"selected"}}']
)
def test_anything_but_a_choice_rejects(result: bytes | None) -> None:
    assert acp.decision_of(None if result is None else msgspec.Raw(result)) == "reject"
