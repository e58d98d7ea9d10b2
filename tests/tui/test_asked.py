"""What is shown of a call before it is allowed: all that would run."""

from __future__ import annotations

from typing import Any

import pytest

from zot.commands.attach_lines import Lines
from zot.events import ApprovalRequest
from zot.tui.asked import in_full


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


def test_who_is_attached_sees_all_that_would_run_before_the_question() -> None:
    end = "-- /approve or /reject, until 2026-01-01T00:00:00Z\n"
    short = _asked("bash", {"command": "ls"}, "bash: ls")
    assert Lines().shown(short) == f"? bash: ls {end}"
    long = _asked("bash", {"command": f"ls  {'x' * 300}\nrm"}, "bash: ls xx…")
    assert Lines().shown(long) == f"    ls  {'x' * 300}\n    rm\n? bash: ls xx… {end}"
    change = _asked("write", {"path": "a", "content": "b"}, "write: a (1 bytes)")
    assert Lines().shown(change) == f"    +b\n? write: a (1 bytes) {end}"
