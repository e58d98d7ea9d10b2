"""What is shown of a call before it is allowed: all that would run."""

from __future__ import annotations

from typing import Any

import pytest

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
