"""Conversations with an extension, from zot's side, without any I/O or waiting."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zot.extensions.peer import (
    MAX_BYTES,
    MAX_COMMANDS,
    MAX_FAULTS,
    MAX_TOOLS,
    Acknowledged,
    CommandAnswered,
    CommandRegistered,
    Decided,
    ExtensionDeadlines,
    ExtensionPeer,
    Greeted,
    InterceptDecision,
    Kill,
    Notified,
    OutgoingRequest,
    PanelCloseReceived,
    PanelOpenReceived,
    PanelRenderReceived,
    PeerBroken,
    PeerEnded,
    PeerEvent,
    PeerState,
    ProtocolViolation,
    RequestTimedOut,
    Settled,
    SubscribeReceived,
    Terminate,
    ToolAnswered,
    ToolRegistered,
)
from zot.messages import ImageBlock, TextBlock
from zot.wire import extension as wire

ACK = wire.HelloAck(1, "0.1.0", "lab", "lab-1", "/work", "/ext", "/ext")
HELLO = {"type": "hello", "name": "g", "version": "1", "capabilities": ["commands", "tools", "events"]}
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
LOOKUP = {"type": "register_tool", "name": "lookup", "schema": OBJECT}
GREET = {"type": "register_command", "name": "greet", "description": "say hi"}
READY = {"type": "ready"}
GUARDING = {"type": "subscribe", "intercept": ["tool_call", "turn_start", "assistant_message"]}
NOT_JSON = "wrote a line that is not a frame: not a JSON object: JSON is malformed: invalid character (byte 0)"
CLOSED = frozenset({"tool_call"})


class Talk:
    """One extension without a connection, at a time that the test sets."""

    def __init__(self, *frames: dict[str, Any], **options: Any) -> None:
        self.now = 100.0
        self.peer = ExtensionPeer("g", ACK, now=self.now, **options)
        self.says(*frames)

    def says(self, *frames: dict[str, Any] | bytes) -> list[PeerEvent]:
        """Let the extension write lines."""
        lines = (frame if isinstance(frame, bytes) else json.dumps(frame).encode() for frame in frames)
        return self.peer.receive(b"".join(line + b"\n" for line in lines), self.now)

    def wait(self, seconds: float) -> list[PeerEvent]:
        """Let time pass, as a shell does: from deadline to deadline."""
        end = self.now + seconds
        peer_events: list[PeerEvent] = []
        while (deadline := self.peer.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            came = self.peer.expire(self.now)
            assert came, "a deadline at which nothing happens"
            peer_events += came
        self.now = end
        return peer_events

    def asks(self, event: wire.Intercepted = "tool_call", **about: Any) -> str:
        """Ask it to decide and return the id."""
        asked = self.peer.ask(event, self.now, **about)
        assert isinstance(asked, OutgoingRequest)
        return asked.id

    def calls(self, tool: str = "lookup") -> str:
        asked = self.peer.call_tool(tool, {}, self.now)
        assert isinstance(asked, OutgoingRequest)
        return asked.id


def guard(**subscription: Any) -> Talk:
    return Talk(HELLO, {**GUARDING, **subscription}, READY)


def reply(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "event_intercept_response", "id": call_id, **fields}


def failed_call(call_id: str, failure: str) -> ToolAnswered:
    return ToolAnswered(call_id, (TextBlock(failure),), is_error=True, failure=failure)


# How it begins.


def test_an_extension_says_hello_registers_and_is_ready() -> None:
    talk = Talk()
    hello = wire.Hello("g", "1", ("commands", "tools", "events"))
    ack = (
        b'{"type":"hello_ack","protocol_version":1,"zot_version":"0.1.0","provider":"lab","model":"lab-1",'
        b'"cwd":"/work","extension_dir":"/ext","data_dir":"/ext"}\n'
    )
    subscribe = {"type": "subscribe", "events": ["turn_end"], "intercept": ["tool_call"]}
    command, tool = wire.RegisterCommand("greet", "say hi"), wire.RegisterTool("lookup", "", OBJECT)
    assert talk.says(HELLO, GREET, LOOKUP, subscribe, READY) == [
        Greeted(hello, ack),
        CommandRegistered(command),
        ToolRegistered(tool),
        SubscribeReceived(frozenset({"turn_end"}), frozenset({"tool_call"})),
        Settled(said=True),
    ]
    assert (talk.peer.hello, talk.peer.commands, talk.peer.tools) == (hello, (command,), (tool,))
    assert talk.peer.phase.state is PeerState.READY
    assert talk.peer.next_deadline() is None


def test_it_has_thirty_seconds_for_hello_and_is_then_terminated_and_killed() -> None:
    talk = Talk()
    assert talk.peer.next_deadline() == 130.0
    assert talk.wait(29.9) == []
    late = "did not say hello within 30 s (--ext-deadline hello=SECONDS changes that)"
    assert talk.wait(0.2) == [PeerBroken(late), Terminate()]
    assert talk.wait(10) == [Kill()]
    assert talk.says(HELLO) == []
    assert talk.peer.end("was killed", talk.now) == [PeerEnded("was killed", wanted=False)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (READY, "did not say hello first, but ready"),
        (b"Hi...", f"did not say hello first, but {NOT_JSON}: Hi...; what it prints belongs on standard error"),
        ({"type": "dance"}, "did not say hello first, but wrote an unknown frame 'dance': {\"type\": \"dance\"}"),
        ({**HELLO, "name": "h"}, "says it is 'h', but its manifest says 'g'"),
        (b"x" * 5_000_000, "did not say hello first, but wrote a line of more than 4194304 bytes"),
    ],
    ids=["another frame", "text", "an unknown frame", "another name", "a long line"],
)  # fmt: skip
def test_an_extension_without_a_valid_hello_is_broken(line: Any, reason: str) -> None:
    talk = Talk()
    assert talk.says(line, HELLO) == [PeerBroken(reason), Terminate()]
    assert talk.peer.phase.state is PeerState.CLOSING


def test_it_has_three_seconds_for_ready_and_may_miss_them() -> None:
    talk = Talk(HELLO)
    assert talk.wait(2.5) == []
    talk.says(LOOKUP)
    assert talk.peer.next_deadline() == 103.0
    assert talk.wait(1) == [Settled(said=False)]
    assert talk.says(READY) == []
    assert talk.peer.phase.state is PeerState.READY


def test_an_extension_with_only_commands_and_panels_is_awaited_for_a_moment_only() -> None:
    talk = Talk({**HELLO, "capabilities": ["commands", "panels"]})
    assert talk.wait(0.2) == []
    talk.says(GREET)
    assert talk.wait(0.2) == []
    assert talk.wait(0.1) == [Settled(said=False)]
    talk = Talk({**HELLO, "capabilities": []})
    assert talk.peer.next_deadline() == 103.0


def test_late_registrations_count() -> None:
    talk = Talk(HELLO, READY)
    assert talk.says(LOOKUP) == [ToolRegistered(wire.RegisterTool("lookup", "", OBJECT))]
    assert talk.says(GUARDING) == [SubscribeReceived(frozenset(), frozenset(wire.INTERCEPTED))]


def test_a_schema_is_normalised_for_the_services_or_refused() -> None:
    talk = Talk(HELLO)
    free = {**OBJECT, "additionalProperties": True}
    assert talk.says({"type": "register_tool", "name": "a"}) == [ToolRegistered(wire.RegisterTool("a", "", free))]
    assert talk.says({"type": "register_tool", "name": "none", "schema": {"properties": {}}}) == [
        ToolRegistered(wire.RegisterTool("none", "", OBJECT))
    ]
    assert talk.says({"type": "register_tool", "name": "b", "schema": {"type": "string"}}) == [
        ProtocolViolation("register_tool: the schema of b must be of type object", notice=True)
    ]
    assert talk.says({"type": "register_tool", "name": "b", "schema": {"properties": []}}) == [
        ProtocolViolation("register_tool: the properties in the schema of b must be an object")
    ]


def test_repeated_registrations_count_once() -> None:
    talk = Talk(HELLO, GREET, LOOKUP, GUARDING)
    assert talk.says(GREET, LOOKUP, {"type": "subscribe"}, HELLO) == [
        ProtocolViolation("register_command: greet is already registered", notice=True),
        ProtocolViolation("register_tool: lookup is already registered"),
        ProtocolViolation("subscribe: it has subscribed already"),
        ProtocolViolation("said hello again"),
    ]
    assert talk.peer.decides("turn_start")


def test_registrations_are_bounded_in_number_and_size() -> None:
    talk = Talk(HELLO)
    talk.says(*({"type": "register_command", "name": f"c{n}"} for n in range(MAX_COMMANDS)))
    talk.says(*({"type": "register_tool", "name": f"t{n}"} for n in range(MAX_TOOLS)))
    assert talk.says(GREET) == [ProtocolViolation("register_command: more than 256 commands", notice=True)]
    assert talk.says(LOOKUP) == [ProtocolViolation("register_tool: more than 256 tools")]
    talk = Talk(HELLO)
    for n in range(5):
        last = talk.says({"type": "register_tool", "name": f"t{n}", "description": "x" * (MAX_BYTES // 4 - 1000)})
    assert last == [ProtocolViolation("register_tool: more than 1048576 bytes of registrations", notice=True)]


# Questions to the extension.


def test_a_tool_is_called_and_answers() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    asked = talk.peer.call_tool("lookup", {"q": "x"}, talk.now)
    assert asked == OutgoingRequest(
        "1", b'{"type":"tool_call","id":"1","name":"lookup","args":{"q":"x"}}\n', talk.now + 60
    )
    content = [{"type": "text", "text": "found"}, {"type": "image", "mime_type": "image/png", "data": "aGk="}]
    assert talk.says({"type": "tool_result", "id": "1", "content": content}) == [
        ToolAnswered("1", (TextBlock("found"), ImageBlock("image/png", b"hi")))
    ]
    assert talk.peer.next_deadline() is None


def test_a_result_is_normalised_for_the_model() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    content = [{"type": "text", "text": ""}, {"type": "image", "mime_type": "i", "data": "***"}, {"type": "video"}]
    call = talk.calls()
    assert talk.says({"type": "tool_result", "id": call, "content": content}) == [
        ToolAnswered(
            call,
            (
                TextBlock("[the data of an image from extension g is not base64]"),
                TextBlock("[unknown block type 'video' from extension g]"),
            ),
            is_error=True,
        )
    ]
    call = talk.calls()
    nothing = (TextBlock("(extension returned no content)"),)
    assert talk.says({"type": "tool_result", "id": call}) == [ToolAnswered(call, nothing)]


def test_answers_may_come_in_any_order() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    first, second = talk.calls(), talk.calls()
    answered = talk.says(*({"type": "tool_result", "id": call} for call in (second, first)))
    assert [peer_event.id for peer_event in answered if isinstance(peer_event, ToolAnswered)] == [second, first]


def test_a_command_is_invoked_and_returns_its_action() -> None:
    talk = Talk(HELLO, GREET, READY)
    asked = talk.peer.invoke_command("greet", "  me ", talk.now)
    assert asked == OutgoingRequest(
        "1", b'{"type":"command_invoked","id":"1","name":"greet","args":"me"}\n', talk.now + 30
    )
    assert talk.says({"type": "command_response", "id": "1", "action": "prompt", "prompt": "Greet me."}) == [
        CommandAnswered("1", wire.CommandResponse("1", "prompt", "Greet me."))
    ]


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        ({"action": "prompt", "prompt": " "}, "extension g answered with an empty prompt"),
        ({"action": "open_panel"}, "extension g opened a panel without content"),
    ],
)
def test_an_incomplete_action_is_a_failure(fields: dict[str, Any], failure: str) -> None:
    talk = Talk(HELLO, GREET, READY)
    talk.peer.invoke_command("greet", "", talk.now)
    assert talk.says({"type": "command_response", "id": "1", **fields}) == [
        CommandAnswered("1", wire.CommandResponse("1", error=failure), failure)
    ]


def test_its_own_error_is_an_answer() -> None:
    talk = Talk(HELLO, GREET, READY)
    talk.peer.invoke_command("greet", "", talk.now)
    assert talk.says({"type": "command_response", "id": "1", "error": "no city"}) == [
        CommandAnswered("1", wire.CommandResponse("1", error="no city"))
    ]


def test_a_call_of_an_unknown_tool_is_answered_at_once() -> None:
    talk = Talk(HELLO, READY)
    assert talk.peer.call_tool("x", {}, 0) == failed_call("1", "extension g has no tool named 'x'")
    assert talk.peer.invoke_command("x", "", 0) == CommandAnswered(
        "2",
        wire.CommandResponse("2", error="extension g has no command named 'x'"),
        "extension g has no command named 'x'",
    )
    assert talk.peer.ask("turn_start", 0) == InterceptDecision()
    assert talk.peer.next_deadline() is None


@pytest.mark.parametrize(
    ("event", "fields", "decision"),
    [
        ("tool_call", {}, InterceptDecision()),
        ("tool_call", {"block": True, "reason": "no"}, InterceptDecision(block=True, reason="no")),
        ("tool_call", {"block": True}, InterceptDecision(block=True, reason="tool call refused by extension g")),
        ("turn_start", {"block": True}, InterceptDecision(block=True, reason="turn blocked by extension g")),
        (
            "assistant_message",
            {"block": True},
            InterceptDecision(block=True, reason="message held back by extension g"),
        ),
        (
            "tool_call",
            {"modified_args": {"a": 1}, "reason": "why"},
            InterceptDecision(reason="why", modified_args={"a": 1}),
        ),
        ("tool_call", {"modified_args": {}}, InterceptDecision(modified_args={})),
        ("assistant_message", {"replace_text": "*"}, InterceptDecision(replace_text="*")),
        ("assistant_message", {"replace_text": ""}, InterceptDecision()),
        ("tool_call", {"replace_text": "*"}, InterceptDecision()),
        ("assistant_message", {"modified_args": {}}, InterceptDecision()),
        ("turn_start", {"modified_args": {}, "replace_text": "*"}, InterceptDecision()),
        (
            "tool_call",
            {"block": True, "reason": "no", "modified_args": {}, "replace_text": "*"},
            InterceptDecision(block=True, reason="no"),
        ),
    ],
)
def test_a_decision_has_the_fields_of_its_event(
    event: Any, fields: dict[str, Any], decision: InterceptDecision
) -> None:
    talk = guard()
    call = talk.asks(event)
    assert talk.says(reply(call, **fields)) == [Decided(call, decision)]


def test_a_question_has_the_fields_of_its_event() -> None:
    talk = guard()
    asked = talk.peer.ask("tool_call", talk.now, tool_id="t", tool_name="bash", tool_args={"command": "ls"})
    line = (
        b'{"type":"event_intercept","id":"1","event":"tool_call","tool_id":"t","tool_name":"bash",'
        b'"tool_args":{"command":"ls"}}\n'
    )
    assert asked == OutgoingRequest("1", line, talk.now + 5)


# When it does not answer as it should.


def test_each_kind_of_question_has_its_deadline() -> None:
    talk = Talk(HELLO, GREET, LOOKUP, GUARDING, READY)
    question, call = talk.asks(), talk.calls()
    talk.peer.invoke_command("greet", "", talk.now)
    assert talk.wait(5) == [
        RequestTimedOut("intercept", "did not answer within 5 s: intercept tool_call"),
        Decided(question, InterceptDecision(failure="extension g did not answer within 5 s: intercept tool_call")),
    ]
    late = "did not answer within 30 s: command greet"
    failure = f"extension g {late}"
    assert talk.wait(25) == [
        RequestTimedOut("command", late), CommandAnswered("3", wire.CommandResponse("3", error=failure), failure),
    ]  # fmt: skip
    late = "did not answer within 60 s: tool lookup"
    assert talk.wait(30) == [RequestTimedOut("tool", late), failed_call(call, f"extension g {late}")]
    assert talk.peer.phase.running


def test_deadlines_can_be_set() -> None:
    talk = Talk(HELLO, LOOKUP, READY, deadlines=ExtensionDeadlines(tool_s=0.5))
    call = talk.calls()
    late = "did not answer within 0.5 s: tool lookup"
    assert talk.wait(1) == [RequestTimedOut("tool", late), failed_call(call, f"extension g {late}")]


def test_late_repeated_and_invented_answers_are_only_logged() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    answered, late, aborted, waiting = (talk.calls() for _ in range(4))
    talk.says({"type": "tool_result", "id": answered})
    talk.peer.requests.give_up(aborted)
    talk.peer.requests.give_up("nothing")
    talk.now += 60
    talk.peer.expire(talk.now)
    other = talk.calls()
    assert talk.says(*({"type": "tool_result", "id": call} for call in (answered, late, aborted, "99", "x\n"))) == [
        ProtocolViolation("tool_result: the call 1 was answered already"),
        ProtocolViolation("tool_result: the call 2 had failed by then"),
        ProtocolViolation("tool_result: the call 3 was given up"),
        ProtocolViolation("tool_result: the call 99 was never asked"),
        ProtocolViolation("tool_result: the call x\\n was never asked"),
    ]
    assert waiting == "4"
    assert [type(peer_event) for peer_event in talk.says({"type": "tool_result", "id": other})] == [ToolAnswered]


def test_an_answer_of_another_kind_is_a_failure() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    call = talk.calls()
    assert talk.says({"type": "command_response", "id": call}) == [
        ProtocolViolation("answered a tool with command_response", notice=True),
        failed_call(call, "extension g answered a tool with command_response"),
    ]


def test_a_wrong_answer_fails_only_what_it_answers() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    wrong, right = talk.calls(), talk.calls()
    why = "wrote a line that is not a frame: tool_result: content must be a list, not a string"
    assert talk.says({"type": "tool_result", "id": wrong, "content": "x"}) == [
        ProtocolViolation(why + ': {"type": "tool_result", "id": "1", "content": "x"}', notice=True),
        failed_call(wrong, f"extension g {why}"),
    ]
    assert talk.says({"type": "tool_result", "id": right}) == [
        ToolAnswered(right, (TextBlock("(extension returned no content)"),))
    ]


def test_an_unknown_frame_is_ignored_unless_it_is_meant_as_an_answer() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    call = talk.calls()
    assert talk.says({"type": "sing"}) == [ProtocolViolation("unknown frame 'sing'", notice=True)]
    assert talk.says({"type": "tool_results", "id": int(call)}) == [
        ProtocolViolation('wrote an unknown frame \'tool_results\': {"type": "tool_results", "id": 1}', notice=True),
        failed_call(call, "extension g wrote an unknown frame 'tool_results'"),
    ]


@pytest.mark.parametrize(
    ("line", "why", "shown"),
    [
        (b"debug: here", NOT_JSON, ": debug: here"),
        (b'{"type":"notify","message":"\xff"}', "wrote a line that is not a frame: notify: invalid UTF-8 at byte 28",
         ': {"type":"notify","message":"�"}'),
        (b"y" * 5_000_000, "wrote a line of more than 4194304 bytes", ""),
    ],
    ids=["text", "not UTF-8", "too long"],
)  # fmt: skip
def test_an_invalid_line_fails_every_pending_call_at_once(line: bytes, why: str, shown: str) -> None:
    talk = Talk(HELLO, LOOKUP, {**GUARDING, "on_failure": "block"}, READY)
    call, question = talk.calls(), talk.asks()
    failure = f"extension g {why}"
    assert talk.says(line, {"type": "notify", "message": "still here"}) == [
        ProtocolViolation(why + shown, notice=True),
        failed_call(call, failure),
        Decided(question, InterceptDecision(block=True, reason=failure, failure=failure)),
        Notified("info", "still here"),
    ]


def test_only_the_first_harmless_fault_is_shown() -> None:
    talk = Talk(HELLO, READY)
    faults = talk.says(b"a", b"b")
    assert [fault.notice for fault in faults if isinstance(fault, ProtocolViolation)] == [True, False]


def test_too_many_bad_lines_end_the_extension() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    talk.says(*[b"text"] * (MAX_FAULTS - 1))
    call = talk.calls()
    *_, answered, broken, terminate = talk.says(*[b"text"] * 1000)
    assert isinstance(answered, ToolAnswered)
    assert answered.id == call
    assert [broken, terminate] == [PeerBroken("wrote 100 bad lines"), Terminate()]
    assert not talk.peer.phase.running
    assert talk.peer.call_tool("lookup", {}, 0) == failed_call("2", "extension g is not running")


def test_a_quoted_line_is_short_and_printable() -> None:
    talk = Talk(HELLO, READY)
    [complaint] = talk.says(b"\x1b[31m" + b"z" * 1000)
    assert isinstance(complaint, ProtocolViolation)
    assert complaint.reason.endswith("(byte 0): \\x1b[31m" + "z" * 192 + "...")
    [complaint] = talk.says({"type": "z" * 1000})
    assert isinstance(complaint, ProtocolViolation)
    assert len(complaint.reason) < 210


def test_an_extension_that_ends_fails_pending_calls_at_once() -> None:
    talk = Talk(HELLO, GREET, LOOKUP, {**GUARDING, "on_failure": "block"}, READY)
    call, question = talk.calls(), talk.asks()
    dead = "extension g was killed by signal 9"
    assert talk.peer.end("was killed by signal 9", talk.now) == [
        failed_call(call, dead),
        Decided(question, InterceptDecision(block=True, reason=dead, failure=dead)),
        PeerEnded("was killed by signal 9", wanted=False),
    ]
    assert talk.peer.end("again", talk.now) == []
    assert (talk.says(READY), talk.peer.phase.state, talk.peer.next_deadline()) == ([], PeerState.CLOSED, None)
    assert talk.peer.notify(wire.Event("turn_start")) == b""


def test_a_last_line_without_an_end_counts() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    call = talk.calls()
    talk.peer.receive(b'{"type":"tool_result","id":"1"}', talk.now)
    answered, ended = talk.peer.end("exited with 0", talk.now)
    assert answered == ToolAnswered(call, (TextBlock("(extension returned no content)"),))
    assert ended == PeerEnded("exited with 0", wanted=False)


def test_it_may_end_before_it_says_hello() -> None:
    assert Talk().peer.end("exited with 1", 0) == [PeerEnded("exited with 1 before it said hello", wanted=False)]


# Guards that hold.


def test_a_guard_fails_open_unless_it_says_otherwise() -> None:
    talk = guard()
    question = talk.asks()
    late = "did not answer within 5 s: intercept tool_call"
    assert talk.wait(5) == [
        RequestTimedOut("intercept", late), Decided(question, InterceptDecision(failure=f"extension g {late}")),
    ]  # fmt: skip
    assert talk.peer.closed == frozenset()


@pytest.mark.parametrize("answer", [{"modified_args": 5}, {"block": "yes"}], ids=str)
def test_a_guard_that_fails_closed_blocks_when_it_answers_wrongly(answer: dict[str, Any]) -> None:
    talk = guard(on_failure="block")
    question = talk.asks()
    [_, decided] = talk.says(reply(question, **answer))
    assert isinstance(decided, Decided)
    assert (decided.id, decided.decision.block, decided.decision.reason) == (question, True, decided.decision.failure)


def test_a_guard_that_fails_closed_blocks_when_it_is_too_slow_or_absent() -> None:
    talk = guard(on_failure="block")
    question = talk.asks()
    slow = "extension g did not answer within 5 s: intercept tool_call"
    [_, decided] = talk.wait(5)
    assert decided == Decided(question, InterceptDecision(block=True, reason=slow, failure=slow))
    talk.peer.end("was killed by signal 9", talk.now)
    gone = "extension g, which guards this, is not running"
    assert talk.peer.ask("tool_call", talk.now) == InterceptDecision(block=True, reason=gone, failure=gone)
    assert talk.peer.decides("tool_call")
    successor = Talk(closed=talk.peer.closed)
    assert successor.peer.ask("turn_start", 0) == InterceptDecision(block=True, reason=gone, failure=gone)


def test_tools_guarded_by_a_manifest_are_blocked_until_it_subscribes() -> None:
    talk = Talk(closed=CLOSED, fails_closed=True)
    gone = "extension g, which guards this, is not running"
    assert talk.peer.ask("tool_call", talk.now) == InterceptDecision(block=True, reason=gone, failure=gone)
    assert talk.peer.ask("turn_start", talk.now) == InterceptDecision()
    talk.says(HELLO)
    early = "extension g, which guards this, has not subscribed to tool_call"
    assert talk.peer.ask("tool_call", talk.now) == InterceptDecision(block=True, reason=early, failure=early)
    talk.says(GUARDING)
    question = talk.asks()
    assert talk.says(reply(question)) == [Decided(question, InterceptDecision())]
    assert talk.peer.closed == frozenset(wire.INTERCEPTED)


def test_a_guard_that_does_not_subscribe_as_promised_blocks() -> None:
    talk = Talk(HELLO, closed=CLOSED, fails_closed=True)
    assert talk.says({"type": "subscribe", "intercept": ["turn_start", "bogus"], "events": ["custom"]}) == [
        SubscribeReceived(frozenset(), frozenset({"turn_start"})),
        ProtocolViolation("subscribe: no such event: bogus, custom"),
        ProtocolViolation("did not subscribe to tool_call, as promised: it stays blocked", notice=True),
    ]
    decision = talk.peer.ask("tool_call", talk.now)
    assert isinstance(decision, InterceptDecision)
    assert decision.block


# Events for the extension, and its panels.


def test_it_gets_its_subscribed_events_and_none_after_shutdown() -> None:
    talk = Talk(HELLO, {"type": "subscribe", "events": ["turn_start"]}, READY)
    assert talk.peer.notify(wire.Event("turn_start", step=2)) == b'{"type":"event","event":"turn_start","step":2}\n'
    assert talk.peer.notify(wire.Event("turn_end", stop="end_turn")) == b""
    assert talk.peer.shut_down(talk.now) == b'{"type":"shutdown"}\n'
    assert talk.peer.notify(wire.Event("turn_start", step=3)) == b""
    assert talk.peer.shut_down(talk.now) == b""


def test_notices_have_one_of_four_levels() -> None:
    talk = Talk(HELLO)
    assert talk.says(*({"type": "notify", "level": level, "message": "m"} for level in ("error", "warning"))) == [
        Notified("error", "m"),
        Notified("info", "m"),
    ]


def test_a_panel_is_opened_drawn_and_closed() -> None:
    talk = Talk(HELLO, GREET, READY)
    talk.peer.invoke_command("greet", "", talk.now)
    opened = {"type": "command_response", "id": "1", "action": "open_panel", "open_panel": {"id": "p", "title": "T"}}
    render = {"type": "panel_render", "panel_id": "p", "lines": ["a"]}
    assert talk.peer.send_key("p", "up") == b""
    assert talk.says(render) == [ProtocolViolation("panel_render: no panel p is open")]
    panel = wire.Panel("p", "T")
    assert talk.says(opened) == [
        PanelOpenReceived(panel), CommandAnswered("1", wire.CommandResponse("1", "open_panel", open_panel=panel)),
    ]  # fmt: skip
    assert "p" in talk.peer.panels
    assert talk.peer.send_key("p", "rune", "x") == b'{"type":"panel_key","panel_id":"p","key":"rune","text":"x"}\n'
    assert talk.says(render) == [PanelRenderReceived(wire.PanelRender("p", lines=("a",)))]
    assert talk.says({"type": "panel_close", "panel_id": "p"}) == [PanelCloseReceived("p")]
    assert talk.says({"type": "panel_close", "panel_id": "p"}) == [ProtocolViolation("panel_close: no panel p is open")]
    assert talk.peer.panels == ()


def test_a_person_may_close_a_panel_and_its_owner_s_end_closes_it() -> None:
    talk = Talk(HELLO, GREET, READY)
    for panel_id in "ab":
        asked = talk.peer.invoke_command("greet", "", talk.now)
        panel = {"type": "command_response", "action": "open_panel", "open_panel": {"id": panel_id}}
        talk.says({**panel, "id": asked.id})
    assert talk.peer.close_panel("a") == b'{"type":"panel_close","panel_id":"a"}\n'
    assert talk.peer.close_panel("a") == b""
    assert talk.peer.end("exited with 0", 0) == [PanelCloseReceived("b"), PeerEnded("exited with 0", wanted=False)]


# How it ends.


def test_it_shuts_down_on_request() -> None:
    talk = Talk(HELLO, LOOKUP, READY)
    call = talk.calls()
    assert talk.peer.shut_down(talk.now) == b'{"type":"shutdown"}\n'
    assert talk.says({"type": "tool_result", "id": call}, GREET, {"type": "shutdown_ack"}) == [
        ToolAnswered(call, (TextBlock("(extension returned no content)"),)),
        Acknowledged(),
    ]
    assert talk.peer.end("exited with 0", talk.now) == [PeerEnded("exited with 0", wanted=True)]


def test_an_extension_that_ignores_shutdown_is_terminated_after_two_seconds_and_killed_after_three() -> None:
    talk = Talk(HELLO, READY)
    talk.peer.shut_down(talk.now)
    assert talk.wait(1.9) == []
    assert talk.wait(0.2) == [Terminate()]
    assert talk.wait(0.8) == []
    assert talk.wait(0.2) == [Kill()]
    assert talk.peer.next_deadline() is None
    told = "was killed by signal 9: it did not end within 2 s of shutdown"
    assert talk.peer.end("was killed by signal 9", talk.now) == [PeerEnded(told, wanted=True)]


def test_a_line_cut_off_by_its_end_is_not_a_fault() -> None:
    talk = Talk(HELLO, READY)
    talk.peer.shut_down(talk.now)
    talk.wait(2.1)
    assert talk.peer.receive(b'{"type":"noti', talk.now) == []
    told = "was killed by signal 15: it did not end within 2 s of shutdown"
    assert talk.peer.end("was killed by signal 15", talk.now) == [PeerEnded(told, wanted=True)]


def test_a_starting_extension_can_be_shut_down() -> None:
    talk = Talk()
    assert talk.peer.shut_down(talk.now) == b'{"type":"shutdown"}\n'
    assert talk.says(HELLO, READY, GUARDING) == []
    assert talk.says({"type": "shutdown_ack"}) == [Acknowledged()]


def test_an_unexpected_acknowledgement_is_logged() -> None:
    assert Talk(HELLO).says({"type": "shutdown_ack"}) == [
        ProtocolViolation("acknowledged a shutdown that was not requested")
    ]


# However the bytes come.

LINES = st.sampled_from(
    [json.dumps(frame).encode() for frame in (GREET, LOOKUP, READY, GUARDING, {"type": "tool_result", "id": "1"})]
    + [b"text", b"", b'{"type":"notify","message":"\xe2\x80\xa8"}', b"\xff", b'{"type":"dance"}', b"z" * 300]
)


@given(lines=st.lists(LINES, max_size=12), data=st.data())
@settings(max_examples=60)
def test_chunks_make_no_difference(lines: list[bytes], data: st.DataObject) -> None:
    stream = json.dumps(HELLO).encode() + b"\n" + b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    bytewise = [stream[at : at + 1] for at in range(len(stream))]
    assert peer_events(chunks) == peer_events(bytewise) == peer_events([stream])


def peer_events(chunks: list[bytes]) -> list[PeerEvent]:
    peer = ExtensionPeer("g", ACK, now=0, max_line_bytes=200)
    return [peer_event for chunk in chunks for peer_event in peer.receive(chunk, 0)] + peer.end("exited with 0", 0)


@given(lines=st.lists(st.binary(max_size=40) | LINES, max_size=20))
@settings(max_examples=60)
def test_every_question_gets_exactly_one_answer_whatever_the_extension_writes(lines: list[bytes]) -> None:
    talk = Talk(HELLO, LOOKUP, {**GUARDING, "on_failure": "block"}, READY)
    asked = [talk.calls(), talk.asks(), talk.calls()]
    came = [*talk.says(*lines), *talk.wait(100), *talk.peer.end("exited with 0", talk.now)]
    answered = [peer_event.id for peer_event in came if isinstance(peer_event, ToolAnswered | Decided)]
    assert sorted(answered) == sorted(asked)
    assert came[-1] == PeerEnded("exited with 0", wanted=False)
