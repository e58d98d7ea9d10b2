"""Requirements of the protocol's public compatibility kit (acp-tck, version 1), each by the kit's own name.

ACP-ADDDIRS-001 does not apply: zot does not advertise `additionalDirectories`.
`Editor` checks every frame against the protocol's models: ACP-SCHEMA-001 and -002 hold in every test of `zot acp`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from editor import Editor, Frame, of_kind, said, updates

Start: TypeAlias = Callable[..., Editor]
Requirement: TypeAlias = Callable[[Editor], None]
REQUIREMENTS: dict[str, Requirement] = {}
STOPS = {"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"}
PIXEL = base64.b64encode(
    base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
).decode()
HISTORY = ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk")


def shows(*names: str) -> Callable[[Requirement], Requirement]:
    """Register a conversation that shows these requirements."""

    def register(conversation: Requirement) -> Requirement:
        REQUIREMENTS.update(dict.fromkeys(names, conversation))
        return conversation

    return register


@pytest.mark.parametrize("name", [
    "ACP-TRANSPORT-001", "ACP-TRANSPORT-002",
    "ACP-JSONRPC-001", "ACP-JSONRPC-002", "ACP-JSONRPC-003", "ACP-JSONRPC-004", "ACP-JSONRPC-005",
    "ACP-INIT-001", "ACP-INIT-002", "ACP-INIT-003", "ACP-INIT-004", "ACP-SCHEMA-001", "ACP-SCHEMA-002",
    "ACP-SESSION-001", "ACP-SESSION-002", "ACP-PROMPT-001", "ACP-PROMPT-002", "ACP-PROMPT-003",
    "ACP-CANCEL-001", "ACP-CANCEL-002", "ACP-LOAD-001", "ACP-LOAD-002", "ACP-LOAD-003",
    "ACP-RESUME-001", "ACP-RESUME-002", "ACP-LIST-001", "ACP-LIST-002", "ACP-DELETE-001", "ACP-DELETE-002",
    "ACP-CLOSE-001", "ACP-CLOSE-002", "ACP-MODES-001", "ACP-MODES-002",
    "ACP-CONFIG-001", "ACP-CONFIG-002", "ACP-CONFIG-003", "ACP-PROMPTCAP-001", "ACP-PROMPTCAP-002", "ACP-PROMPTCAP-003",
    "ACP-AUTH-001", "ACP-AUTH-002", "ACP-AUTH-003", "ACP-AUTH-004", "ACP-AUTH-005",
    "ACP-CLIENTCAP-001", "ACP-CLIENTCAP-002", "ACP-CLIENTCAP-003", "ACP-EXT-001", "ACP-META-001", "ACP-ERROR-001",
    "ACP-SHUTDOWN-001", "ACP-INFO-PARSE-001", "ACP-INFO-INVALIDREQ-001", "ACP-INFO-UNKNOWNSESSION-001",
    "ACP-STDERR-001",
])  # fmt: skip
def test_requirement(editors: Start, name: str) -> None:
    editor = editors()
    REQUIREMENTS[name](editor)
    assert [frame for frame in editor.leave() if "method" not in frame] == []


def raw(editor: Editor, frame: Frame) -> Any:
    """Return the answer to a frame that is sent as it is."""
    editor.send(frame)
    return json.loads(editor.read_line())


def block(kind: str, **more: Any) -> list[Frame]:
    """Return the content of a prompt: text and another block."""
    return [{"type": "text", "text": "!echo hello"}, {"type": kind, **more}]


def later_updates(editor: Editor, act: Callable[[], object]) -> list[Frame]:
    """Return the updates after ``act``, until another request is answered."""
    act()
    before = len(editor.frames)
    for _ in range(3):
        editor.call("session/list")
    return updates(editor.frames[before:])


@shows("ACP-TRANSPORT-001", "ACP-TRANSPORT-002", "ACP-PROMPT-001", "ACP-SCHEMA-001", "ACP-SCHEMA-002")
def one_json_object_a_line_in_utf_8(editor: Editor) -> None:
    stop, found = editor.prompt(editor.new(), "!echo grüße ☕")
    assert stop in STOPS
    assert said(found) == "grüße ☕"


@shows("ACP-JSONRPC-001", "ACP-JSONRPC-002", "ACP-JSONRPC-004", "ACP-JSONRPC-005", "ACP-EXT-001", "ACP-ERROR-001")
def every_request_has_one_answer_with_its_id(editor: Editor) -> None:
    editor.initialize()
    for number in (7, "seven", 0, -1, "1"):
        answer = raw(editor, {"jsonrpc": "2.0", "id": number, "method": "_kit/unknown", "params": {}})
        assert (answer["id"], answer["error"]["code"], "result" in answer) == (number, -32601, False)
        assert answer["error"]["message"]
        assert "\n" not in answer["error"]["message"]
    assert editor.call("session/list")["sessions"] == []


@shows("ACP-JSONRPC-003")
def a_notification_has_no_answer(editor: Editor) -> None:
    session = editor.new()
    editor.tell("session/cancel", sessionId=session)
    editor.tell("session/cancel", sessionId="unknown")
    editor.tell("_kit/unknown")
    before = len(editor.frames)
    number = editor.ask_for("session/list")
    editor.answer_of(number)
    assert [frame["id"] for frame in editor.frames[before:] if "id" in frame] == [number]


@shows("ACP-INIT-001", "ACP-INIT-002", "ACP-INIT-003", "ACP-INIT-004")
def the_version_is_negotiated(editor: Editor) -> None:
    for version in (1, 65535):
        info = {"name": "kit", "version": "1"}
        found = editor.call("initialize", protocolVersion=version, clientCapabilities={}, info=info)
        assert found["protocolVersion"] == 1
        assert found["agentInfo"]["name"] == "zot"
        assert found["agentInfo"]["version"]


@shows("ACP-SESSION-001", "ACP-SESSION-002", "ACP-AUTH-005")
def sessions_have_ids_of_their_own_and_need_no_authentication_with_a_key(editor: Editor) -> None:
    first, second = editor.new(), editor.new()
    assert first
    assert second
    assert first != second


@shows("ACP-PROMPT-002", "ACP-CLIENTCAP-001", "ACP-CLIENTCAP-002", "ACP-CLIENTCAP-003")
def a_turn_sends_updates_of_its_session_and_calls_nothing_that_the_client_lacks(editor: Editor) -> None:
    session = editor.new()
    for text in ("!write a.txt one", "!edit a.txt one two", "!read a.txt", "!bash true"):
        assert editor.prompt(session, text)[0] == "end_turn"
    assert {frame["method"] for frame in editor.frames if "method" in frame} == {"session/update"}
    assert {frame["params"]["sessionId"] for frame in editor.frames if "method" in frame} == {session}


@shows("ACP-PROMPT-003", "ACP-PROMPTCAP-001", "ACP-PROMPTCAP-002", "ACP-PROMPTCAP-003", "ACP-META-001")
def prompts_may_have_every_content_that_is_advertised(editor: Editor) -> None:
    offered = editor.initialize()["agentCapabilities"]["promptCapabilities"]
    assert offered == {"image": True, "audio": False, "embeddedContext": True}
    session = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[])["sessionId"]
    meta = {"traceparent": "00-80e1afed08e019fc1110464cfa66635c-7a085853722dc6d2-01"}
    for more in (
        block("resource_link", uri="file:///a.txt", name="a.txt"),
        block("image", data=PIXEL, mimeType="image/png"),
        block("resource", resource={"uri": "file:///a.txt", "text": "text"}),
        block("resource", resource={"uri": "file:///a.bin", "blob": "AAAA"}),
    ):
        assert editor.call("session/prompt", sessionId=session, prompt=more, _meta=meta)["stopReason"] == "end_turn"


@shows("ACP-CANCEL-001", "ACP-CANCEL-002")
def a_cancelled_turn_ends_with_that_reason_and_nothing_follows(editor: Editor) -> None:
    session = editor.new()
    number = editor.start(session, "!stall-mid")
    while not said(updates(editor.frames)):
        editor.read()
    editor.tell("session/cancel", sessionId=session)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert later_updates(editor, lambda: None) == []


@shows("ACP-LOAD-001", "ACP-LOAD-002", "ACP-LOAD-003")
def a_load_replays_before_its_answer_and_nothing_follows(editor: Editor) -> None:
    session = editor.new()
    editor.prompt(session, "!script think hm ;; say hello")
    before = len(editor.frames)

    def load() -> None:
        assert editor.call("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=[])["configOptions"]

    assert later_updates(editor, load) == []
    replayed = updates(editor.frames[before:])
    assert [one["sessionUpdate"] for one in replayed if one["sessionUpdate"] in HISTORY] == [
        "user_message_chunk",
        "agent_thought_chunk",
        "agent_message_chunk",
    ]
    assert of_kind(replayed, "available_commands_update")


@shows("ACP-RESUME-001", "ACP-RESUME-002")
def a_resumed_session_is_not_replayed(editor: Editor) -> None:
    session = editor.new()
    editor.prompt(session, "!echo hello")
    before = len(editor.frames)
    assert editor.call("session/resume", sessionId=session, cwd=str(editor.cwd))["configOptions"]
    assert [one for one in updates(editor.frames[before:]) if one["sessionUpdate"] in HISTORY] == []


@shows("ACP-STDERR-001")
def a_turn_writes_nothing_to_standard_error(editor: Editor) -> None:
    assert editor.prompt(editor.new(), "!bash echo hello; echo there >&2")[0] == "end_turn"
    editor.hang_up()
    assert editor.wait() == 0
    assert editor.errors() == ""


@shows("ACP-LIST-001", "ACP-LIST-002", "ACP-DELETE-001", "ACP-DELETE-002")
def sessions_are_listed_and_deleted(editor: Editor) -> None:
    session = editor.new()
    editor.prompt(session, "!echo hello")
    assert [one["sessionId"] for one in editor.call("session/list")["sessions"]] == [session]
    assert editor.call("session/list", cwd="/nowhere/at/all") == {"sessions": []}
    for one in (session, session, "never-created"):
        assert editor.call("session/delete", sessionId=one) == {}
    assert editor.call("session/list") == {"sessions": []}


@shows("ACP-CLOSE-001", "ACP-CLOSE-002")
def closing_a_session_cancels_its_turn(editor: Editor) -> None:
    session = editor.new()
    assert editor.call("session/close", sessionId=session) == {}
    session = editor.new()
    number = editor.start(session, "!stall-mid")
    while not said(updates(editor.frames)):
        editor.read()
    closing = editor.ask_for("session/close", sessionId=session)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert editor.answer_of(closing)["result"] == {}


@shows("ACP-MODES-001", "ACP-MODES-002", "ACP-CONFIG-001", "ACP-CONFIG-002", "ACP-CONFIG-003")
def modes_and_options_are_complete(editor: Editor) -> None:
    editor.initialize()
    made = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[])
    session, modes = made["sessionId"], made["modes"]
    assert modes["currentModeId"] in [one["id"] for one in modes["availableModes"]]
    assert editor.call("session/set_mode", sessionId=session, modeId="ask") == {}
    for option in made["configOptions"]:
        assert option["type"] == "select"
        values = [one["value"] for one in option["options"]]
        assert option["currentValue"] in values
        chosen = {"sessionId": session, "configId": option["id"], "value": values[-1]}
        now = editor.call("session/set_config_option", **chosen)["configOptions"]
        assert [one["id"] for one in now] == [one["id"] for one in made["configOptions"]]
        assert {one["id"]: one["currentValue"] for one in now}[option["id"]] == values[-1]


@shows("ACP-AUTH-001", "ACP-AUTH-002", "ACP-AUTH-003", "ACP-AUTH-004")
def authentication_methods_fit_the_client(editor: Editor) -> None:
    methods = editor.initialize()["authMethods"]
    assert [one["id"] for one in methods] == ["environment"]
    assert {one["id"] for one in editor.initialize(auth={"terminal": True})["authMethods"]} == {
        "environment",
        "terminal",
    }
    assert editor.call("authenticate", methodId="environment") == {}
    assert editor.call("session/new", cwd=str(editor.cwd), mcpServers=[])["sessionId"]
    assert editor.call("logout") == {}


@shows("ACP-SHUTDOWN-001", "ACP-INFO-PARSE-001", "ACP-INFO-INVALIDREQ-001", "ACP-INFO-UNKNOWNSESSION-001")
def junk_costs_only_itself_and_the_end_of_the_input_ends_the_process(editor: Editor) -> None:
    session = editor.new()
    before = len(editor.frames)
    for line in (b"no json", b'{"foo": "bar"}'):
        editor.send(line)
    assert editor.answer_of(editor.start("unknown", "!echo hello"))["error"]["code"] == -32002
    assert [one["error"]["code"] for one in editor.frames[before:] if "error" in one] == [-32700, -32600, -32002]
    assert editor.prompt(session, "!echo hello")[0] == "end_turn"
