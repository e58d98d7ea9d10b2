"""The queue: prompts run one at a time, steering reaches the running one, and some commands are refused meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness import Frame, Zot, play, text_of, types
from zot.session.queue import MAX_QUEUE

KEPT = ("--provider", "lab", "--session", "s")


def prompt(message: str, frame_id: str = "1") -> Frame:
    return {"type": "prompt", "id": frame_id, "message": message}


def steer(message: str, frame_id: str = "s") -> Frame:
    return {"type": "steer", "id": frame_id, "message": message}


def said(frames: list[Frame]) -> list[str]:
    """Return the user's messages, as the stream shows them."""
    return [frame["content"][0]["text"] for frame in frames if frame["type"] == "user_message"]


def runs(zot: Zot, count: int) -> list[list[Frame]]:
    return [zot.until(type="done") for _ in range(count)]


def test_prompts_run_in_the_order_they_came_in(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(*(prompt(f"!say 2 number{number}", str(number)) for number in range(10)))
    for number, frames in enumerate(runs(process, 10)):
        assert frames[0] == {
            "type": "response",
            "id": str(number),
            "command": "prompt",
            "success": True,
            "data": {"started": True},
        }
        assert text_of(frames) == f"number{number}"
    assert process.finish() == []


def test_other_commands_are_answered_while_a_prompt_runs(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!stall"))
    process.until(type="turn_start")
    assert process.ask({"type": "ping", "id": 1})["data"] == {"pong": True}
    assert process.ask({"type": "hello", "id": 2})["data"]["model"] == "lab-1"
    assert process.ask({"type": "get_models", "id": 3})["data"]["models"][0]["id"] == "lab-1"
    assert process.ask({"type": "get_messages", "id": 4})["data"]["messages"][0]["role"] == "user"
    assert process.ask({"type": "get_state", "id": 5})["data"]["busy"] is True
    process.send({"type": "abort"})
    process.until(type="done")
    assert process.finish() == []


def test_a_compact_waits_like_a_prompt_and_ends_with_done(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(*(prompt(f"!say 1 {word}") for word in ("one", "two", "three")), {"type": "compact", "id": "c"})
    runs(process, 3)
    frames = process.until(type="done")
    assert types(frames) == ["compact:ok", "usage", "compact_done", "done"]
    assert frames[1]["cumulative"]["input"] == 400
    messages = process.ask({"type": "get_messages"})["data"]["messages"]
    assert [message["role"] for message in messages] == ["user", "user", "assistant", "user", "assistant"]
    assert frames[2]["summary"] in messages[0]["content"][0]["text"]
    assert process.finish() == []


def test_nothing_to_compact_is_an_error_and_then_done(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send({"type": "compact", "id": "c"})
    assert types(process.until(type="done")) == ["compact:ok", "error", "done"]
    assert process.finish() == []


def test_a_compact_that_the_service_refuses_changes_nothing(zot: Callable[..., Zot], tmp_path: Path) -> None:
    script = tmp_path / "refusing.lab"
    script.write_text("scene tools=none\nstatus 401\nrepeat\n\nscene '(.*)'\nsay \"yes\"\n")
    process = zot("--script", str(script))
    process.send(*(prompt(f"prompt {number}") for number in range(3)))
    runs(process, 3)
    process.send({"type": "compact"})
    assert types(process.until(type="done")) == ["compact:ok", "error", "done"]
    assert process.ask({"type": "get_state"})["data"]["message_count"] == 6
    assert process.finish() == []


def test_a_full_queue_refuses_the_next_prompt_at_once(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!stall", "0"), *(prompt("!say 1 x", str(number)) for number in range(1, MAX_QUEUE + 2)))
    refused = process.until(success=False)[-1]
    assert (refused["id"], refused["command"]) == (str(MAX_QUEUE + 1), "prompt")
    process.send({"type": "abort"})
    assert len(runs(process, MAX_QUEUE + 1)) == MAX_QUEUE + 1
    assert process.finish() == []


# Steering.


def test_steering_during_a_tool_is_sent_before_the_next_model_call(zot: Callable[..., Zot], tmp_path: Path) -> None:
    process = zot()
    process.send(prompt("!bash echo up; until [ -e go ]; do sleep 0.01; done"))
    process.until(type="tool_progress")
    process.send(steer("!say 1 steered"), {"type": "ping"})
    assert types(process.until(command="ping")) == ["ping:ok"]
    (tmp_path / "go").touch()
    frames = process.until(type="done")
    assert types(frames) == [
        "tool_result", "steer:ok", "user_message", "turn_start", "assistant_start", "text_delta", "usage",
        "assistant_message", "turn_end:end_turn", "done",
    ]  # fmt: skip
    assert (said(frames), text_of(frames), frames[3]["step"]) == (["!say 1 steered"], "steered", 2)
    assert process.finish() == []


def test_steering_during_the_last_turn_continues_the_run(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!slow 3 0.1"))
    process.until(type="text_delta")
    process.send(steer("!say 1 more", "s1"), steer("!say 1 most", "s2"))
    frames = [frame for frame in process.until(type="done") if frame["type"] != "text_delta"]
    assert types(frames) == [
        "usage", "assistant_message", "turn_end:end_turn", "steer:ok", "user_message", "steer:ok", "user_message",
        "turn_start", "assistant_start", "usage", "assistant_message", "turn_end:end_turn", "done",
    ]  # fmt: skip
    assert [frame["id"] for frame in frames if frame.get("command") == "steer"] == ["s1", "s2"]
    assert process.grammar.runs == 1
    assert process.finish() == []


def test_steering_when_nothing_runs_is_a_prompt(zot: Callable[..., Zot]) -> None:
    process = zot()
    play(process, """
        > {"type":"steer","id":"1","message":"!say 1 hi"}
        < {"type":"response","id":"1","command":"steer","success":true,"data":{"started":true}}
        < {"type":"user_message","content":[{"type":"text","text":"!say 1 hi"}],"time":...}
        < {"type":"turn_start","step":1}
        < {"type":"assistant_start"}
        < {"type":"text_delta","delta":"hi"}
        < {"type":"usage", "input":100, ...}
        < {"type":"assistant_message","content":[{"type":"text","text":"hi"}],"time":...}
        < {"type":"turn_end","stop":"end_turn"}
        < {"type":"done"}
    """)  # fmt: skip
    assert process.finish() == []


@pytest.mark.parametrize("flags", [(), KEPT], ids=["not kept", "kept"])
def test_an_abort_drops_the_steering_of_its_run(zot: Callable[..., Zot], tmp_path: Path, flags: Sequence[str]) -> None:
    process = zot(*flags, env={"ZOT_HOME": str(tmp_path)})
    process.send(prompt("!stall", "1"), prompt("!say 1 queued", "2"), steer("!say 1 steered", "3"), {"type": "abort"})
    aborted, queued = runs(process, 2)
    assert types(aborted)[-2:] == ["turn_end:aborted", "done"]
    assert (queued[-1]["type"], text_of(queued)) == ("done", "queued")
    answers = {frame["id"]: frame["success"] for frame in process.frames if "id" in frame and "success" in frame}
    assert answers == {"1": True, "2": True, "3": False}
    assert "steered" not in json.dumps(process.ask({"type": "get_messages"}))
    assert process.finish() == []


def test_an_abort_of_a_compact_drops_the_steering_after_it(zot: Callable[..., Zot], tmp_path: Path) -> None:
    script = tmp_path / "stalls.lab"
    script.write_text("scene tools=none\nstall\n\nscene '(.*)'\nsay \"yes\"\n")
    process = zot("--script", str(script))
    process.send(*(prompt(f"prompt {number}") for number in range(3)))
    runs(process, 3)
    process.send({"type": "compact", "id": "c"}, steer("steered", "s"), {"type": "abort"})
    process.until(type="done")
    answers = {frame["id"]: frame["success"] for frame in process.frames if "id" in frame and "success" in frame}
    assert (answers["c"], answers["s"]) == (True, False)
    assert "steered" not in json.dumps(process.ask({"type": "get_messages"}))
    assert process.finish() == []


def test_steering_a_run_that_is_being_aborted_fails(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!stall", "1"), {"type": "abort"}, steer("!say 1 steered", "2"))
    frames = process.until(type="done")
    refused = next(frame for frame in frames if frame.get("id") == "2")
    assert refused == {
        "type": "response",
        "id": "2",
        "command": "steer",
        "success": False,
        "error": "not delivered: the prompt it was to steer was aborted",
    }
    assert process.finish() == []
    assert process.grammar.runs == 1


@pytest.mark.parametrize("flags", [(), KEPT], ids=["not kept", "kept"])
def test_an_abort_right_after_a_prompt_ends_it_even_if_an_earlier_answer_is_awaited(
    zot: Callable[..., Zot], tmp_path: Path, flags: Sequence[str]
) -> None:
    process = zot(*flags, env={"ZOT_HOME": str(tmp_path)})
    process.send({"type": "get_commands"}, prompt("!stall", "1"), steer("!say 1 steered", "2"), {"type": "abort"})
    (aborted,) = runs(process, 1)
    assert types(aborted)[-2:] == ["turn_end:aborted", "done"]
    assert process.finish() == []
    assert process.grammar.runs == 1


def test_an_abort_of_the_queue_drops_prompts_that_wait_for_an_earlier_answer(
    zot: Callable[..., Zot], tmp_path: Path
) -> None:
    process = zot(*KEPT, env={"ZOT_HOME": str(tmp_path)})
    process.send(prompt("!stall", "1"), prompt("!say 1 queued", "2"), {"type": "abort", "queue": True, "id": "3"})
    process.until(type="done")
    assert process.finish() == []
    answers = {frame["id"]: frame["success"] for frame in process.frames if "id" in frame and "success" in frame}
    assert answers == {"1": True, "2": False, "3": True}
    assert process.grammar.runs == 1


def test_every_run_has_its_number_even_one_that_began_with_steering(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.ask({"type": "hello", "features": ["seq"]})
    process.send(steer("!stall"), prompt("!say 1 two"), {"type": "abort"})
    runs(process, 2)
    process.send(steer("!say 1 three"))
    runs(process, 1)
    events = [frame for frame in process.frames if frame["type"] != "response"]
    ends = [frame["run"] for frame in events if frame["type"] == "done"]
    assert ends == [1, 2, 3]
    assert [frame["run"] for frame in events] == sorted(frame["run"] for frame in events)
    assert process.finish() == []


# What may and may not happen while a prompt runs.


def test_a_conversation_cannot_be_cleared_while_a_prompt_runs(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!stall"))
    process.until(type="turn_start")
    assert process.ask({"type": "clear", "id": "c"})["success"] is False
    process.send({"type": "abort"})
    process.until(type="done")
    assert process.ask({"type": "get_state"})["data"]["message_count"] == 1
    assert process.ask({"type": "clear", "id": "c"}) == {
        "type": "response",
        "id": "c",
        "command": "clear",
        "success": True,
    }
    assert process.ask({"type": "get_state"})["data"]["message_count"] == 0
    assert process.finish() == []


def test_clearing_keeps_the_usage(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!usage 7 5 3 2"))
    process.until(type="done")
    process.ask({"type": "clear"})
    usage = process.ask({"type": "get_state"})["data"]["usage"]
    assert usage == {"input": 7, "output": 5, "cache_read": 3, "cache_write": 2, "cost_usd": 0.0}
    assert process.finish() == []


def test_another_model_is_used_from_the_next_call_on(zot: Callable[..., Zot], lab_url: str, tmp_path: Path) -> None:
    """Each call is charged to the model that answered it, even if the client has chosen another since."""
    process = zot("--provider", "anthropic", "--base-url", lab_url, "--api-key", "none", "--model", "claude-opus-4-1")
    process.send(prompt("!bash echo up; until [ -e go ]; do sleep 0.01; done"))
    first = next(frame for frame in process.until(type="tool_progress") if frame["type"] == "usage")
    assert process.ask({"type": "set_model", "model": "claude-haiku-4-5"})["data"] == {"model": "claude-haiku-4-5"}
    assert process.ask({"type": "get_state"})["data"]["model"] == "claude-haiku-4-5"
    assert process.ask({"type": "hello"})["data"]["model"] == "claude-haiku-4-5"
    (tmp_path / "go").touch()
    second = next(frame for frame in process.until(type="done") if frame["type"] == "usage")
    assert first["cost_usd"] == pytest.approx((100 * 15 + 20 * 75) / 1e6)
    assert second["cost_usd"] == pytest.approx((100 * 1 + 20 * 5) / 1e6)
    assert process.finish() == []


def test_a_model_that_does_not_exist_changes_nothing(zot: Callable[..., Zot]) -> None:
    process = zot()
    answer = process.ask({"type": "set_model", "id": "m", "model": "gpt-5"})
    assert answer["success"] is False
    assert "lab-1" in answer["error"]
    assert process.ask({"type": "get_state"})["data"]["model"] == "lab-1"
    assert process.finish() == []
