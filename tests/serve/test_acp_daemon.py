"""An editor on the sessions of a daemon: `zot acp --via-daemon`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket as socket_module
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pytest

from editor import Editor, Frame, of_kind, said, updates
from forked import Forked, ForkServer
from harness import PATIENCE_S, Zot, environment, eventually
from zot.client.client import Client
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolResult,
    TurnEnd,
)
from zot.events import decode as decode_event
from zot.messages import text_of
from zot.serve.acp.session import encode_failure
from zot.wire import acp
from zot.wire.jsonrpc import NOT_OWNED, SESSION_BUSY, SESSION_NOT_FOUND, RpcError

from .test_acp import ASKING_SERVER, cancel_a_held_prompt, cancel_a_message_that_steers, until_called

Start: TypeAlias = Callable[..., Editor]


@pytest.fixture
def socket(tmp_path: Path, fork_server: ForkServer) -> Iterator[str]:
    """Start a daemon whose home is that of the editors; return its socket."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["bash=ask"]\n')
    with daemon_in(tmp_path, fork_server):
        yield str(tmp_path / "home" / "data" / "daemon.sock")


@contextmanager
def daemon_in(directory: Path, fork_server: ForkServer) -> Iterator[Forked]:
    """Run a daemon until it has ended or is no longer needed."""
    daemon = fork_server.fork(
        ("daemon", "--provider", "lab"), directory, environment({"ZOT_HOME": str(directory / "home")})
    )
    try:
        assert eventually(lambda: accepts(str(directory / "home" / "data" / "daemon.sock")))
        yield daemon
    finally:
        if daemon.poll() is None:
            daemon.send_signal(signal.SIGTERM)
        daemon.communicate()


def accepts(path: str) -> bool:
    """True if a daemon accepts connections at a socket."""
    with socket_module.socket(socket_module.AF_UNIX) as one:
        return one.connect_ex(path) == 0


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


@pytest.mark.parametrize("is_taken", [False, True])
def test_cancelling_a_message_that_steers_leaves_the_run_of_the_daemon(
    editors: Start, socket: str, is_taken: bool
) -> None:
    cancel_a_message_that_steers(editors("--via-daemon"), is_taken=is_taken)


def test_a_prompt_is_cancelled_while_it_waits_for_a_setting_of_the_daemon(editors: Start, socket: str) -> None:
    cancel_a_held_prompt(editors("--via-daemon"))


def test_the_card_of_a_write_in_the_daemon_has_no_former_text(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon")
    session = editor.new()
    (editor.cwd / "a.txt").write_text("one")
    _, found = editor.prompt(session, "!write a.txt two")
    diff = {"type": "diff", "path": str(editor.cwd / "a.txt"), "newText": "two"}
    assert of_kind(found, "tool_call")[0]["content"] == [diff]


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


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
def test_closing_a_session_cancels_its_prompts(editors: Start, socket: str, method: str) -> None:
    editor = editors("--via-daemon")
    session = editor.new()
    numbers = [editor.start(session, text) for text in ("!stall-mid", "!echo two")]
    while not said(updates(editor.frames)):
        editor.read()
    numbers.append(editor.ask_for(method, sessionId=session))
    answers: dict[int, Frame] = {}
    while len(answers) < 3:
        if "result" in (frame := editor.read()):
            answers[frame["id"]] = frame["result"]
    assert answers == dict(zip(numbers, [{"stopReason": "cancelled"}, {"stopReason": "cancelled"}, {}], strict=True))
    assert editor.leave() == []


def test_a_compaction_in_the_daemon_is_answered_even_if_there_is_nothing_to_replace(
    editors: Start, socket: str
) -> None:
    editor = editors("--via-daemon")
    session = editor.new()
    assert "error" in editor.answer_of(editor.start(session, "/compact"))
    assert editor.prompt(session, "!echo one")[0] == "end_turn"
    assert editor.leave() == []


def test_a_session_of_the_daemon_has_no_modes(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon")
    error = editor.refused("session/set_mode", sessionId=editor.new(), modeId="ask")
    assert (error["code"], "policy" in error["message"]) == (-32602, True)


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


def test_a_question_of_an_mcp_server_in_the_daemon_is_an_elicitation(
    editors: Start, tmp_path: Path, fork_server: ForkServer
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f"[mcp.s]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(ASKING_SERVER), 'form'])}\n"
    )
    with daemon_in(tmp_path, fork_server):
        editor = editors("--via-daemon")
        session = editor.new(elicitation={"form": {}})
        number = until_called(editor, session)
        [asked] = [one for one in editor.frames if one.get("method") == "elicitation/create"]
        editor.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}})
        assert editor.answer_of(number)["result"]["stopReason"] == "end_turn"
        text = of_kind(updates(editor.frames), "tool_call_update")[-1]["content"][0]["content"]["text"]
        assert json.loads(text.strip("`\n")) == {"action": "decline"}


def test_without_a_daemon_the_first_session_says_how_to_start_one(editors: Start) -> None:
    editor = editors("--via-daemon")
    editor.initialize()
    error = editor.refused("session/new", cwd=str(editor.cwd), mcpServers=[])
    assert "zot daemon" in error["message"]
    assert editor.leave() == []


def load(editor: Editor, session: str) -> list[Frame]:
    """Load a session and return the updates before the answer."""
    before = len(editor.frames)
    editor.call("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    return updates(editor.frames[before:])


@pytest.mark.parametrize("flags", [(), ("--via-daemon",)])
def test_loading_an_open_session_replays_its_run_and_continues(
    editors: Start, socket: str, flags: tuple[str, ...]
) -> None:
    editor = editors(*flags)
    session = editor.new()
    os.mkfifo(editor.cwd / "fifo")
    editor.prompt(session, "!write a.txt text")
    script = '!script say one ;; call bash {"command":"read line < fifo"} ;; --- ;; say two'
    number = editor.start(session, script)
    while [one["title"] for one in of_kind(updates(editor.frames), "tool_call")] != ["write a.txt", "read line < fifo"]:
        editor.read()
    before = len(editor.frames)
    load(editor, session)
    while len(of_kind(updates(editor.frames[before:]), "tool_call")) < 2:
        editor.read()
    with open(editor.cwd / "fifo", "w") as fifo:
        fifo.write("go\n")
    assert editor.answer_of(number)["result"]["stopReason"] == "end_turn"
    told = updates(editor.frames[before:])
    answers = [frame for frame in editor.frames if frame.get("id") == number and "method" not in frame]
    assert len(answers) == 1
    assert editor.leave() == []

    again = editors(*flags)
    again.initialize()
    recorded = load(again, session)
    assert story_of_updates(told) == story_of_updates(recorded)
    assert said(told, "user_message_chunk") == said(recorded, "user_message_chunk") == "!write a.txt text" + script


@pytest.mark.parametrize("flags", [(), ("--via-daemon",)])
def test_loading_an_open_session_shows_the_text_of_the_running_step_once(
    editors: Start, socket: str, flags: tuple[str, ...]
) -> None:
    editor = editors(*flags)
    session = editor.new()
    number = editor.start(session, "!stall-mid")
    while not said(updates(editor.frames)):
        editor.read()
    editor.call("session/list")
    shown = said(updates(editor.frames))
    for _ in range(2):
        before = len(editor.frames)
        load(editor, session)
        while len(said(updates(editor.frames[before:]))) < len(shown):
            editor.read()
        assert said(updates(editor.frames[before:])) == shown
        assert said(updates(editor.frames[before:]), "user_message_chunk") == "!stall-mid"
    editor.tell("session/cancel", sessionId=session)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert said(updates(editor.frames[before:])) == shown
    assert editor.leave() == []


@pytest.mark.parametrize("flags", [(), ("--via-daemon",)])
def test_a_load_that_fails_leaves_the_run_as_it_is(editors: Start, socket: str, flags: tuple[str, ...]) -> None:
    editor = editors(*flags)
    session = editor.new()
    os.mkfifo(editor.cwd / "fifo")
    number = editor.start(session, '!script call bash {"command":"read line < fifo"} ;; --- ;; say two')
    while not of_kind(updates(editor.frames), "tool_call"):
        editor.read()
    servers = [{"name": "one", "type": "sse", "url": "http://127.0.0.1:1", "headers": []}]
    loads = [
        editor.ask_for("session/load", sessionId=session, cwd=str(editor.cwd), mcpServers=servers) for _ in range(2)
    ]
    editor.tell("$/cancel_request", requestId=loads[1])
    while not {frame.get("id") for frame in editor.frames if "method" not in frame}.issuperset(loads):
        editor.read()
    with open(editor.cwd / "fifo", "w") as fifo:
        fifo.write("go\n")
    assert editor.answer_of(number)["result"]["stopReason"] == "end_turn"
    assert said(updates(editor.frames)).endswith("two")
    assert editor.leave() == []


def test_a_client_that_joins_a_running_session_gets_its_run(editors: Start, socket: str) -> None:
    editor, other = editors("--via-daemon"), editors("--via-daemon")
    session = editor.new()
    number = editor.start(session, "!stall-mid")
    while not said(updates(editor.frames)):
        editor.read()
    editor.call("session/list")
    shown = said(updates(editor.frames))
    other.initialize()
    load(other, session)
    while len(said(updates(other.frames))) < len(shown):
        other.read()
    assert (said(updates(other.frames)), said(updates(other.frames), "user_message_chunk")) == (shown, "!stall-mid")
    other.tell("session/cancel", sessionId=session)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_client_that_joins_a_waiting_session_can_approve(editors: Start, socket: str, method: str) -> None:
    editor, other = editors("--via-daemon", "--agent", "careful"), editors("--via-daemon")
    session = editor.new()
    calls = " ;; ".join(f'call bash {{"command":"{command}"}}' for command in ("true", "touch made"))
    number = editor.start(session, f"!script {calls} ;; --- ;; say end")
    editor.decide(editor.until_asked(), "allow_once")
    editor.until_asked()
    other.initialize()
    other.call(method, sessionId=session, cwd=str(editor.cwd), mcpServers=[])
    request = other.until_asked()
    assert request["params"]["toolCall"]["title"] == "touch made"
    other.decide(request, "allow_once")
    assert editor.answer_of(number)["result"]["stopReason"] == "end_turn"
    assert (editor.cwd / "made").exists()
    while not said(updates(other.frames)).endswith("end"):
        other.read()
    cards = [one["toolCallId"] for one in of_kind(updates(other.frames), "tool_call")]
    assert request["params"]["toolCall"]["toolCallId"] == cards[-1]
    assert {one["toolCallId"] for one in of_kind(updates(other.frames), "tool_call_update")} <= set(cards)


def test_cancelling_a_queued_prompt_leaves_the_one_that_waits_for_an_approval(editors: Start, socket: str) -> None:
    editor = editors("--via-daemon", "--agent", "careful")
    session = editor.new()
    first = editor.start(session, "!bash touch made")
    request = editor.until_asked()
    second = editor.start(session, "!echo second")
    editor.call("session/list")
    editor.tell("$/cancel_request", requestId=second)
    assert editor.answer_of(second)["result"]["stopReason"] == "cancelled"
    editor.call("session/list")
    assert not [frame for frame in editor.frames if frame.get("id") == first and "result" in frame]
    editor.decide(request, "allow_once")
    assert editor.answer_of(first)["result"]["stopReason"] == "end_turn"
    assert (editor.cwd / "made").exists()
    assert editor.prompt(session, "!echo third")[0] == "end_turn"
    assert editor.leave() == []


def test_a_daemon_killed_under_a_prompt_fails_it_and_the_next_daemon_continues(
    editors: Start, tmp_path: Path, fork_server: ForkServer
) -> None:
    with daemon_in(tmp_path, fork_server) as daemon:
        editor = editors("--via-daemon")
        session = editor.new()
        assert editor.prompt(session, "!echo one")[0] == "end_turn"
        numbers = [editor.start(session, text) for text in ("!stall-mid", "!echo queued")]
        while not said(updates(editor.frames)).removeprefix("one"):
            editor.read()
        daemon.send_signal(signal.SIGKILL)
    errors: dict[int, str] = {}
    while len(errors) < 2:
        frame = editor.read(within_s=PATIENCE_S)
        if "error" in frame:
            errors[frame["id"]] = frame["error"]["message"]
    assert sorted(errors) == sorted(numbers)
    assert all("zot daemon" in message for message in errors.values()), errors
    assert "zot daemon" in editor.answer_of(editor.start(session, "!echo two"))["error"]["message"]
    with daemon_in(tmp_path, fork_server):
        stop, found = editor.prompt(session, "!echo three")
        assert (stop, said(found)) == ("end_turn", "three")
        assert editor.call("session/set_config_option", sessionId=session, configId="reasoning", value="high")
        replayed = load(editor, session)
        assert said(replayed, "user_message_chunk").endswith("!echo three")
        assert editor.leave() == []


def test_a_daemon_that_is_restarted_under_a_prompt_answers_it_once(
    editors: Start, tmp_path: Path, fork_server: ForkServer
) -> None:
    with daemon_in(tmp_path, fork_server) as daemon:
        editor = editors("--via-daemon")
        session = editor.new()
        number = editor.start(session, "!stall-mid")
        while not said(updates(editor.frames)):
            editor.read()
        daemon.send_signal(signal.SIGKILL)
    with daemon_in(tmp_path, fork_server):
        answer = editor.answer_of(number)
        assert "error" in answer or answer["result"]["stopReason"] == "cancelled", answer
        assert editor.prompt(session, "!echo again")[0] == "end_turn"
        assert [frame for frame in editor.leave() if frame.get("id") == number] == []


# The same story everywhere.


class Story(NamedTuple):
    """A run as a client tells it."""

    #: Thoughts, text and calls in order: what it is, its text or the id of the call, and the call's arguments.
    steps: list[tuple[str, str, Any]]
    #: Whether each call failed, and its output.
    results: dict[str, tuple[bool, str]]


def joined(steps: Sequence[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """Return ``steps`` with the pieces of each text joined."""
    found: list[tuple[str, str, Any]] = []
    for kind, text, more in steps:
        before = found.pop()[1] if found and kind != "call" and found[-1][0] == kind else ""
        found.append((kind, before + text, more))
    return found


def timeless(output: str) -> str:
    return re.sub(r"Took [\d.]+m?s", "Took", output.strip())


def story_of_events(events: Sequence[AgentEvent]) -> Story:
    steps: list[tuple[str, str, Any]] = []
    names: dict[str, str] = {}
    results: dict[str, tuple[bool, str]] = {}
    for event in events:
        match event:
            case ThinkingDelta(delta=delta):
                steps.append(("thought", delta, None))
            case TextDelta(delta=delta):
                steps.append(("text", delta, None))
            case ToolCall(id=call, name=name, args=args):
                names[call] = name
                steps.append(("call", call, (name, args or {})))
            case ToolResult(id=call, is_error=fails, content=content):
                keeps_diff = names[call] in ("write", "edit") and not fails
                results[call] = fails, "" if keeps_diff else timeless(text_of(content))
            case _:
                pass
    return Story(joined(steps), results)


def story_of_updates(found: Sequence[Frame]) -> Story:
    steps: list[tuple[str, str, Any]] = []
    results: dict[str, tuple[bool, str]] = {}
    for one in found:
        match one:
            case {"sessionUpdate": "agent_thought_chunk", "content": {"text": text}}:
                steps.append(("thought", text, None))
            case {"sessionUpdate": "agent_message_chunk", "content": {"text": text}}:
                steps.append(("text", text, None))
            case {"sessionUpdate": "tool_call", "toolCallId": call, "name": name, "rawInput": args}:
                steps.append(("call", call, (name, args)))
            case {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "failed" | "completed" as status}:
                assert call not in results
                output = "".join(block["content"]["text"] for block in one.get("content", ()))
                results[call] = status == "failed", timeless(output.strip("`\n"))
            case _:
                pass
    return Story(joined(steps), results)


async def test_rpc_daemon_and_editor_tell_the_same_story(editors: Start, zot: Callable[..., Zot], socket: str) -> None:
    prompts = [
        '!script think a ;; say b ;; call bash {"command":"echo c"} ;; --- ;; say d',
        "!tools",
        "!read nothing",
        "!write x y",
        "!bad-args",
        "!length",
        '!script say a ;; call read {"path":"x"} ;; call bash {"command":"printf \'```\'; exit 3"} ;; --- ;; say b',
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
            expected, [*_, turn_end] = story_of_events(told), [one for one in told if isinstance(one, TurnEnd)]
            turn = session.prompt(prompt)
            assert story_of_events([event async for event in turn]) == expected
            assert turn.outcome is not None
            assert turn.outcome.stop_reason == turn_end.stop
            for editor, name in sessions.items():
                stop, found = await asyncio.to_thread(editor.prompt, name, prompt)
                assert story_of_updates(found) == expected
                assert stop == ("max_tokens" if turn_end.stop == "length" else turn_end.stop)


@pytest.mark.parametrize(
    ("code", "sent"), [(SESSION_NOT_FOUND, acp.NOT_FOUND), (SESSION_BUSY, acp.BUSY), (NOT_OWNED, NOT_OWNED)]
)
def test_errors_of_the_daemon_have_the_codes_that_editors_know(code: int, sent: int) -> None:
    answer = json.loads(encode_failure(msgspec.Raw(b"1"), RpcError(code, "why")))
    assert answer["error"] == {"code": sent, "message": "why"}
