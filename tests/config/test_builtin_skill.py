"""The skill that teaches writing an extension: its examples work, and it covers every frame."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zot.config.skills import discover


@pytest.fixture(scope="module")
def body() -> str:
    [skill] = discover(cwd="/", home=None, is_trusted=lambda *_: False).skills
    assert skill.name == "write-zot-extension"
    return skill.body


FRAMES = {
    "hello", "register_command", "register_tool", "subscribe", "ready", "command_response", "tool_result",
    "event_intercept_response", "notify", "panel_render", "panel_close", "shutdown_ack",
    "command_invoked", "tool_call", "event", "event_intercept", "panel_key", "shutdown",
}  # fmt: skip


def test_every_frame_it_shows_is_one_json_object(body: str) -> None:
    shown = re.findall(r'`(\{"type":.*?\})`', body)
    frames = [json.loads(text.replace(":ID", ':"1"')) for text in shown]
    assert {frame["type"] for frame in frames} == FRAMES | {"image"}


def test_its_manifest_names_its_program(body: str) -> None:
    [manifest] = re.findall(r"```json\n(.*?)```", body, re.S)
    assert json.loads(manifest) == {
        "name": "hello",
        "version": "1.0.0",
        "exec": "./hello.py",
        "description": "says hello",
        "enabled": True,
    }


SENT: list[dict[str, Any]] = [
    {"type": "hello_ack", "protocol_version": 1, "data_dir": "/tmp"},
    {"type": "command_invoked", "id": "a", "name": "hi", "args": "Ada"},
    {"type": "command_invoked", "id": 2, "name": "hi", "args": ""},
    {"type": "tool_call", "id": "b", "name": "dice", "args": {"sides": 2}},
    {"type": "event_intercept", "id": "c", "event": "tool_call", "tool_name": "read", "tool_args": {"path": "x"}},
    {
        "type": "event_intercept",
        "id": "d",
        "event": "tool_call",
        "tool_name": "bash",
        "tool_args": {"command": "rm -rf /"},
    },
    {"type": "something_new"},
    {"type": "shutdown"},
]


def test_its_example_runs_and_answers_every_request(body: str, tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", body, re.S)
    (tmp_path / "hello.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "hello.py"],
        input="".join(f"{json.dumps(frame)}\n" for frame in SENT),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    frames = [json.loads(line) for line in done.stdout.removesuffix("\n").split("\n")]
    roll = frames[7].pop("content")
    assert re.fullmatch(r"rolled [12] of 2", roll[0]["text"])
    assert frames == [
        {"type": "hello", "name": "hello", "version": "1.0.0", "capabilities": ["commands", "tools"]},
        {"type": "register_command", "name": "hi", "description": "let the model greet somebody"},
        {
            "type": "register_tool",
            "name": "dice",
            "description": "Roll a die.",
            "schema": {"type": "object", "properties": {"sides": {"type": "integer", "minimum": 2}}},
        },
        {"type": "subscribe", "events": [], "intercept": ["tool_call"], "on_failure": "block"},
        {"type": "ready"},
        {"type": "command_response", "id": "a", "action": "prompt", "prompt": "Greet Ada briefly."},
        {"type": "command_response", "id": 2, "action": "prompt", "prompt": "Greet the user briefly."},
        {"type": "tool_result", "id": "b"},
        {"type": "event_intercept_response", "id": "c"},
        {"type": "event_intercept_response", "id": "d", "block": True, "reason": "rm -rf is not allowed here"},
        {"type": "shutdown_ack"},
    ]
