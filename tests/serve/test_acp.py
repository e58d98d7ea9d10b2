"""Conversations of an editor with the real `zot acp`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from editor import Editor, Frame, of_kind, said, updates
from harness import PATIENCE_S, at_rest, environment, eventually
from mcp_client.web_server import threaded_web_server
from zot.journal.journal import Journal

if TYPE_CHECKING:
    from acp import schema

Start: TypeAlias = Callable[..., Editor]
#: An MCP server with the tool `add`.
SERVER = Path(__file__).parent.parent / "mcp_client" / "peer.py"
#: One that asks the user during a call.
ASKING_SERVER = Path(__file__).parent.parent / "mcp_client" / "server.py"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

# Start and version.


@pytest.mark.parametrize("version", [0, 1, 2, 99, "1"])  # It was a text before version 1.
def test_every_client_gets_version_one(editors: Start, version: int | str) -> None:
    editor = editors()
    result = editor.call("initialize", protocolVersion=version, clientCapabilities={"later": [1]})
    assert result["protocolVersion"] == 1
    assert result["agentInfo"]["name"] == "zot"
    assert [one["id"] for one in result["authMethods"]] == ["environment"]
    assert editor.leave() == []


def test_initialize_works_without_a_key_and_a_session_needs_one(editors: Start) -> None:
    editor = editors("--provider", "anthropic")
    methods = editor.initialize(auth={"terminal": True})["authMethods"]
    assert [(one["id"], one.get("args")) for one in methods] == [("environment", None), ("terminal", ["--login"])]
    error = editor.refused("session/new", cwd=str(editor.cwd), mcpServers=[])
    assert error["code"] == -32000
    assert "ANTHROPIC_API_KEY" in error["message"]
    assert editor.refused("authenticate", methodId="environment")["code"] == -32000
    assert editor.refused("authenticate", methodId="terminal")["code"] == -32602
    editor.leave()


def test_authenticate_succeeds_with_a_key(editors: Start) -> None:
    editor = editors("--provider", "anthropic", env={"ANTHROPIC_API_KEY": "k"})
    editor.initialize()
    assert editor.call("authenticate", methodId="environment") == {}


def test_logout_removes_the_stored_key(editors: Start, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    stored = tmp_path / "home" / "auth.json"
    stored.write_text('{"anthropic":{"key":"k"},"openai":{"key":"other"}}')
    stored.chmod(0o600)
    editor = editors("--provider", "anthropic")
    assert editor.initialize()["agentCapabilities"]["auth"] == {"logout": {}}
    assert editor.call("authenticate", methodId="environment") == {}
    assert editor.call("logout") == {}
    assert editor.call("logout") == {}
    assert editor.refused("authenticate", methodId="environment")["code"] == -32000
    assert json.loads(stored.read_text()).keys() == {"openai"}


def test_methods_before_initialize_and_unknown_ones_are_refused(editors: Start) -> None:
    editor = editors()
    assert editor.refused("session/new", cwd="/", mcpServers=[])["code"] == -32600
    assert editor.refused("initialize", protocolVersion=[1])["code"] == -32602
    editor.initialize()
    assert editor.refused("session/shout")["code"] == -32601
    editor.tell("session/shout")
    editor.tell("session/cancel", sessionId="none")
    assert editor.refused("session/prompt", sessionId="none", prompt=[])["code"] == -32002
    assert editor.refused("session/prompt", sessionId=1)["code"] == -32602
    editor.send(b"ls", b"[]", b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert [editor.read()["error"]["code"] for _ in range(2)] == [-32700, -32600]
    assert editor.leave() == []


def test_a_line_that_is_too_long_costs_only_itself(editors: Start) -> None:
    editor = editors("--max-line-bytes", "2000")
    editor.send(b'"' + b"x" * 5000 + b'"')
    assert editor.read()["error"]["data"] == {"reason": "frame_too_large", "limitBytes": 2000}
    editor.initialize()


@pytest.mark.parametrize("cwd", ["relative", "/nowhere/at/all", "", "/etc/passwd"])
def test_the_directory_must_be_absolute_and_exist(editors: Start, cwd: str) -> None:
    editor = editors()
    editor.initialize()
    assert editor.refused("session/new", cwd=cwd, mcpServers=[])["code"] == -32602
    assert editor.refused("session/load", cwd=cwd, mcpServers=[], sessionId="s")["code"] == -32602


def test_mcp_servers_of_the_client_are_used(editors: Start) -> None:
    editor = editors()
    editor.initialize()
    server = {"name": "My server!", "command": sys.executable, "args": [str(SERVER)], "env": []}
    session = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[server])["sessionId"]
    assert "42" in until_completed(editor, session, "mcp__My-server__add", a=40, b=2)


def until_completed(editor: Editor, session: str, tool: str, **arguments: Any) -> str:
    """Call a tool until it is known, which is once its server runs; return the text of its result."""
    for _ in range(200):
        _, found = editor.prompt(session, f"!script call {tool} {json.dumps(arguments)} ;; --- ;; say done")
        end = of_kind(found, "tool_call_update")[-1]
        if end["status"] == "completed":
            return str(end["content"][0]["content"]["text"])
        editor.prompt(session, "!bash sleep 0.05")
    raise AssertionError(f"{tool} did not become known")


def test_an_mcp_server_of_the_client_over_http_is_used_without_expanding_variables(editors: Start) -> None:
    editor = editors()
    assert editor.initialize()["agentCapabilities"]["mcpCapabilities"] == {"http": True, "sse": False}
    with threaded_web_server("new", "json") as web:
        headers = [{"name": "X-Own", "value": "${ZOT_HOME}"}]
        server = {"type": "http", "name": "web", "url": web.url, "headers": headers}
        session = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[server])["sessionId"]
        assert "you said hi" in until_completed(editor, session, "mcp__web__echo", text="hi")
        assert {headers["x-own"] for _, _, headers, _ in web.requests} == {"${ZOT_HOME}"}
        editor.call("session/close", sessionId=session)


def test_prompts_of_mcp_servers_are_commands(editors: Start) -> None:
    editor = editors("--mcp", f"s={sys.executable} {ASKING_SERVER} rich")
    session = editor.new()
    editor.prompt(session, "!script say hi")
    while not any(
        {"name": "s:review", "description": "Look", "input": {"hint": "arguments"}} in one["availableCommands"]
        for one in of_kind(updates(editor.frames), "available_commands_update")
    ):
        editor.read()
    assert editor.prompt(session, "/s:review tests")[0] == "end_turn"
    editor.frames.clear()
    editor.call("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    prompts = [one["content"]["text"] for one in of_kind(updates(editor.frames), "user_message_chunk")]
    assert prompts == ["!script say hi", "Review {'what': 'tests'}"]


@pytest.mark.parametrize(
    "server",
    [
        {"type": "sse", "name": "x", "url": "http://127.0.0.1:1/", "headers": []},
        {"type": "http", "name": "x", "url": "file:///etc/passwd", "headers": []},
        {"type": "http", "name": "x", "url": "http://127.0.0.1:1/", "headers": [{"name": "a", "value": "b\r\nc: d"}]},
        {"name": "x", "command": "", "args": [], "env": []},
        {"name": "x", "command": "a\0b", "args": [], "env": []},
        {"name": "x", "command": 1},
        {"name": "x", "command": "a", "args": [], "env": [{"name": "", "value": "b"}]},
        {"name": "x", "command": "a", "args": [], "env": [{"name": "A=", "value": "b"}]},
        {"name": "x", "command": "a", "args": [], "env": [{"name": "A\0", "value": "b"}]},
        {"name": "x", "command": "a", "args": [], "env": [{"name": "A", "value": "b\0"}]},
    ],
)
def test_an_mcp_server_that_cannot_be_used_is_refused(editors: Start, server: Frame) -> None:
    editor = editors()
    editor.initialize()
    error = editor.refused("session/new", cwd=str(editor.cwd), mcpServers=[server])
    assert error["code"] == -32602
    assert "mcpServers" in error["message"]


# Prompts.


def test_pieces_of_a_message_share_an_id_that_no_other_message_has(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    script = '!script think hm ;; say a ;; wait 20ms ;; say b ;; call bash {"command": "true"} ;; --- ;; say c'
    for _ in range(2):
        editor.prompt(session, script)
    shown = [one for one in updates(editor.frames) if "messageId" in one]
    texts: dict[str, str] = {}
    for one in shown:
        texts[one["messageId"]] = texts.get(one["messageId"], "") + one["content"]["text"]
    assert [*texts.values()] == ["hm", "ab", "c"] * 2
    editor.frames.clear()
    editor.call("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    again = [one["messageId"] for one in updates(editor.frames) if one["sessionUpdate"].endswith("_chunk")]
    assert len(again) == len({*again, *texts}) - len(texts) == 8


def test_thoughts_and_text_come_in_chunks_and_the_stop_reason_last(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    stop, found = editor.prompt(
        session, "!script think hm ;; say 'Hello ' 'there' ;; usage input=100 output=20 cache_read=3 cache_write=4"
    )
    assert stop == "end_turn"
    assert said(found, "agent_thought_chunk") == "hm"
    assert said(found) == "Hello there"
    assert of_kind(found, "session_info_update")[0]["title"].startswith("!script think")
    [usage] = of_kind(found, "usage_update")
    assert (usage["used"], usage["cost"]["currency"]) == (127, "USD")
    assert "result" in editor.frames[-1]
    assert editor.leave() == []


def test_the_answer_to_new_comes_before_any_update(editors: Start) -> None:
    editor = editors()
    editor.new()
    assert ["method" in frame for frame in editor.frames] == [False, False]


def test_a_command_is_a_card_with_the_whole_command_and_live_output(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    command = "echo first; read line < fifo; echo '```' $line " + "x" * 300
    os.mkfifo(editor.cwd / "fifo")
    number = editor.start(session, f"!bash {command}")
    while not (live := of_kind(updates(editor.frames), "tool_call_update")):
        editor.read()
    [card] = of_kind(updates(editor.frames), "tool_call")
    assert (card["title"], card["kind"], card["rawInput"]) == (command, "execute", {"command": command})
    assert live[0]["status"] == "in_progress"
    assert "first" in live[0]["content"][0]["content"]["text"]
    (editor.cwd / "fifo").write_text("second\n")
    editor.answer_of(number)
    last = of_kind(updates(editor.frames), "tool_call_update")[-1]
    assert (last["toolCallId"], last["status"]) == (card["toolCallId"], "completed")
    assert last["content"][0]["content"]["text"].startswith("````\n")


def test_changes_of_files_are_diffs(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    path = str(editor.cwd / "a.txt")
    _, found = editor.prompt(session, "!write a.txt one")
    [card] = of_kind(found, "tool_call")
    assert (card["kind"], card["title"], card["locations"]) == ("edit", "write a.txt", [{"path": path}])
    assert card["content"] == [{"type": "diff", "path": path, "newText": "one"}]
    assert "content" not in of_kind(found, "tool_call_update")[-1]
    _, found = editor.prompt(session, "!write a.txt two")
    assert of_kind(found, "tool_call")[0]["content"][0]["oldText"] == "one"
    _, found = editor.prompt(session, "!edit a.txt two three")
    assert of_kind(found, "tool_call")[0]["content"] == [
        {"type": "diff", "path": path, "oldText": "two", "newText": "three"}
    ]
    assert (editor.cwd / "a.txt").read_text() == "three"
    _, found = editor.prompt(session, "!edit a.txt nothing x")
    failed = of_kind(found, "tool_call_update")[-1]
    assert failed["status"] == "failed"
    assert failed["content"][0]["type"] == "content"


def test_read_names_its_line(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    (editor.cwd / "a.txt").write_text("1\n2\n3\n")
    _, found = editor.prompt(session, '!script call read {"path":"a.txt","offset":2} ;; --- ;; say done')
    [card] = of_kind(found, "tool_call")
    assert (card["kind"], card["locations"]) == ("read", [{"path": str(editor.cwd / "a.txt"), "line": 2}])


@pytest.mark.parametrize(
    ("text", "flags", "stop"),
    [
        ("!length", (), "max_tokens"),
        ("!refusal", (), "refusal"),
        ("!loop true", ("--max-steps", "2"), "max_turn_requests"),
    ],
)
def test_stop_reasons(editors: Start, text: str, flags: tuple[str, ...], stop: str) -> None:
    editor = editors(*flags)
    assert editor.prompt(editor.new(), text)[0] == stop


def test_a_failed_run_is_answered_with_one_error(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    assert editor.answer_of(editor.start(session, "!status 400"))["error"]["code"] == -32603
    assert editor.answer_of(editor.start(session, "!status 401"))["error"]["code"] == -32000
    assert editor.answer_of(editor.start(session, "  "))["error"]["code"] == -32602
    assert editor.prompt(session, "!echo still here")[0] == "end_turn"
    assert editor.leave() == []


def test_cancel_ends_the_run_and_the_queue_with_one_answer_each(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    first = editor.start(session, "!stall-mid")
    second, third = editor.start(session, "!echo two"), editor.start(session, "!echo three")
    while not said(updates(editor.frames)):
        editor.read()
    editor.tell("session/cancel", sessionId=session)
    stops: dict[int, str] = {}
    while len(stops) < 3:
        frame = editor.read()
        if "result" in frame:
            stops[frame["id"]] = frame["result"]["stopReason"]
    assert stops == dict.fromkeys((first, second, third), "cancelled")
    editor.tell("session/cancel", sessionId=session)
    assert editor.prompt(session, "!echo four")[0] == "end_turn"
    assert editor.leave() == []


def test_prompts_queue_and_run_in_order(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    numbers = [editor.start(session, f"!echo {word}") for word in ("one", "two", "three")]
    answers = [editor.answer_of(number)["result"]["stopReason"] for number in numbers]
    assert answers == ["end_turn"] * 3
    assert said(updates(editor.frames)) == "onetwothree"


def test_cancelling_a_request_ends_that_prompt_alone(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    first, second = editor.start(session, "!stall-mid"), editor.start(session, "!echo two")
    third = editor.start(session, "!echo three")
    while not said(updates(editor.frames)):
        editor.read()
    editor.tell("$/cancel_request", requestId=third)
    assert editor.answer_of(third)["result"]["stopReason"] == "cancelled"
    editor.tell("$/cancel_request", requestId=first)
    assert editor.answer_of(first)["result"]["stopReason"] == "cancelled"
    assert editor.answer_of(second)["result"]["stopReason"] == "end_turn"
    editor.tell("$/cancel_request", requestId=first)
    assert editor.leave() == []


def test_a_prompt_can_steer_the_running_one(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    os.mkfifo(editor.cwd / "fifo")
    first = editor.start(session, "!bash read line < fifo")
    while not of_kind(updates(editor.frames), "tool_call"):
        editor.read()
    second = editor.start(session, "!echo steered", _meta={"zot": {"steer": True}})
    editor.call("session/list")  # Now the message waits for the end of the tool call.
    with open(editor.cwd / "fifo", "w") as fifo:
        fifo.write("go\n")
    assert [editor.answer_of(number)["result"]["stopReason"] for number in (first, second)] == ["end_turn"] * 2
    assert "steered" in said(updates(editor.frames))
    assert not of_kind(updates(editor.frames), "user_message_chunk")  # The editor shows its own messages.


@pytest.mark.parametrize("is_taken", [False, True])
def test_cancelling_a_message_that_steers_leaves_the_run(editors: Start, is_taken: bool) -> None:
    cancel_a_message_that_steers(editors(), is_taken=is_taken)


def cancel_a_message_that_steers(editor: Editor, *, is_taken: bool) -> None:
    """Cancel a message before or after the run has it: the run of the first prompt ends as it would without."""
    session = editor.new()
    os.mkfifo(editor.cwd / "first")
    os.mkfifo(editor.cwd / "second")
    first = editor.start(session, "!bash read line < first; echo heard")
    while not of_kind(updates(editor.frames), "tool_call"):
        editor.read()
    second = editor.start(session, "!bash read line < second; echo steered", _meta={"zot": {"steer": True}})
    editor.call("session/list")
    if is_taken:
        (editor.cwd / "first").write_text("go\n")
        while len(of_kind(updates(editor.frames), "tool_call")) < 2:
            editor.read()
    editor.tell("$/cancel_request", requestId=second)
    assert editor.answer_of(second)["result"]["stopReason"] == "cancelled"
    (editor.cwd / ("second" if is_taken else "first")).write_text("go\n")
    assert editor.answer_of(first)["result"]["stopReason"] == "end_turn"
    outputs = str([one for one in of_kind(updates(editor.frames), "tool_call_update") if one["status"] == "completed"])
    assert "heard" in outputs
    assert ("steered" in outputs) == is_taken
    assert not of_kind(updates(editor.frames), "user_message_chunk")
    assert editor.prompt(session, "!echo next")[0] == "end_turn"
    assert editor.leave() == []


def test_a_prompt_is_cancelled_while_it_waits_for_a_setting(editors: Start) -> None:
    cancel_a_held_prompt(editors())


def cancel_a_held_prompt(editor: Editor) -> None:
    """Cancel a prompt while the request before it is answered; a request with the id of either is refused."""
    session = editor.new()

    def frame(number: str, method: str, **params: Any) -> Frame:
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": {"sessionId": session, **params}}

    def prompt(number: str, text: str) -> Frame:
        return frame(number, "session/prompt", prompt=[{"type": "text", "text": text}])

    lines = [
        frame("o", "session/set_config_option", configId="reasoning", value="high"),
        prompt("p", "!echo unwanted"),
        prompt("o", "!echo twice"),
        prompt("p", "!echo twice"),
        {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "p"}},
        prompt("q", "!echo wanted"),
    ]
    editor.send(b"\n".join(json.dumps(one).encode() for one in lines))
    answers: list[tuple[str, Any]] = []
    while ("q", "end_turn") not in answers:
        found = json.loads(editor.read_line())
        if "method" not in found:
            result = found.get("result", {})
            answers.append((found["id"], found.get("error", {}).get("code") or result.get("stopReason", "set")))
        else:
            editor.frames.append(found)
    assert {*answers} == {("o", "set"), ("o", -32600), ("p", -32600), ("p", "cancelled"), ("q", "end_turn")}
    assert len(answers) == 5
    assert said(updates(editor.frames)) == "wanted"
    assert editor.leave() == []


def test_two_sessions_run_side_by_side(editors: Start) -> None:
    editor = editors()
    one = editor.new()
    other = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[])["sessionId"]
    stalled = editor.start(one, "!stall-mid")
    assert editor.prompt(other, "!echo free")[0] == "end_turn"
    editor.tell("session/cancel", sessionId=one)
    assert editor.answer_of(stalled)["result"]["stopReason"] == "cancelled"


def test_titles_show_control_characters(editors: Start) -> None:
    editor = editors()
    editor.prompt(editor.new(), "!echo \x1b[2Jhello")
    [shown] = of_kind(updates(editor.frames), "session_info_update")
    [listed] = editor.call("session/list")["sessions"]
    assert shown["title"] == listed["title"] == "!echo \\x1b[2Jhello"


def test_a_prompt_without_text_has_no_title(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    assert editor.call("session/prompt", sessionId=session, prompt=[image])["stopReason"] == "end_turn"
    assert of_kind(updates(editor.frames), "session_info_update") == []
    editor.prompt(session, "!echo hello")
    assert [one["title"] for one in of_kind(updates(editor.frames), "session_info_update")] == ["!echo hello"]


def test_many_sessions_opened_at_once_are_all_answered(editors: Start) -> None:
    editor = editors()
    editor.initialize()
    asked = [editor.ask_for("session/new", cwd=str(editor.cwd), mcpServers=[]) for _ in range(256)]
    answers: dict[int, Frame] = {}
    while len(answers) < len(asked):
        if (frame := editor.read()).get("id") in asked and "method" not in frame:
            answers[frame["id"]] = frame
    made = {one["result"]["sessionId"] for one in answers.values() if "result" in one}
    refused = [one["error"]["message"] for one in answers.values() if "error" in one]
    assert len(made) + len(refused) == len(asked)
    assert len(made) >= 64
    assert all("in use already" in message for message in refused), refused
    assert editor.prompt(answers[asked[0]]["result"]["sessionId"], "!echo hello")[0] == "end_turn"


def test_images_and_resources_are_part_of_the_prompt(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    prompt = [
        {"type": "text", "text": "!echo seen"},
        {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///a%20b/c.py", "name": "c.py"},
        {"type": "resource", "resource": {"uri": "file:///d.py", "text": "unsaved"}},
    ]
    assert editor.call("session/prompt", sessionId=session, prompt=prompt) == {"stopReason": "end_turn"}
    before = len(editor.frames)
    editor.call("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    shown = of_kind(updates(editor.frames[before:]), "user_message_chunk")
    assert shown[0]["content"]["text"] == ("!echo seen\n[c.py](/a b/c.py)\n[Document: /d.py]\nunsaved\n[End of /d.py]")
    assert base64.b64decode(shown[1]["content"]["data"]) == PNG
    audio = [{"type": "audio", "data": "", "mimeType": "audio/wav"}]
    assert editor.refused("session/prompt", sessionId=session, prompt=audio)["code"] == -32602


# Approvals.


def test_an_approval_shows_the_whole_command_and_takes_every_choice(editors: Start) -> None:
    editor = editors("--policy", "bash=ask")
    session = editor.new()
    command = "touch made-" + "y" * 200
    number = editor.start(session, f"!bash {command}")
    request = editor.until_asked()
    call = request["params"]["toolCall"]
    assert (call["title"], call["status"], call["kind"]) == (command, "pending", "execute")
    assert call["toolCallId"] == of_kind(updates(editor.frames), "tool_call")[0]["toolCallId"]
    assert [one["kind"] for one in request["params"]["options"]] == ["allow_once", "allow_always", "reject_once"]
    assert not list(editor.cwd.glob("made-*"))
    editor.decide(request, "allow_once")
    editor.answer_of(number)
    assert list(editor.cwd.glob("made-*"))
    statuses = [one["status"] for one in of_kind(updates(editor.frames), "tool_call_update")]
    assert (statuses[0], statuses[-1]) == ("in_progress", "completed")

    number = editor.start(session, "!bash touch always")
    editor.decide(editor.until_asked(), "allow_always")
    editor.answer_of(number)
    assert editor.prompt(session, "!bash touch always")[0] == "end_turn"
    assert not [frame for frame in editor.frames[-6:] if frame.get("method") == "session/request_permission"]


@pytest.mark.parametrize("option", ["reject", None, "nonsense"])
def test_anything_but_a_choice_to_allow_rejects(editors: Start, option: str | None) -> None:
    editor = editors("--policy", "bash=ask")
    session = editor.new()
    number = editor.start(session, "!bash touch made")
    editor.decide(editor.until_asked(), option)
    assert editor.answer_of(number)["result"]["stopReason"] == "end_turn"
    assert of_kind(updates(editor.frames), "tool_call_update")[-1]["status"] == "failed"
    assert not (editor.cwd / "made").exists()


def test_a_client_that_answers_with_an_error_rejects(editors: Start) -> None:
    editor = editors("--policy", "bash=ask")
    number = editor.start(editor.new(), "!bash touch made")
    request = editor.until_asked()
    editor.send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}})
    editor.answer_of(number)
    assert not (editor.cwd / "made").exists()


def test_the_deadline_of_an_approval_withdraws_the_request(editors: Start) -> None:
    editor = editors("--policy", "bash=ask", "--approval-timeout", "0.2")
    session = editor.new()
    number = editor.start(session, "!bash touch made")
    request = editor.until_asked()
    editor.answer_of(number)
    withdrawn = [frame["params"] for frame in editor.frames if frame.get("method") == "$/cancel_request"]
    assert withdrawn == [{"requestId": request["id"]}]
    editor.decide(request, "allow_once")
    assert editor.prompt(session, "!echo after")[0] == "end_turn"
    assert not (editor.cwd / "made").exists()


def test_cancel_while_an_approval_is_open(editors: Start) -> None:
    editor = editors("--policy", "bash=ask")
    session = editor.new()
    number = editor.start(session, "!bash touch made")
    request = editor.until_asked()
    editor.tell("session/cancel", sessionId=session)
    editor.decide(request, None)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert editor.leave() == []
    assert not (editor.cwd / "made").exists()


def test_the_end_of_the_input_denies_an_open_approval(editors: Start) -> None:
    editor = editors("--policy", "bash=ask")
    editor.start(editor.new(), "!bash touch made")
    editor.until_asked()
    assert editor.leave()[-1]["result"] == {"stopReason": "end_turn"}
    assert not (editor.cwd / "made").exists()


# Modes and options.


def options_of(result: Frame) -> dict[str, str]:
    return {one["id"]: one["currentValue"] for one in result["configOptions"]}


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_an_approval_that_a_killed_process_left_is_requested_again(editors: Start, method: str) -> None:
    dead = editors("--policy", "bash=ask")
    session = dead.new()
    dead.start(session, "!bash touch made")
    request = dead.until_asked()
    os.kill(dead.pid, signal.SIGKILL)
    dead.wait()
    editor = editors("--policy", "bash=ask")
    editor.initialize()
    editor.call(method, sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    again = editor.until_asked()
    assert again["params"] == request["params"]
    editor.decide(again, "allow_once")
    assert editor.prompt(session, "!echo next")[0] == "end_turn"
    assert (editor.cwd / "made").exists()
    assert of_kind(updates(editor.frames), "tool_call_update")[-1]["status"] == "completed"
    assert said(updates(editor.frames)).endswith("next")
    editor.start(session, "!bash touch other")
    editor.until_asked()
    editor.leave()  # The end of the input denies it.
    assert not (editor.cwd / "other").exists()


def test_modes_change_which_calls_are_asked_about(editors: Start) -> None:
    editor = editors()
    editor.initialize()
    opened = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[])
    session = opened["sessionId"]
    assert opened["modes"]["currentModeId"] == options_of(opened)["mode"] == "allow_all"
    assert [one["id"] for one in opened["modes"]["availableModes"]] == ["ask", "accept_edits", "allow_all", "plan"]
    assert editor.call("session/set_mode", sessionId=session, modeId="accept_edits") == {}
    _, found = editor.prompt(session, "!write a.txt x")
    assert options_of(of_kind(found, "config_option_update")[0])["mode"] == "accept_edits"
    assert (editor.cwd / "a.txt").exists()
    number = editor.start(session, "!bash touch made")
    editor.decide(editor.until_asked(), "reject")
    editor.answer_of(number)
    changed = editor.call("session/set_config_option", sessionId=session, configId="mode", value="plan")
    assert options_of(changed)["mode"] == "plan"
    editor.prompt(session, "!write b.txt x")
    editor.prompt(session, "!bash touch made")
    _, found = editor.prompt(session, "!bash ls")
    assert of_kind(found, "tool_call_update")[-1]["status"] == "completed"
    assert not (editor.cwd / "b.txt").exists()
    assert not (editor.cwd / "made").exists()
    assert editor.refused("session/set_mode", sessionId=session, modeId="yolo")["code"] == -32602


def test_a_configured_denial_holds_in_every_mode(editors: Start) -> None:
    editor = editors("--policy", "write:secret*=deny", "--policy", "*=ask", "--mode", "allow_all")
    editor.initialize()
    opened = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[])
    assert opened["modes"]["availableModes"][0]["id"] == "configured"
    editor.prompt(opened["sessionId"], "!write secret.txt x")
    editor.prompt(opened["sessionId"], "!write open.txt x")
    assert not (editor.cwd / "secret.txt").exists()
    assert (editor.cwd / "open.txt").exists()
    editor.call("session/set_mode", sessionId=opened["sessionId"], modeId="configured")
    editor.start(opened["sessionId"], "!write more.txt x")
    editor.decide(editor.until_asked(), "reject")


def test_model_and_reasoning_are_options(editors: Start) -> None:
    editor = editors("--provider", "anthropic", env={"ANTHROPIC_API_KEY": "k"})
    editor.initialize()
    opened = editor.call("session/new", cwd=str(editor.cwd), mcpServers=[])
    session, first = opened["sessionId"], options_of(opened)
    categories = {one["id"]: one["category"] for one in opened["configOptions"]}
    assert categories == {"mode": "mode", "model": "model", "reasoning": "thought_level"}
    other = next(
        one["value"]
        for option in opened["configOptions"] if option["id"] == "model"
        for one in option["options"] if one["value"] != first["model"]
    )  # fmt: skip
    changed = editor.call("session/set_config_option", sessionId=session, configId="model", value=other)
    assert options_of(changed)["model"] == other
    changed = editor.call("session/set_config_option", sessionId=session, configId="reasoning", value="high")
    assert options_of(changed)["reasoning"] == "high"
    for option, value in (("model", "none"), ("reasoning", "enormous"), ("colour", "red")):
        wrong = editor.refused("session/set_config_option", sessionId=session, configId=option, value=value)
        assert wrong["code"] == -32602


def test_a_chosen_option_is_recorded_with_the_next_prompt(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    editor.call("session/set_config_option", sessionId=session, configId="reasoning", value="high")
    editor.prompt(session, "!echo x")
    editor.leave()
    again = editors()
    again.initialize()
    assert options_of(again.call("session/resume", sessionId=session, cwd=str(again.cwd)))["reasoning"] == "high"


# Sessions.


def test_a_session_is_listed_loaded_and_continued_by_another_process(editors: Start, tmp_path: Path) -> None:
    editor = editors()
    session = editor.new()
    editor.prompt(session, '!script think hm ;; say working ;; call bash {"command":"echo out"} ;; --- ;; say done')
    told = updates(editor.frames)
    editor.leave()

    again = editors()
    again.initialize()
    [listed] = again.call("session/list", cwd=str(tmp_path))["sessions"]
    assert (listed["sessionId"], listed["cwd"]) == (session, str(tmp_path))
    assert listed["title"].startswith("!script think hm")
    before = len(again.frames)
    loaded = again.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
    assert options_of(loaded).keys() == {"mode", "model", "reasoning"}
    replayed = updates(again.frames[before:])
    assert said(replayed, "user_message_chunk").startswith("!script")
    assert said(replayed, "agent_thought_chunk") == said(told, "agent_thought_chunk") == "hm"
    assert said(replayed) == said(told)
    [card], [was] = of_kind(replayed, "tool_call"), of_kind(told, "tool_call")
    assert card == was
    assert of_kind(replayed, "tool_call_update") == of_kind(told, "tool_call_update")[-1:]
    assert again.prompt(session, "!echo more")[0] == "end_turn"
    again.leave()

    third = editors()
    third.initialize()
    before = len(third.frames)
    third.call("session/resume", sessionId=session, cwd=str(tmp_path))
    assert updates(third.frames[before:]) == []
    assert third.call("session/delete", sessionId=session) == {}
    assert third.call("session/delete", sessionId=session) == {}
    assert third.call("session/list")["sessions"] == []
    assert third.refused("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])["code"] == -32002


def test_a_replayed_write_shows_the_old_and_the_new_text(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    for word in ("one", "two", "three"):
        editor.prompt(session, f"!write a.txt {word}")
    told = [one["content"] for one in of_kind(updates(editor.frames), "tool_call")]
    editor.leave()
    (editor.cwd / "a.txt").write_text("something else")
    again = editors()
    again.initialize()
    again.call("session/load", sessionId=session, cwd=str(again.cwd), mcpServers=[])
    assert [one["content"] for one in of_kind(updates(again.frames), "tool_call")] == told
    assert [one[0].get("oldText") for one in told] == [None, "one", "two"]


def test_a_long_list_comes_in_pages_and_unloaded_sessions_go_on(editors: Start, tmp_path: Path) -> None:
    editor = editors()
    session = editor.new()
    editor.call("session/set_mode", sessionId=session, modeId="plan")
    editor.prompt(session, "!echo x")
    other = ""
    for _ in range(100):
        other = editor.call("session/fork", sessionId=other or session, cwd=str(tmp_path))["sessionId"]
    first = editor.call("session/list", cwd=f"{tmp_path}/")
    second = editor.call("session/list", cwd=str(tmp_path), cursor=first["nextCursor"])
    assert "nextCursor" not in second
    ids = [one["sessionId"] for page in (first, second) for one in page["sessions"]]
    assert (len(first["sessions"]), len(set(ids))) == (100, 101)
    assert editor.refused("session/list", cursor="x")["code"] == -32602
    first, second = editor.start(session, "!echo again"), editor.start(session, "!write denied.txt x")
    assert [editor.answer_of(number)["result"]["stopReason"] for number in (first, second)] == ["end_turn"] * 2
    assert not (tmp_path / "denied.txt").exists()


def test_close_ends_the_run_and_the_session_can_be_resumed(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    number = editor.start(session, "!stall-mid")
    while not said(updates(editor.frames)):
        editor.read()
    closed = editor.ask_for("session/close", sessionId=session)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert editor.answer_of(closed)["result"] == {}
    assert editor.refused("session/close", sessionId=session)["code"] == -32002
    assert editor.answer_of(editor.start(session, "x"))["error"]["code"] == -32002
    editor.call("session/resume", sessionId=session, cwd=str(editor.cwd))
    assert editor.prompt(session, "!echo back")[0] == "end_turn"


def test_a_fork_has_the_conversation_and_a_life_of_its_own(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    editor.prompt(session, "!echo common")
    forked = editor.call("session/fork", sessionId=session, cwd=str(editor.cwd))["sessionId"]
    assert forked != session
    editor.prompt(forked, "!echo aside")
    before = len(editor.frames)
    editor.call("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    assert said(updates(editor.frames[before:])) == "common"


def test_a_fork_elsewhere_leaves_its_origin_in_place(editors: Start, tmp_path: Path) -> None:
    editor = editors()
    session = editor.new()
    editor.prompt(session, "!echo common")
    (tmp_path / "aside").mkdir()
    forked = editor.call("session/fork", sessionId=session, cwd=str(tmp_path / "aside"))["sessionId"]
    editor.prompt(session, "!write origin.txt x")
    editor.prompt(forked, "!write copy.txt x")
    assert (editor.cwd / "origin.txt").exists()
    assert (tmp_path / "aside" / "copy.txt").exists()
    editor.leave()
    other = editors()  # It forks a session that it has not loaded.
    other.initialize()
    forked = other.call("session/fork", sessionId=session, cwd=str(tmp_path / "aside"))["sessionId"]
    other.prompt(forked, "!write second.txt x")
    assert (tmp_path / "aside" / "second.txt").exists()
    assert other.refused("session/fork", sessionId="none", cwd=str(tmp_path))["code"] == -32002
    listed = other.call("session/list")["sessions"]
    assert {one["sessionId"]: one["cwd"] for one in listed}[session] == str(editor.cwd)


def test_a_fork_starts_in_the_mode_of_its_origin(editors: Start) -> None:
    editor = editors()
    session = editor.new()
    editor.prompt(session, "!echo x")
    editor.call("session/set_mode", sessionId=session, modeId="plan")
    forked = editor.call("session/fork", sessionId=session, cwd=str(editor.cwd))
    assert forked["modes"]["currentModeId"] == "plan"
    editor.prompt(forked["sessionId"], "!write denied.txt x")
    assert not (editor.cwd / "denied.txt").exists()


async def test_sessions_without_a_prompt_leave_nothing_in_the_journal(editors: Start, tmp_path: Path) -> None:
    editor = editors()
    session = editor.new()
    editor.call("session/new", cwd=str(tmp_path), mcpServers=[])
    editor.call("session/fork", sessionId=session, cwd=str(tmp_path))
    editor.call("session/close", sessionId=session)
    editor.leave()
    journal = await Journal.open(tmp_path / "home" / "journal.db")
    try:
        assert await journal.sessions() == []
    finally:
        await journal.close()


def test_a_loaded_session_moves_to_the_client_s_directory(editors: Start, tmp_path: Path) -> None:
    editor = editors()
    session = editor.new()
    editor.prompt(session, "!echo x")
    editor.leave()
    (tmp_path / "moved").mkdir()
    again = editors()
    again.initialize()
    again.call("session/resume", sessionId=session, cwd=str(tmp_path / "moved"))
    again.prompt(session, "!write here.txt x")
    assert (tmp_path / "moved" / "here.txt").exists()


def test_cards_follow_an_open_session_to_another_directory(editors: Start, tmp_path: Path) -> None:
    editor = editors()
    session = editor.new()
    editor.prompt(session, "!echo x")
    (tmp_path / "moved").mkdir()
    moved = {"sessionId": session, "cwd": str(tmp_path / "moved"), "mcpServers": []}
    before = len(editor.frames)
    number = editor.start(session, "!stall-mid")
    while not said(updates(editor.frames[before:])):
        editor.read()
    error = editor.refused("session/load", **moved)
    assert error["code"] == -32009
    assert str(tmp_path / "moved") in error["message"]
    editor.call("session/load", **{**moved, "cwd": str(editor.cwd)})
    editor.tell("session/cancel", sessionId=session)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    editor.call("session/load", **moved)
    _, found = editor.prompt(session, "!write m.txt hey")
    [card] = of_kind(found, "tool_call")
    path = str(tmp_path / "moved" / "m.txt")
    assert (card["locations"][0]["path"], card["content"][0]["path"]) == (path, path)
    assert os.path.exists(path)


def test_a_session_that_another_process_runs_is_shown_and_busy(editors: Start) -> None:
    first = editors()
    session = first.new()
    first.prompt(session, "!echo before")
    before = len(first.frames)
    number = first.start(session, "!stall-mid")
    while not said(updates(first.frames[before:])):
        first.read()
    other = editors()
    other.initialize()
    other.call("session/load", sessionId=session, cwd=str(other.cwd), mcpServers=[])
    assert said(updates(other.frames)).startswith("before")
    error = other.answer_of(other.start(session, "!echo x"))["error"]
    assert error["code"] == -32009
    assert f"process {first.pid}" in error["message"]
    first.tell("session/cancel", sessionId=session)
    first.answer_of(number)
    assert other.prompt(session, "!echo x")[0] == "end_turn"


# Commands and notices.


def test_commands_of_extensions_are_offered_and_run(editors: Start, tmp_path: Path) -> None:
    extension = tmp_path / "ext"
    extension.mkdir()
    (extension / "extension.json").write_text(json.dumps({"name": "greeter", "exec": "./run"}))
    (extension / "run").write_text(
        f"#!{sys.executable}\n"
        "from zot.ext import Extension\n"
        "extension = Extension('greeter', '1')\n"
        "@extension.command('greet', description='Greets.')\n"
        "def greet(args):\n"
        "    return f'Hello {args}'\n"
        "extension.run()\n"
    )
    (extension / "run").chmod(0o755)
    editor = editors("--ext", str(extension))
    session = editor.new()
    while not (offered := of_kind(updates(editor.frames), "available_commands_update")):
        editor.read()
    compact, greet = offered[0]["availableCommands"]
    assert (compact["name"], "input" in compact) == ("compact", False)
    assert greet == {"name": "greet", "description": "Greets.", "input": {"hint": "arguments"}}
    stop, found = editor.prompt(session, "/greet Ada")
    assert (stop, said(found)) == ("end_turn", "Hello Ada")


def test_cancelling_a_command_of_an_extension_leaves_the_run(editors: Start, tmp_path: Path) -> None:
    extension = tmp_path / "ext"
    extension.mkdir()
    (extension / "extension.json").write_text(json.dumps({"name": "waiter", "exec": "./run"}))
    (extension / "run").write_text(
        f"#!{sys.executable}\n"
        "import asyncio\n"
        "from zot.ext import Extension\n"
        "extension = Extension('waiter', '1')\n"
        "@extension.command('wait', description='Waits.')\n"
        "async def wait(args):\n"
        "    await asyncio.Event().wait()\n"
        "extension.run()\n"
    )
    (extension / "run").chmod(0o755)
    editor = editors("--ext", str(extension))
    session = editor.new()
    while not of_kind(updates(editor.frames), "available_commands_update"):
        editor.read()
    os.mkfifo(editor.cwd / "fifo")
    first = editor.start(session, "!bash read line < fifo; echo heard")
    while not of_kind(updates(editor.frames), "tool_call"):
        editor.read()
    second = editor.start(session, "/wait")
    editor.call("session/list")
    editor.tell("$/cancel_request", requestId=second)
    assert editor.answer_of(second)["result"]["stopReason"] == "cancelled"
    (editor.cwd / "fifo").write_text("go\n")
    assert editor.answer_of(first)["result"]["stopReason"] == "end_turn"
    assert "heard" in str(of_kind(updates(editor.frames), "tool_call_update")[-1])


def test_the_conversation_is_compacted_on_command(editors: Start) -> None:
    editor = editors()
    session = editor.new(session={"compaction": {}})
    for word in ("one", "two", "three"):
        editor.prompt(session, f"!echo {word}")
    stop, found = editor.prompt(session, "/compact")
    assert stop == "end_turn"
    [compacted] = of_kind(found, "compaction_update")
    assert (compacted["status"], compacted["summary"][0]["type"]) == ("completed", "text")
    assert editor.answer_of(editor.start(editor.new(), "/compact"))["error"]["code"] == -32602


def test_notices_go_to_clients_that_show_them(editors: Start) -> None:
    able, unable = editors(), editors()
    assert able.prompt(able.new(session={"notices": {}}), "!retry 1")[0] == "end_turn"
    assert unable.prompt(unable.new(), "!retry 1")[0] == "end_turn"
    assert [one["severity"] for one in of_kind(updates(able.frames), "notice")] == ["warning"]
    assert of_kind(updates(unable.frames), "notice") == []


# Questions of MCP servers.

CALL = "!script call mcp__s__echo {} ;; --- ;; say done"


def until_called(editor: Editor, session: str) -> int:
    """Call the tool of the server until that is known; return the id of the prompt that calls it."""
    for _ in range(200):
        number = editor.start(session, CALL)
        while not (card := of_kind(updates(editor.frames), "tool_call")):
            editor.read()
        frame = editor.read()
        while frame.get("method") == "session/update" and frame["params"]["update"].get("status") != "failed":
            frame = editor.read()
        if frame.get("method") == "elicitation/create" or "result" in frame:
            return number
        assert card
        editor.answer_of(number)
        editor.prompt(session, "!bash sleep 0.05")
        editor.frames.clear()
    raise AssertionError("the server did not start")


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (
            {"action": "accept", "content": {"name": "Ann", "color": "red"}},
            {"action": "accept", "content": {"name": "Ann", "age": 7, "color": "red"}},
        ),
        ({"action": "decline"}, {"action": "decline"}),
        ({"action": "accept", "content": {"name": "x"}}, {"action": "cancel"}),
        ({"action": "shout"}, {"action": "cancel"}),
    ],
)
def test_a_question_of_an_mcp_server_is_an_elicitation(editors: Start, answer: Frame, result: Frame) -> None:
    editor = editors("--mcp", f"s={sys.executable} {ASKING_SERVER} form")
    session = editor.new(elicitation={"form": {}})
    number = until_called(editor, session)
    [asked] = [one for one in editor.frames if one.get("method") == "elicitation/create"]
    assert asked["params"]["toolCallId"] == of_kind(updates(editor.frames), "tool_call")[-1]["toolCallId"]
    assert asked["params"]["requestedSchema"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Name", "minLength": 2},
            "age": {"type": "integer", "minimum": 0, "default": 7},
            "color": {
                "type": "string",
                "oneOf": [{"const": "red", "title": "Red"}, {"const": "green", "title": "Green"}],
            },
        },
        "required": ["name"],
    }
    editor.send({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
    editor.answer_of(number)
    text = of_kind(updates(editor.frames), "tool_call_update")[-1]["content"][0]["content"]["text"]
    assert json.loads(text.strip("`\n")) == result


# Files of the editor.

FILES = {"fs": {"readTextFile": True, "writeTextFile": True}}


def result_of(found: list[Frame]) -> Frame:
    end = of_kind(found, "tool_call_update")[-1]
    return {"status": end["status"], "text": "".join(one["content"]["text"] for one in end.get("content", ()))}


def test_unsaved_text_is_read_and_edited_in_the_editor(editors: Start) -> None:
    editor = editors()
    path = editor.cwd / "a.txt"
    path.write_text("saved\n")
    editor.buffers[str(path)] = "typed\n"
    session = editor.new(**FILES)
    _, found = editor.prompt(session, "!read a.txt")
    assert "typed" in result_of(found)["text"]
    _, found = editor.prompt(session, "!edit a.txt typed changed")
    assert result_of(found)["status"] == "completed"
    assert editor.buffers[str(path)] == path.read_text() == "changed\n"
    assert ("write_text_file", str(path)) in editor.accessed
    editor.buffers[str(path)] = "typed again\n"
    for prompt in ("!edit a.txt again more", "!write a.txt new"):
        _, found = editor.prompt(session, prompt)
        assert "has changed since you last saw it" in result_of(found)["text"]
    assert editor.buffers[str(path)] == "typed again\n"


@pytest.mark.parametrize("reads", [True, False])
def test_an_approval_shows_the_unsaved_text_that_a_write_replaces(editors: Start, reads: bool) -> None:
    editor = editors("--mode", "ask")
    path = editor.cwd / "n.txt"
    path.write_text("DISK")
    editor.buffers[str(path)] = "UNSAVED"
    session = editor.new(**FILES)
    if reads:
        editor.prompt(session, "!read n.txt")
    number = editor.start(session, "!write n.txt NEW")
    request = editor.until_asked()
    diff = {"type": "diff", "path": str(path), "oldText": "UNSAVED", "newText": "NEW"}
    assert of_kind(updates(editor.frames), "tool_call")[-1]["content"] == [diff]
    assert request["params"]["toolCall"]["content"] == [diff]
    editor.decide(request, "allow_once")
    assert editor.answer_of(number)["result"]["stopReason"] == "end_turn"
    assert path.read_text() == "NEW"
    assert editor.leave() == []


def test_new_files_are_made_in_the_editor_and_by_zot_where_that_refuses(editors: Start) -> None:
    editor = editors()
    session = editor.new(**FILES)
    editor.prompt(session, "!write sub/a.txt one")
    assert (editor.cwd / "sub" / "a.txt").read_text() == "one"
    assert editor.accessed[-1] == ("write_text_file", str(editor.cwd / "sub" / "a.txt"))
    editor.saves = False
    editor.prompt(session, "!write b.txt two")
    assert (editor.cwd / "b.txt").read_text() == "two"
    _, found = editor.prompt(session, "!write b.txt three")
    assert "not in the project" in result_of(found)["text"]
    assert (editor.cwd / "b.txt").read_text() == "two"
    editor.opens = False
    editor.prompt(session, "!write b.txt four")
    assert (editor.cwd / "b.txt").read_text() == "four"


def test_a_change_on_disk_counts_before_the_editor_has_loaded_it(editors: Start) -> None:
    editor = editors()
    path = editor.cwd / "a.txt"
    path.write_text("one\n")
    editor.buffers[str(path)] = "one\n"
    session = editor.new(**FILES)
    editor.prompt(session, "!read a.txt")
    editor.prompt(session, "!bash echo two > a.txt")
    _, found = editor.prompt(session, "!read a.txt")
    assert "two" in result_of(found)["text"]
    editor.prompt(session, "!edit a.txt two three")
    assert path.read_text() == "three\n"


def test_files_that_are_no_text_and_directories_are_read_from_disk(editors: Start) -> None:
    editor = editors()
    (editor.cwd / "a.png").write_bytes(PNG)
    (editor.cwd / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    session = editor.new(**FILES)
    for name in ("a.png", "latin.txt", "."):
        assert result_of(editor.prompt(session, f"!read {name}")[1])["status"] == "completed"
    assert editor.accessed == []
    assert result_of(editor.prompt(session, "!read missing.txt")[1])["status"] == "failed"


@pytest.mark.parametrize("flags", [("--lock",), ("--policy", "write=deny")])
def test_lock_and_policy_hold_for_the_editor_s_files(editors: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    editor = editors(*flags)
    session = editor.new(**FILES)
    _, found = editor.prompt(session, f"!write {tmp_path.parent}/outside.txt x")
    assert result_of(found)["status"] == "failed"
    assert [one for one in editor.accessed if one[0] == "write_text_file"] == []


def test_an_editor_that_only_reads_leaves_changes_to_zot(editors: Start) -> None:
    editor = editors()
    session = editor.new(fs={"readTextFile": True})
    editor.prompt(session, "!write a.txt one")
    editor.prompt(session, "!read a.txt")
    assert [one for one, _ in editor.accessed] == ["read_text_file"]
    assert (editor.cwd / "a.txt").read_text() == "one"


def test_a_run_cancelled_while_the_editor_saves_ends(editors: Start) -> None:
    editor = editors()
    session = editor.new(**FILES)
    number = editor.start(session, "!write a.txt one")
    while True:
        frame = json.loads(editor.read_line())
        if frame.get("method") == "fs/read_text_file":
            editor.send({"jsonrpc": "2.0", "id": frame["id"], "error": {"code": -32002, "message": "no"}})
        elif frame.get("method") == "fs/write_text_file":
            break
    editor.tell("session/cancel", sessionId=session)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert "may have changed" in result_of(updates(editor.frames))["text"]
    withdrawn = [one["params"] for one in editor.frames if one.get("method") == "$/cancel_request"]
    assert withdrawn == [{"requestId": frame["id"]}]


# The end of the process.


def test_a_signal_ends_it_and_answers_the_prompt(editors: Start) -> None:
    editor = editors()
    number = editor.start(editor.new(), "!stall-mid")
    while not said(updates(editor.frames)):
        editor.read()
    os.kill(editor.pid, signal.SIGTERM)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert editor.rest() == []
    assert editor.wait() == 0


@pytest.mark.parametrize(
    ("prompts", "phase"),
    [
        (["!echo hello"], "available_commands_update"),
        (["!stall-mid"], "agent_message_chunk"),
        (["!stall-mid", "!echo queued", "!echo queued"], "agent_message_chunk"),
        (["!bash sleep 60"], "tool_call"),
        (["!write a.txt text"], "fs/write_text_file"),
    ],
)
def test_a_killed_process_leaves_a_session_that_loads_and_continues(
    editors: Start, prompts: list[str], phase: str
) -> None:
    dead = editors()
    session = dead.new(**FILES)
    for prompt in prompts:
        dead.start(session, prompt)
    while not of_kind(updates(dead.frames), phase) and dead.frames[-1].get("method") != phase:
        dead.read()
    os.kill(dead.pid, signal.SIGKILL)
    dead.wait()
    editor = editors()
    editor.initialize()
    editor.call("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    loaded = updates(editor.frames)
    ended = {one["toolCallId"] for one in of_kind(loaded, "tool_call_update")}
    assert {one["toolCallId"] for one in of_kind(loaded, "tool_call")} == ended
    assert said(loaded, "user_message_chunk") in ("", prompts[0])
    stop, found = editor.prompt(session, "!echo again")
    assert (stop, said(found)) == ("end_turn", "again")
    assert editor.leave() == []


def test_a_closed_output_ends_it(editors: Start) -> None:
    editor = editors()
    editor.start(editor.new(), "!stall-mid")
    assert editor.process.stdout is not None
    editor.process.stdout.close()
    assert editor.wait() == 0


def test_a_reader_that_stops_slows_the_run_down_and_loses_nothing(editors: Start) -> None:
    editor = editors()
    number = editor.start(editor.new(), "!say 30000 " + "word " * 200_000)
    assert eventually(lambda: at_rest(editor.pid))
    editor.answer_of(number)
    assert said(updates(editor.frames)).split() == ["word"] * 200_000


# The client of the protocol's own Python package.


class Peer:
    """A client of the package: it allows every request for permission, and keeps the updates."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[str] = []
        self.updated = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.updated.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> schema.RequestPermissionResponse:
        from acp import schema

        self.asked.append(tool_call.title)
        chosen = schema.AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return schema.RequestPermissionResponse(outcome=chosen)

    def on_connect(self, conn: Any) -> None:
        pass


async def test_the_package_s_client_uses_tools_approves_cancels_and_resumes(tmp_path: Path) -> None:
    import acp

    peer: Any = Peer()
    argv = ("-m", "zot", "acp", "--provider", "lab", "--policy", "bash=ask")
    env = environment({"ZOT_HOME": str(tmp_path / "home")})
    async with acp.spawn_agent_process(peer, sys.executable, *argv, env=env, cwd=tmp_path) as (agent, _):
        assert (await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)).protocol_version == 1
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        done = await agent.prompt(session_id=session, prompt=[acp.text_block("!bash touch made")])
        assert done.stop_reason == "end_turn"
        assert peer.asked == ["touch made"]
        assert (tmp_path / "made").exists()
        peer.updated.clear()
        running = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[acp.text_block("!stall-mid")]))
        await asyncio.wait_for(peer.updated.wait(), PATIENCE_S)
        await agent.cancel(session_id=session)
        assert (await running).stop_reason == "cancelled"
    async with acp.spawn_agent_process(peer, sys.executable, *argv, env=env, cwd=tmp_path) as (agent, _):
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        listed = await agent.list_sessions(cwd=str(tmp_path))
        assert [one.session_id for one in listed.sessions] == [session]
        peer.updates.clear()
        await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        kinds = [update.session_update for update in peer.updates]
        assert kinds[:4] == ["user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update"]
        done = await agent.prompt(session_id=session, prompt=[acp.text_block("!echo resumed")])
        assert done.stop_reason == "end_turn"
