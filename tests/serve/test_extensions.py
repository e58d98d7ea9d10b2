"""Extensions of the real `zot rpc`: the frames that a client gets, and their end with the process."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from extensions.stage import Extension, is_wait
from extensions.test_manager import PANEL, TOOL, interceptor
from harness import PATIENCE_S, Zot, read_some
from tools.shells import MARK, left

NOTICE = (
    'hello("tools"); say("notify", level="warn", message="mind this"); say("ready")\nfor frame in frames():\n    pass\n'
)


def test_a_client_gets_the_extension_events_it_asked_for(zot: Callable[..., Zot], tmp_path: Path) -> None:
    where = [str(Extension(tmp_path, name, script).directory) for name, script in (("a", NOTICE), ("b", TOOL))]
    plain, curious = (zot("--provider", "lab", "--ext", where[0], "--ext", where[1]) for _ in range(2))
    curious.ask({"type": "hello", "features": ["extensions"]})
    for process in (plain, curious):
        process.send({"type": "prompt", "message": '!script call lookup {"q": "it"} ;; --- ;; say done'})
        process.until(type="done")
    results = [[frame for frame in process.frames if frame["type"] == "tool_result"] for process in (plain, curious)]
    assert [result.get("details") for [result] in results] == [None, {"extension": "b"}]
    notices = [
        [frame for frame in process.frames if frame["type"] == "ext_notify" and not is_wait(frame)]
        for process in (plain, curious)
    ]
    assert notices == [[], [{"type": "ext_notify", "extension": "a", "level": "warn", "message": "mind this"}]]
    assert [process.finish() for process in (plain, curious)] == [[], []]


@pytest.mark.parametrize("what", ["hello", "ready"])
@pytest.mark.parametrize("features", [["extensions"], []])
def test_the_first_prompt_waits_for_a_guard_that_starts_slowly_and_says_which_flag_changes_that(
    zot: Callable[..., Zot], tmp_path: Path, what: str, features: list[str]
) -> None:
    wait = "while not os.path.exists('data/go'): time.sleep(0.01)\n"
    greeting = 'hello("events")\n'
    block = interceptor("tool_call", then='answer(frame, block=True, reason="not today")').replace(greeting, "")
    guard = Extension(tmp_path, "guard", f"{wait}{greeting}{block}" if what == "hello" else f"{greeting}{wait}{block}")
    process = zot("--ext", str(guard.directory), "--ext-deadline", "ready=30")
    process.ask({"type": "hello", "features": features})
    process.send({"type": "prompt", "message": '!script call read {"path": "."} ;; --- ;; say done'})
    told = f"waiting for extension guard to say {what}, 30 s at most (--ext-deadline {what}=SECONDS changes that)"
    if features:
        notice = process.until(type="ext_notify")[-1]
        assert notice == {"type": "ext_notify", "extension": "guard", "level": "warn", "message": told}
    else:
        assert process.process.stderr is not None
        said = read_some(process.process.stderr.fileno(), time.monotonic() + PATIENCE_S)
        assert said.decode() == f"[guard] warn: {told}\n"
    (guard.directory / "data" / "go").touch()
    result = process.until(type="tool_result")[-1]
    assert (result["is_error"], result["content"][0]["text"]) == (True, "not today")
    process.until(type="done")
    process.finish()


@pytest.mark.parametrize("features", [["extensions"], []])
def test_a_run_whose_message_is_blocked_succeeds_and_a_notice_gives_the_reason(
    zot: Callable[..., Zot], tmp_path: Path, features: list[str]
) -> None:
    script = interceptor("assistant_message", then='answer(frame, block=True, reason="not for you")')
    process = zot("--ext", str(Extension(tmp_path, "guard", script).directory))
    process.ask({"type": "hello", "features": features})
    process.send({"type": "prompt", "message": "!echo secret"})
    frames = [frame for frame in process.until(type="done") if not is_wait(frame)]
    notice = {
        "type": "ext_notify", "extension": "guard", "level": "warn", "message": "not for you",
        "blocked": "assistant_message",
    }  # fmt: skip
    assert frames[-3 - len(features) :] == [
        frames[-3 - len(features)], *([notice] if features else []), {"type": "turn_end", "stop": "end_turn"},
        {"type": "done"},
    ]  # fmt: skip
    assert not {"error", "assistant_message", "text_delta"} & {frame["type"] for frame in frames}
    process.finish()
    assert ("[guard] warn: not for you\n" in process.errors()) is not bool(features)


def test_a_command_that_returns_a_prompt_is_answered_and_then_prompts(zot: Callable[..., Zot], tmp_path: Path) -> None:
    process = zot("--provider", "lab", "--ext", str(Extension(tmp_path, "menu", PANEL).directory))
    assert process.ask({"type": "run_command", "name": "ask"})["data"] == {
        "extension": "menu", "action": "prompt", "prompt": "!script say asked",
    }  # fmt: skip
    frames = process.until(type="done")
    assert [frame["delta"] for frame in frames if frame["type"] == "text_delta"] == ["asked"]
    assert process.ask({"type": "run_command", "name": "fail"})["error"] == "cannot"
    assert process.finish() == []


def test_a_panel_is_drawn_for_a_client_that_asked_for_it_and_takes_its_keys(
    zot: Callable[..., Zot], tmp_path: Path
) -> None:
    process = zot("--provider", "lab", "--ext", str(Extension(tmp_path, "menu", PANEL).directory))
    process.ask({"type": "hello", "features": ["extensions"]})
    answers = []
    for command in (
        {"type": "run_command", "name": "open"},
        {"type": "panel_key", "panel_id": "p", "key": "rune", "text": "x"},
        {"type": "panel_close", "panel_id": "p"},
        {"type": "panel_key", "panel_id": "p", "key": "up"},
    ):
        process.send(command)
        answers.append(process.until(type="response")[-1])
        if command.get("text"):
            process.until(type="panel_render")
    assert answers[0]["data"] == {"extension": "menu", "action": "open_panel", "panel_id": "p"}
    assert [answer["success"] for answer in answers] == [True, True, True, False]
    assert answers[3]["error"] == "no panel 'p' is open"
    assert process.finish() == []
    panel = {"extension": "menu", "panel_id": "p"}
    assert [frame for frame in process.frames if frame["type"].startswith("panel")] == [
        {"type": "panel_open", **panel, "title": "T", "lines": ["one"], "footer": "f"},
        {"type": "panel_render", **panel, "title": "T", "lines": ["runex"]},
        {"type": "panel_close", **panel},
    ]


def test_no_extension_is_started_before_the_token_was_shown(zot: Callable[..., Zot], tmp_path: Path) -> None:
    extension = Extension(tmp_path, "finder", TOOL)
    env = {"ZOTCORE_RPC_TOKEN": "secret", "ZOT_HOME": str(tmp_path)}
    stranger = zot("--provider", "lab", "--ext", str(extension.directory), env=env)
    assert not stranger.ask({"type": "get_commands"})["success"]
    assert stranger.process.wait(PATIENCE_S) == 1
    assert not (tmp_path / "logs").exists()
    friend = zot("--provider", "lab", "--ext", str(extension.directory), env=env)
    assert friend.ask({"type": "hello", "token": "secret"})["success"]
    assert friend.ask({"type": "get_commands"})["success"]
    assert (tmp_path / "logs" / "ext-finder.log").exists()
    assert friend.finish() == []


def test_at_the_end_of_the_input_an_extension_has_time_to_clean_up(zot: Callable[..., Zot], tmp_path: Path) -> None:
    slow = Extension(tmp_path, "slow", TOOL + 'time.sleep(1.2)\nopen("data/tidy", "w").close()\n')
    process = zot("--provider", "lab", "--ext", str(slow.directory), env={"ZOT_HOME": str(tmp_path)})
    process.ask({"type": "get_commands"})
    assert process.finish() == []
    assert (slow.directory / "data" / "tidy").exists()
    assert "exited with 0" in (tmp_path / "logs" / "ext-slow.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_extensions_end_with_the_process_however_it_ends(
    zot: Callable[..., Zot], tmp_path: Path, number: signal.Signals
) -> None:
    mark, stubborn = uuid.uuid4().hex, "import signal; signal.signal(15, signal.SIG_IGN)\n" + TOOL
    process = zot("--provider", "lab", "--ext", str(Extension(tmp_path, "x", stubborn).directory), env={MARK: mark})
    process.ask({"type": "get_commands"})
    assert any("run.py" in line for line in left(mark))
    os.kill(process.pid, number)
    process.process.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left(mark) == []
