"""Conversations of an MCP client with the real `zot mcp serve`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from forked import ForkServer
from harness import eventually
from serve.mcp.caller import STATELESS, TASKS, Caller, meta, progress_of, structured

Start: TypeAlias = Callable[..., Caller]


@pytest.fixture
def callers(tmp_path: Path, fork_server: ForkServer) -> Iterator[Start]:
    """Start `zot mcp serve` in an empty directory with its own home, any number of times."""
    started: list[Caller] = []

    def start(*flags: str) -> Caller:
        started.append(Caller(*flags, cwd=tmp_path, fork_server=fork_server))
        return started[-1]

    yield start
    for process in started:
        process.close()


# Greetings.


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25", "1999-01-01"])
def test_initialize_agrees_on_a_known_revision(callers: Start, version: str) -> None:
    caller = callers()
    greeted = caller.call(
        "initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "t", "version": "1"}
    )
    assert greeted["protocolVersion"] == ("2025-11-25" if version.startswith("1999") else version)
    assert greeted["serverInfo"]["name"] == "zot"
    caller.tell("notifications/initialized")
    assert caller.call("ping") == {}
    assert [one["name"] for one in caller.call("tools/list")["tools"]] == ["zot", "zot_reply"]
    assert caller.leave() == []


def test_a_stateless_client_discovers_the_server_and_needs_no_handshake(callers: Start) -> None:
    caller = callers().speak()
    found = caller.call("server/discover")
    assert (found["supportedVersions"], found["resultType"]) == ([STATELESS], "complete")
    assert found["capabilities"] == {"tools": {}, "extensions": {TASKS: {}}}
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "zot"
    listed = caller.call("tools/list")
    assert (listed["cacheScope"], listed["ttlMs"]) == ("private", 3_600_000)
    assert caller.refused("ping")["code"] == -32601
    assert caller.refused("tasks/list")["code"] == -32601
    assert caller.refused("initialize")["code"] == -32601


def test_malformed_requests_cost_themselves_only(callers: Start) -> None:
    caller = callers()
    assert caller.refused("tools/list")["code"] == -32600
    assert caller.refused("server/discover")["code"] == -32602
    wrong = meta() | {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}
    error = caller.refused("tools/list", _meta=wrong)
    assert (error["code"], error["data"]) == (-32022, {"supported": [STATELESS], "requested": "1999-01-01"})
    caller.send(
        b"ls", b"[]", b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":2,"method":"x","params":[]}'
    )
    assert [caller.read()["error"]["code"] for _ in range(3)] == [-32700, -32600, -32600]
    caller.greet()
    assert caller.refused("tasks/get", taskId="s#1")["code"] == -32601
    assert caller.refused("tools/call", name="rm")["code"] == -32602
    assert caller.leave() == []


# Runs.


def test_a_prompt_runs_in_a_session_and_a_reply_continues_it(callers: Start) -> None:
    caller = callers().speak()
    first = structured(caller.tool("zot", {"prompt": "!echo one", "cwd": str(caller.cwd)}))
    assert (first["text"], first["stop"], first["denied"]) == ("one", "end_turn", [])
    second = structured(caller.tool("zot_reply", {"session": first["session"], "prompt": "!echo two"}))
    assert (second["session"], second["text"]) == (first["session"], "two")
    assert caller.leave() == []
    again = callers()
    again.greet()
    third = structured(again.tool("zot_reply", {"session": first["session"], "prompt": "!echo three"}))
    assert third["session"] == first["session"]


def test_a_named_session_is_created_once_in_its_directory(callers: Start, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    caller = callers().speak()
    arguments = {"session": "mine", "cwd": str(tmp_path / "work")}
    for word in ("one", "two"):
        done = structured(caller.tool("zot", {"prompt": f"!bash echo {word} >> made", **arguments}))
        assert done["session"] == "mine"
    assert (tmp_path / "work" / "made").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("zot", {}, "prompt"),
        ("zot", {"prompt": 1}, "prompt"),
        ("zot", {"prompt": "!echo x", "colour": "red"}, "colour"),
        ("zot", {"prompt": "  "}, "empty"),
        ("zot", {"prompt": "!echo x", "cwd": "relative"}, "absolute"),
        ("zot", {"prompt": "!echo x", "agent": "nobody"}, "nobody"),
        ("zot", {"prompt": "!echo x", "session": "host:s"}, "no session"),
        ("zot_reply", {"prompt": "!echo x", "session": "host:s"}, "host:s"),
        ("zot_reply", {"prompt": "!echo x", "session": "none"}, "none"),
    ],
)
def test_a_call_that_cannot_work_is_a_failed_result(callers: Start, tool: str, arguments: Any, why: str) -> None:
    caller = callers().speak()
    failed = caller.tool(tool, arguments)
    assert failed["isError"] is True
    assert why in failed["structuredContent"]["text"]


def test_a_failed_run_is_a_failed_result_with_its_session(callers: Start) -> None:
    caller = callers()
    caller.greet()
    failed = caller.tool("zot", {"prompt": "!status 400"})
    assert (failed["isError"], structured(failed)["stop"]) == (True, "error")
    assert structured(caller.tool("zot_reply", {"session": structured(failed)["session"], "prompt": "!echo on"}))


def test_progress_is_sent_only_with_a_token(callers: Start) -> None:
    caller = callers().speak()
    caller.tool("zot", {"prompt": "!bash echo hi"})
    assert progress_of(caller.frames) == []
    caller.tool("zot", {"prompt": "!bash echo hi"}, _meta={"progressToken": "p"})
    found = progress_of(caller.frames)
    assert [one["progressToken"] for one in found] == ["p"] * len(found)
    assert [one["progress"] for one in found] == [*range(1, len(found) + 1)]
    assert any("echo hi" in one["message"] for one in found)


@pytest.mark.parametrize("stateless", [True, False])
def test_a_cancelled_request_aborts_its_run_and_gets_no_answer(callers: Start, stateless: bool) -> None:
    caller = callers()
    caller.greet()
    if stateless:
        caller.speak()
    number = caller.start_tool("zot", {"prompt": "!stall-mid", "session": "s"}, _meta={"progressToken": 1})
    while not progress_of(caller.frames):
        caller.read()
    caller.tell("notifications/cancelled", requestId=number)
    done = structured(caller.tool("zot_reply", {"session": "s", "prompt": "!echo free"}))
    assert done["text"] == "free"
    assert [one for one in caller.frames if one.get("id") == number] == []
    assert caller.leave() == []


def test_accepted_requests_are_answered_after_the_end_of_the_input(callers: Start) -> None:
    caller = callers().speak()
    number = caller.start_tool("zot", {"prompt": "!bash sleep 0.1; echo late"})
    listening = caller.start("subscriptions/listen", notifications={"toolsListChanged": True})
    answers = {one["id"]: one["result"] for one in caller.leave() if "result" in one}
    assert answers.keys() == {number, listening}
    assert answers[listening]["_meta"]["io.modelcontextprotocol/subscriptionId"] == listening


# Approvals.


def test_a_client_of_a_connection_is_asked_with_the_whole_call(callers: Start) -> None:
    caller = callers("--policy", "bash=ask")
    caller.greet(elicitation={})
    command = "touch made-" + "y" * 200
    number = caller.start_tool("zot", {"prompt": f"!bash {command}", "cwd": str(caller.cwd)})
    question = caller.until_asked()
    assert command in question["params"]["message"]
    choices = question["params"]["requestedSchema"]["properties"]["decision"]["enum"]
    assert choices == ["allow_once", "allow_always", "reject"]
    caller.reply(question, "accept", decision="allow_once")
    assert structured(caller.answer_of(number)["result"])["denied"] == []
    assert [one.name for one in caller.cwd.glob("made-*")] == [command.removeprefix("touch ")]
    assert caller.leave() == []


@pytest.mark.parametrize(("action", "content"), [("decline", {}), ("cancel", {}), ("accept", {"decision": "perhaps"})])
def test_anything_but_a_decision_refuses(callers: Start, action: str, content: dict[str, str]) -> None:
    caller = callers("--policy", "bash=ask")
    caller.greet(elicitation={"form": {}})
    number = caller.start_tool("zot", {"prompt": "!bash touch made", "cwd": str(caller.cwd)})
    caller.reply(caller.until_asked(), action, **content)
    assert structured(caller.answer_of(number)["result"])["denied"] == ["bash: touch made: refused"]
    assert not (caller.cwd / "made").exists()


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}])
@pytest.mark.parametrize("stateless", [True, False])
def test_a_call_is_denied_at_once_if_the_client_cannot_be_asked(
    callers: Start, capabilities: Any, stateless: bool
) -> None:
    caller = callers("--policy", "bash=ask")
    if stateless:
        caller.speak(**capabilities)
    else:
        caller.greet(**capabilities)
    result = caller.tool("zot", {"prompt": "!bash touch made"})
    [denied] = structured(result)["denied"]
    assert "bash: touch made: no user could be asked" in denied
    assert denied in result["content"][-1]["text"]
    assert not (caller.cwd / "made").exists()


def test_a_stateless_client_is_asked_by_a_result_and_answers_by_repeating(callers: Start) -> None:
    caller = callers("--policy", "bash=ask").speak(elicitation={})
    arguments = {"prompt": "!bash touch made", "cwd": str(caller.cwd)}
    asked = caller.tool("zot", arguments)
    assert asked["resultType"] == "input_required"
    [(key, question)] = asked["inputRequests"].items()
    assert question["method"] == "elicitation/create"
    state = asked["requestState"]
    again = caller.tool("zot", arguments, requestState=state, inputResponses={"other": {"action": "accept"}})
    assert again["inputRequests"].keys() == {key}
    answer = {key: {"action": "accept", "content": {"decision": "allow_always"}}}
    done = caller.tool("zot", arguments, requestState=state, inputResponses=answer)
    assert (structured(done)["stop"], (caller.cwd / "made").exists()) == ("end_turn", True)
    # The run is over: a repeated request gets its result, and nothing runs twice.
    (caller.cwd / "made").unlink()
    assert structured(caller.tool("zot", arguments, requestState=state, inputResponses=answer)) == structured(done)
    assert not (caller.cwd / "made").exists()


def test_a_question_survives_a_restart(callers: Start) -> None:
    caller = callers("--policy", "bash=ask").speak(elicitation={})
    arguments = {"prompt": "!bash touch made", "cwd": str(caller.cwd)}
    asked = caller.tool("zot", arguments)
    assert caller.leave() == []
    caller = callers("--policy", "bash=ask").speak(elicitation={})
    [key] = asked["inputRequests"]
    answer = {key: {"action": "accept", "content": {"decision": "allow_once"}}}
    done = caller.tool("zot", arguments, requestState=asked["requestState"], inputResponses=answer)
    assert (structured(done)["stop"], (caller.cwd / "made").exists()) == ("end_turn", True)


@pytest.mark.parametrize(
    "state", ["", "x", "#1", "none#1", "s#0", "s#999999", "s#-1", "s#" + "9" * 30, "s#1e3", "\0#1"]
)
def test_a_made_up_state_is_refused(callers: Start, state: str) -> None:
    caller = callers().speak(elicitation={}, extensions={TASKS: {}})
    caller.tool("zot", {"prompt": "!echo x", "session": "s"})
    answer = caller.answer_of(caller.start_tool("zot", {"prompt": "!echo x"}, requestState=state))
    assert answer.get("error", {}).get("code") == -32602
    assert caller.refused("tasks/get", taskId=state)["code"] == -32602


def test_a_request_that_is_cancelled_while_it_asks_withdraws_the_question(callers: Start) -> None:
    caller = callers("--policy", "bash=ask")
    caller.greet(elicitation={})
    number = caller.start_tool("zot", {"prompt": "!bash touch made", "session": "s", "cwd": str(caller.cwd)})
    question = caller.until_asked()
    caller.tell("notifications/cancelled", requestId=number)
    while (frame := caller.read()).get("method") != "notifications/cancelled":
        pass
    assert frame["params"]["requestId"] == question["id"]
    caller.reply(question, "accept", decision="allow_once")
    assert structured(caller.tool("zot_reply", {"session": "s", "prompt": "!echo on"}))["text"] == "on"
    assert not (caller.cwd / "made").exists()


def test_the_end_of_the_input_denies_an_open_question(callers: Start) -> None:
    caller = callers("--policy", "bash=ask")
    caller.greet(elicitation={})
    number = caller.start_tool("zot", {"prompt": "!bash touch made", "cwd": str(caller.cwd)})
    caller.until_asked()
    [answer] = [one for one in caller.leave() if one.get("id") == number]
    assert structured(answer["result"])["denied"]
    assert not (caller.cwd / "made").exists()


# Tasks.


def until_status(caller: Caller, task: str, *wanted: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def reached() -> bool:
        found.update(caller.call("tasks/get", taskId=task))
        return found["status"] in wanted

    eventually(reached)
    return found


def test_a_long_run_becomes_a_task_whose_result_is_found_after_a_restart(callers: Start) -> None:
    caller = callers().speak(extensions={TASKS: {}})
    os.mkfifo(caller.cwd / "fifo")
    made = caller.tool("zot", {"prompt": "!bash read line < fifo; echo $line", "cwd": str(caller.cwd)})
    assert (made["resultType"], made["status"]) == ("task", "working")
    task = made["taskId"]
    assert caller.call("tasks/get", taskId=task)["status"] == "working"
    (caller.cwd / "fifo").write_text("go\n")
    done = until_status(caller, task, "completed")
    assert structured(done["result"])["stop"] == "end_turn"
    assert caller.leave() == []
    caller = callers().speak(extensions={TASKS: {}})
    assert caller.call("tasks/get", taskId=task)["result"] == done["result"]
    assert caller.call("tasks/cancel", taskId=task)["resultType"] == "complete"
    assert caller.speak().refused("tasks/get", taskId=task)["code"] == -32021
