"""An abort ends the run in every phase, at once and in order, and leaves no process."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Frame, Zot, eventually, living, play, text_of, types
from zot.providers.lab.script import Script

ABORT = {"type": "abort", "id": "stop"}
TAIL = ["abort:ok", "turn_end:aborted", "done"]


def prompt(message: str, frame_id: str = "1") -> Frame:
    return {"type": "prompt", "id": frame_id, "message": message}


def state(zot: Zot) -> Frame:
    data: Frame = zot.ask({"type": "get_state"})["data"]
    return data


def roles(zot: Zot) -> list[str]:
    return [message["role"] for message in zot.ask({"type": "get_messages"})["data"]["messages"]]


def test_an_abort_in_the_same_write_as_its_prompt_aborts_that_prompt(zot: Callable[..., Zot]) -> None:
    process = zot()
    play(process, """
        > {"type":"prompt","id":"1","message":"!say 1 never"}
        > {"type":"abort","id":"2"}
        < {"type":"response","id":"1","command":"prompt","success":true,"data":{"started":true}}
        < {"type":"user_message","content":[{"type":"text","text":"!say 1 never"}],"time":...}
        < {"type":"response","id":"2","command":"abort","success":true}
        < {"type":"turn_end","stop":"aborted"}
        < {"type":"done"}
        > {"type":"prompt","id":"3","message":"!say 1 next"}
        < {"type":"response","id":"3","command":"prompt","success":true,"data":{"started":true}}
        < {"type":"user_message","content":[{"type":"text","text":"!say 1 next"}],"time":...}
        < {"type":"turn_start","step":1}
        < {"type":"assistant_start"}
        < {"type":"text_delta","delta":"next"}
        < {"type":"usage", "input":100, "output":20, ...}
        < {"type":"assistant_message","content":[{"type":"text","text":"next"}],"time":...}
        < {"type":"turn_end","stop":"end_turn"}
        < {"type":"done"}
    """)  # fmt: skip
    assert process.finish() == []


@pytest.mark.parametrize("scene", ["!stall", "!script wait 60 ;; say never"])
def test_an_abort_before_the_answer_is_an_abort_and_not_an_error(zot: Callable[..., Zot], scene: str) -> None:
    process = zot()
    process.send(prompt(scene))
    process.until(type="turn_start")
    process.send(ABORT)
    assert types(process.until(type="done")) == TAIL
    assert roles(process) == ["user"]
    assert process.finish() == []


def test_an_abort_before_the_headers_of_a_real_service_closes_the_connection(
    zot: Callable[..., Zot], lab_url: str
) -> None:
    process = zot("--provider", "anthropic", "--base-url", lab_url, "--api-key", "none")
    process.send(prompt("!stall"))
    process.until(type="turn_start")
    process.send(ABORT)
    assert types(process.until(type="done")) == TAIL
    process.send(prompt("!say 1 next"))
    assert text_of(process.until(type="done")) == "next"
    assert process.finish() == []


@pytest.mark.parametrize("scene", ["!slow 1000 0.01", "!stall-mid", "!pings"])
def test_an_abort_during_the_answer_keeps_the_text_so_far(zot: Callable[..., Zot], scene: str) -> None:
    process = zot()
    process.send(prompt(scene))
    process.until(type="text_delta")
    process.send(ABORT)
    tail = [frame for frame in process.until(type="done") if frame["type"] != "text_delta"]
    assert types(tail) == ["abort:ok", "usage", "assistant_message", "turn_end:aborted", "done"]
    said = text_of(process.frames)
    assert said
    assert tail[2]["content"] == [{"type": "text", "text": said}]
    assert roles(process) == ["user", "assistant"]
    assert process.finish() == []


def test_nothing_is_emitted_between_an_abort_and_its_end(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!slow 100000 0.0001"))
    process.until(type="text_delta")
    process.send(ABORT)
    process.until(command="abort")
    assert types(process.until(type="done")) == ["usage", "assistant_message", "turn_end:aborted", "done"]
    assert process.finish() == []


def test_a_half_written_tool_call_is_dropped_by_the_abort(zot: Callable[..., Zot]) -> None:
    script = 'say "look" ;; pace 30 ;; call bash {"command": "echo never"} chunks=4'
    process = zot()
    process.send(prompt(f"!script {script}"))
    process.until(type="tool_use_start")
    process.send(ABORT)
    tail = process.until(type="done")
    assert types(tail) == ["abort:ok", "usage", "assistant_message", "turn_end:aborted", "done"]
    assert tail[2]["content"] == [{"type": "text", "text": "look"}]
    process.send(prompt("!say 1 next"))
    assert text_of(process.until(type="done")) == "next"
    assert process.finish() == []


def test_an_abort_ends_a_command_and_all_it_started(zot: Callable[..., Zot]) -> None:
    mark = f"ABORTED_{uuid.uuid4().hex}"
    process = zot()
    process.send(
        prompt(f"!bash export {mark}=1; sleep 600 & (trap '' TERM; sleep 600) & sleep 600 | cat & echo up; wait")
    )
    process.until(type="tool_progress")
    assert eventually(lambda: len(living(mark)) >= 4)
    process.send(ABORT)
    tail = process.until(type="done")
    assert types(tail) == ["abort:ok", "tool_result", "turn_end:aborted", "done"]
    assert tail[1]["is_error"] is True
    assert living(mark) == []
    assert roles(process) == ["user", "assistant", "tool"]
    process.send(prompt("!say 1 next"))
    assert text_of(process.until(type="done")) == "next"
    assert process.finish() == []


def test_calls_not_started_before_an_abort_have_no_effect(zot: Callable[..., Zot], tmp_path: Path) -> None:
    script = (
        'call bash {"command": "echo up; sleep 600"} ;; call write {"path": "never.txt", "content": "x"}'
        ' ;; call bash {"command": "touch never.too"} ;; --- ;; say never'
    )
    process = zot()
    process.send(prompt(f"!script {script}"))
    calls = [frame["id"] for frame in process.until(type="turn_end") if frame["type"] == "tool_call"]
    process.until(type="tool_progress")
    process.send(ABORT)
    tail = process.until(type="done")
    results = [frame for frame in tail if frame["type"] == "tool_result"]
    assert [(result["id"], result["is_error"]) for result in results] == [(call, True) for call in calls]
    assert list(tmp_path.iterdir()) == []
    assert process.finish() == []


def test_an_abort_does_not_wait_for_a_retry(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.ask({"type": "hello", "features": ["retries"]})
    process.send(prompt("!limit 60"))
    [*_, retry] = process.until(type="retry")
    assert retry["delay_ms"] == 60_000
    process.send(ABORT)
    assert types(process.until(type="done")) == TAIL
    assert process.finish() == []


def stalling_compact(directory: Path) -> Path:
    """A script that answers prompts, and stays silent on a request for a summary."""
    path = directory / "compact.lab"
    path.write_text("scene tools=none\nstall\nrepeat\n\nscene '(.*)'\nsay \"yes\"\n")
    assert not Script.load(str(path)).linear
    return path


def test_an_abort_ends_a_compact(zot: Callable[..., Zot], tmp_path: Path) -> None:
    process = zot("--script", str(stalling_compact(tmp_path)))
    for number in range(3):
        process.send(prompt(f"prompt {number}"))
        process.until(type="done")
    process.send({"type": "compact", "id": "c"})
    assert types(process.until(command="compact")) == ["compact:ok"]
    assert state(process)["busy"] is True
    process.send(ABORT)
    assert types(process.until(type="done")) == TAIL
    after = state(process)
    assert (after["busy"], after["message_count"]) == (False, 6)
    assert process.finish() == []


def test_an_abort_in_the_same_write_as_its_compact_aborts_that_compact(zot: Callable[..., Zot], tmp_path: Path) -> None:
    process = zot("--script", str(stalling_compact(tmp_path)))
    process.send({"type": "compact", "id": "c"}, ABORT)
    assert types(process.until(type="done")) == ["compact:ok", *TAIL]
    assert process.finish() == []


def test_queued_prompts_run_after_an_abort(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!stall", "1"), prompt("!say 1 second", "2"), prompt("!say 1 third", "3"), ABORT)
    assert types(process.until(type="done")) == ["prompt:ok", "user_message", *TAIL]
    for frame_id, said in (("2", "second"), ("3", "third")):
        frames = process.until(type="done")
        assert (frames[0]["id"], text_of(frames)) == (frame_id, said)
    assert process.finish() == []


def test_an_abort_with_queue_drops_waiting_prompts_and_reports_it(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(
        prompt("!stall", "1"), prompt("!say 1 second", "2"), {"type": "compact", "id": "3"}, {"type": "steer",
        "id": "4", "message": "hurry"}, {**ABORT, "queue": True}, prompt("!say 1 after", "5"),
    )  # fmt: skip
    frames = process.until(type="done")
    assert types(frames)[:3] == ["prompt:ok", "user_message", "abort:ok"]
    dropped = {frame["id"]: types([frame]) for frame in frames if not frame.get("success", True)}
    assert dropped == {"2": ["prompt:failed"], "3": ["compact:failed"], "4": ["steer:failed"]}
    assert types(frames)[-2:] == ["turn_end:aborted", "done"]
    frames = process.until(type="done")
    assert (frames[0]["id"], text_of(frames)) == ("5", "after")
    assert process.finish() == []


def test_a_second_abort_changes_nothing(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!bash trap '' TERM; echo up; sleep 600"))
    process.until(type="tool_progress")
    process.send(ABORT, ABORT, {**ABORT, "id": "again"})
    assert types(process.until(type="done")) == ["abort:ok"] * 3 + ["tool_result", "turn_end:aborted", "done"]
    assert process.finish() == []


def test_an_abort_when_nothing_runs_is_only_answered(zot: Callable[..., Zot]) -> None:
    process = zot()
    assert process.ask(ABORT) == {"type": "response", "id": "stop", "command": "abort", "success": True}
    assert process.ask({"type": "abort", "queue": True}) == {"type": "response", "command": "abort", "success": True}
    process.send(prompt("!say 1 unharmed"))
    assert text_of(process.until(type="done")) == "unharmed"
    assert process.finish() == []


def test_a_session_is_busy_until_done_is_out(zot: Callable[..., Zot]) -> None:
    process = zot()
    assert state(process)["busy"] is False
    process.send(prompt("!bash trap '' TERM; echo up; sleep 600"), {"type": "get_state"})
    assert process.until(command="get_state")[-1]["data"]["busy"] is True
    process.until(type="tool_progress")
    process.send(ABORT, {"type": "get_state"})
    assert process.until(command="get_state")[-1]["data"]["busy"] is True
    process.until(type="done")
    assert state(process)["busy"] is False
    assert process.finish() == []


def test_a_command_s_output_until_the_abort_is_in_its_result(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!bash echo heard; sleep 600"))
    process.until(type="tool_progress")
    process.send(ABORT)
    [_, result, *_] = process.until(type="done")
    [block] = result["content"]
    assert (result["type"], result["is_error"]) == ("tool_result", True)
    text = re.sub(r"Took .*", "Took T", block["text"])
    assert text == "$ echo heard; sleep 600\n\nheard\n\n[exit -1] (aborted)  Took T"
    # The model hears the same.
    messages = process.ask({"type": "get_messages"})["data"]["messages"]
    assert messages[-1]["content"][0]["content"] == result["content"]
    assert process.finish() == []
