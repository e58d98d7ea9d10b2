"""An editor on the sessions of a daemon: `zot acp --via-daemon`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from editor import Editor, Frame, of_kind, said, updates
from forked import ForkServer
from harness import Zot, environment, eventually
from zot.client.client import Client
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolResult,
)
from zot.events import decode as decode_event

Start: TypeAlias = Callable[..., Editor]


@pytest.fixture
def socket(tmp_path: Path, fork_server: ForkServer) -> Iterator[str]:
    """Start a daemon whose home is that of the editors; return its socket."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["bash=ask"]\n')
    env = environment({"ZOT_HOME": str(tmp_path / "home")})
    path = str(tmp_path / "home" / "data" / "daemon.sock")
    daemon = fork_server.fork(("daemon", "--provider", "lab"), tmp_path, env)
    try:
        assert eventually(lambda: os.path.exists(path))
        yield path
    finally:
        daemon.send_signal(15)
        daemon.communicate()


def test_a_session_of_the_daemon_runs_lists_replays_and_forks(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon")
    session = editor.new()
    assert editor.prompt(session, "!script think hm ;; say hello")[0] == "end_turn"
    assert said(updates(editor.frames)) == "hello"
    stop, found = editor.prompt(session, "!bash echo out")
    assert (stop, [one["title"] for one in of_kind(found, "tool_call")]) == ("end_turn", ["echo out"])
    assert editor.answer_of(editor.start(session, "!status 400"))["error"]["code"] == -32603
    assert editor.answer_of(editor.start(session, " "))["error"]["code"] == -32602
    [listed] = editor.call("session/list", cwd=str(editor.cwd))["sessions"]
    assert listed["sessionId"] == session
    assert editor.leave() == []

    again = editors("--via-daemon")
    again.initialize()
    before = len(again.frames)
    loaded = again.call("session/load", sessionId=session, cwd=str(again.cwd), mcpServers=[])
    assert {one["id"] for one in loaded["configOptions"]} == {"model", "reasoning"}
    replayed = updates(again.frames[before:])
    assert said(replayed).startswith("hello")
    assert said(replayed, "user_message_chunk").startswith("!script think")
    forked = again.call("session/fork", sessionId=session, cwd=str(again.cwd))["sessionId"]
    again.prompt(forked, "!echo aside")
    assert again.call("session/set_config_option", sessionId=session, configId="reasoning", value="high")
    assert again.refused("session/load", sessionId="none", cwd=str(again.cwd), mcpServers=[])["code"] == -32002
    assert again.call("session/delete", sessionId=forked) == {}
    assert again.call("session/close", sessionId=session) == {}
    assert again.prompt(again.new(), "!echo other")[0] == "end_turn"
    assert again.leave() == []


def test_a_message_that_steers_a_run_of_the_daemon_is_answered_with_it(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon")
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
    assert said(updates(editor.frames)).endswith("steered")
    assert not of_kind(updates(editor.frames), "user_message_chunk")
    assert editor.leave() == []


def test_cancel_ends_the_run_and_what_waits(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon")
    session = editor.new()
    numbers = [editor.start(session, text) for text in ("!stall-mid", "!echo two", "!echo three")]
    while not said(updates(editor.frames)):
        editor.read()
    editor.tell("session/cancel", sessionId=session)
    stops: dict[int, str] = {}
    while len(stops) < 3:
        frame = editor.read()
        if "result" in frame:
            stops[frame["id"]] = frame["result"]["stopReason"]
    assert stops == dict.fromkeys(numbers, "cancelled")
    assert editor.prompt(session, "!echo four")[0] == "end_turn"
    assert editor.leave() == []


async def test_an_editor_and_another_client_see_the_same(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon", "--agent", "careful")
    session = editor.new()
    async with Client.connect(socket=socket) as client:
        attached = await client.attach(session)
        turn = attached.prompt("!bash touch made")
        request = await asyncio.to_thread(editor.until_asked)
        assert said(updates(editor.frames), "user_message_chunk") == "!bash touch made"
        assert request["params"]["toolCall"]["title"] == "touch made"
        async for event in turn:
            if isinstance(event, ApprovalRequest):
                await attached.approve(event, "allow_once")
        while not [one for one in editor.frames if one.get("method") == "$/cancel_request"]:
            await asyncio.to_thread(editor.read)  # The other client was first.
        editor.decide(request, "reject")
        assert (editor.cwd / "made").exists()

        number = editor.start(session, "!bash touch second")
        editor.decide(await asyncio.to_thread(editor.until_asked), "allow_once")
        assert (await asyncio.to_thread(editor.answer_of, number))["result"]["stopReason"] == "end_turn"
        assert (editor.cwd / "second").exists()
        decisions: list[str] = []
        async with aclosing(attached.follow(0)) as events:
            async for _, one in events:
                if isinstance(one, ApprovalAnswer):
                    decisions.append(one.decision)
                if len(decisions) == 2:
                    break
        assert decisions == ["allow_once"] * 2


def test_sessions_without_a_prompt_are_removed_from_the_daemon(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon")
    editor.new()
    editor.leave()
    again = editors("--via-daemon")
    again.initialize()
    assert again.call("session/list")["sessions"] == []


def test_without_a_daemon_the_first_session_says_how_to_start_one(editors: Start) -> None:
    editor = editors("--via-daemon")
    editor.initialize()
    error = editor.refused("session/new", cwd=str(editor.cwd), mcpServers=[])
    assert "zot daemon" in error["message"]
    assert editor.leave() == []


# The same story everywhere.


class Story(NamedTuple):
    """A run as a client tells it: thoughts, text, calls with their arguments, and whether each failed."""

    thought: str
    text: str
    calls: list[tuple[str, Any]]
    failed: dict[str, bool]


def story_of_events(events: Sequence[AgentEvent]) -> Story:
    return Story(
        "".join(one.delta for one in events if isinstance(one, ThinkingDelta)),
        "".join(one.delta for one in events if isinstance(one, TextDelta)),
        [(one.id, one.args or {}) for one in events if isinstance(one, ToolCall)],
        {one.id: one.is_error for one in events if isinstance(one, ToolResult)},
    )


def story_of_updates(found: Sequence[Frame]) -> Story:
    return Story(
        said(found, "agent_thought_chunk"),
        said(found),
        [(one["toolCallId"], one["rawInput"]) for one in of_kind(found, "tool_call")],
        {one["toolCallId"]: one["status"] == "failed" for one in of_kind(found, "tool_call_update")},
    )


async def test_rpc_daemon_and_editor_tell_the_same_story(editors: Start, zot: Callable[..., Zot], socket: str) -> None:
    prompts = [
        '!script think a ;; say b ;; call bash {"command":"echo c"} ;; --- ;; say d',
        "!tools",
        "!read nothing",
        "!write x y",
        "!bad-args",
        "!length",
    ]
    rpc = zot()
    rpc.send({"type": "hello", "features": ["thinking"]})
    rpc.until(type="response")
    own, shared = editors(), editors("--via-daemon")
    sessions = {own: own.new(), shared: shared.new()}
    async with Client.connect(socket=socket) as client:
        session = await client.session(cwd=str(own.cwd))
        for prompt in prompts:
            rpc.send({"type": "prompt", "message": prompt})
            frames = await asyncio.to_thread(rpc.until, type="done")
            told = [decode_event(json.dumps(frame)) for frame in frames if frame["type"] != "response"]
            expected = story_of_events(told)
            assert story_of_events([event async for event in session.prompt(prompt)]) == expected
            for editor, name in sessions.items():
                _, found = await asyncio.to_thread(editor.prompt, name, prompt)
                assert story_of_updates(found) == expected
