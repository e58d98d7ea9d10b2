"""Made-up conversations of an editor: every request has one answer, nothing follows, and every frame is valid."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from editor import Editor, Frame

PROMPTS = st.sampled_from(
    [
        "!echo hello",
        "!script think a ;; say b ;; call bash {\"command\":\"echo c\"} ;; --- ;; say d",
        "!write a.txt text",
        "!edit a.txt text other",
        "!read a.txt",
        "!status 400",
        "!length",
        "!stall-mid",
        "!bad-args",
        "/compact",
        "",
    ]
)  # fmt: skip
STEPS = st.one_of(
    st.tuples(st.just("prompt"), PROMPTS, st.booleans()),
    st.tuples(st.just("cancel")),
    st.tuples(st.just("cancel request"), st.integers(0, 8)),
    st.tuples(st.just("mode"), st.sampled_from(["ask", "plan", "allow_all", "nonsense"])),
    st.tuples(st.just("option"), st.sampled_from(["model", "reasoning", "mode", "other"]), st.text(max_size=5)),
    st.tuples(st.just("open"), st.sampled_from(["session/load", "session/resume", "session/fork"])),
    st.tuples(st.just("list")),
    st.tuples(st.just("close")),
    st.tuples(st.just("junk"), st.sampled_from([b"{}", b"[]", b'{"jsonrpc":"2.0","id":7,"method":1}', b"\xff"])),
)
#: Updates that belong to a run.
OF_RUN = {"agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "usage_update"}


@settings(
    max_examples=16 if "ACP_SCHEMA" in os.environ else 4, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEPS, max_size=12), answers=st.lists(st.sampled_from(["allow_once", "reject", None])))
def test_every_request_has_one_answer_and_nothing_follows_it(
    editors: Callable[..., Editor], steps: list[Any], answers: list[str | None]
) -> None:
    editor = editors()
    session = editor.new(fs={"readTextFile": True, "writeTextFile": True}, session={"notices": {}, "compaction": {}})
    asked = [take(editor, session, step) for step in steps]
    prompts = [number for number, step in zip(asked, steps, strict=True) if number and step[0] == "prompt"]
    editor.tell("session/cancel", sessionId=session)
    last = editor.ask_for("session/list")
    waiting = {number for number in asked if number} | {last}
    seen: list[Frame] = []
    answered: list[int] = []
    while waiting - set(answered):
        frame = editor.read()
        seen.append(frame)
        if frame.get("method") == "session/request_permission":
            editor.decide(frame, answers.pop() if answers else "allow_once")
        elif "method" not in frame and frame.get("id") in waiting:
            answered.append(frame["id"])
    seen += editor.leave()
    answered = [frame["id"] for frame in seen if "method" not in frame and frame.get("id") in waiting]
    assert sorted(answered) == sorted(waiting)
    ends = [at for at, frame in enumerate(seen) if "method" not in frame and frame.get("id") in prompts]
    after = [frame["params"] for frame in seen[max(ends, default=0) :] if frame.get("method") == "session/update"]
    replays = any(step[0] == "open" for step in steps)
    assert replays or not OF_RUN.intersection(one["update"]["sessionUpdate"] for one in after)


def take(editor: Editor, session: str, step: Any) -> int:
    """Send the message of a step; return the id of the request, 0 for a notification."""
    match step:
        case ("prompt", text, steers):
            return editor.start(session, text, _meta={"zot": {"steer": steers}})
        case ("cancel",):
            editor.tell("session/cancel", sessionId=session)
        case ("cancel request", number):
            editor.tell("$/cancel_request", requestId=1000 + number)
        case ("mode", mode):
            return editor.ask_for("session/set_mode", sessionId=session, modeId=mode)
        case ("option", name, value):
            return editor.ask_for("session/set_config_option", sessionId=session, configId=name, value=value)
        case ("open", method):
            return editor.ask_for(method, sessionId=session, cwd=str(editor.cwd), mcpServers=[])
        case ("list",):
            return editor.ask_for("session/list")
        case ("close",):
            return editor.ask_for("session/close", sessionId=session)
        case ("junk", line):
            editor.send(line)
        case _:
            raise AssertionError(step)
    return 0
