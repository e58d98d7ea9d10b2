"""The display of a call before it is allowed: the whole command."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ui.terminal.stage import stage
from ui.terminal.test_plain import lines
from zot.commands.attach import Lines
from zot.events import ApprovalRequest
from zot.ui.terminal.styles import in_full


def _asked(tool: str, args: dict[str, Any], summary: str = "") -> ApprovalRequest:
    return ApprovalRequest("approval_1_1", tool, args, summary, "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"command": "ls"}, ["ls"]),
        (
            {"command": "ls\n-l\x1b", "host": "pro\nd\u202e", "sudo": True, "a\nb": {"c": 1}},
            ["ls", "-l\\x1b", 'host: "pro\\nd\\u202e"', "sudo: true", 'a\\nb: {"c":1}'],
        ),
        ({"path": "a", "content": "x\ny\n", "mode": 511}, ["+x", "+y", "mode: 511"]),
        ({"path": "a", "edits": [{"oldText": "x", "newText": "y"}], "content": "z"}, ["-x", "+y", 'content: "z"']),
        (
            {"path": "a", "edits": [{"oldText": "x", "newText": "y", "all": True}]},
            ["-x", "+y", 'edits: [{"oldText":"x","newText":"y","all":true}]'],
        ),
        (
            {"path": "a", "edits": [{"oldText": "x", "newText": "y"}, {"delete": 3}]},
            ["-x", "+y", 'edits: [{"oldText":"x","newText":"y"},{"delete":3}]'],
        ),
        ({"path": "a", "force": True}, ["{", '  "path": "a",', '  "force": true', "}"]),
    ],
)
def test_a_command_or_a_diff_hides_no_other_argument(args: dict[str, Any], shown: list[str]) -> None:
    assert [line for line, _ in in_full(_asked("deploy", args))] == shown


@pytest.fixture
def five_and_a_half_hours_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock is not UTC."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "XYZ-5:30")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("five_and_a_half_hours_ahead")
async def test_the_time_left_to_answer_follows_the_machine_s_clock(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        await person.says("!bash echo q")
        await person.sees("bash wants to run; may it?")
        asked = (await person.app.live.conversation.state()).pending
        assert asked is not None
        there = datetime.fromisoformat(asked.deadline) + timedelta(hours=5, minutes=30)
        await person.sees(f"{there:%H:%M:%S}; press y")  # Midnight may be near, and the day stand before it.
    async with lines(tmp_path, policy=("bash=ask",)) as typing:
        await typing.until("> ")
        typing.type("!bash echo q")
        await typing.until("n(o), until ")
        assert re.fullmatch(r"(\S+ )?\d\d:\d\d:\d\d: ", await typing.until(": "))


@pytest.mark.usefixtures("five_and_a_half_hours_ahead")
def test_an_attached_terminal_shows_everything_that_would_run_before_the_question() -> None:
    end = "-- /approve or /reject, until 2026-01-01 05:30:00\n"
    short = _asked("bash", {"command": "ls"}, "bash: ls")
    assert Lines().shown(short) == f"? bash: ls {end}"
    long = _asked("bash", {"command": f"ls  {'x' * 300}\nrm"}, "bash: ls xx…")
    assert Lines().shown(long) == f"    ls  {'x' * 300}\n    rm\n? bash: ls xx… {end}"
    change = _asked("write", {"path": "a", "content": "b"}, "write: a (1 bytes)")
    assert Lines().shown(change) == f"    +b\n? write: a (1 bytes) {end}"
