"""What tools may do: the first rule that matches decides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from zot.agent.approvals import summarise
from zot.agent.policy import Policy, Rule, Subject
from zot.errors import ConfigError


def action(rules: list[str], tool: str, args: dict[str, Any], cwd: str = "/w") -> str:
    return Policy.parse(rules).action(tool, Subject.of(args, cwd))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("bash=ask", Rule("bash", "", "ask")),
        ("*=deny", Rule("*", "", "deny")),
        ("bash:rm *=deny", Rule("bash", "rm *", "deny")),
        ("bash:X=1 make=allow", Rule("bash", "X=1 make", "allow")),
        ("read:/etc/*:x=deny", Rule("read", "/etc/*:x", "deny")),
    ],
)
def test_a_rule_is_read(text: str, rule: Rule) -> None:
    assert Rule.parse(text) == rule


@pytest.mark.parametrize("text", ["", "bash", "bash=", "=allow", ":x=allow", "bash=maybe", "bash:x"])
def test_what_is_no_rule_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a rule"):
        Rule.parse(text)


def test_without_rules_everything_is_allowed() -> None:
    assert action([], "bash", {"command": "ls"}) == "allow"


def test_the_first_rule_that_matches_decides() -> None:
    rules = ["bash:ls*=allow", "bash=ask", "*=deny"]
    assert action(rules, "bash", {"command": "ls -l"}) == "allow"
    assert action(rules, "bash", {"command": "make"}) == "ask"
    assert action(rules, "write", {"path": "x"}) == "deny"


@pytest.mark.parametrize(
    "extra", ["; rm x", " && rm x", " | sh", " < in", " > out", " $HOME", " `id`", "\nrm x", " (x)"]
)
def test_a_command_that_can_do_more_than_it_shows_is_never_allowed_by_a_pattern(extra: str) -> None:
    rules = ["bash:ls*=allow", "*=ask"]
    assert action(rules, "bash", {"command": "ls" + extra}) == "ask"
    assert action(["bash:ls*=deny"], "bash", {"command": "ls" + extra}) == "deny"
    assert action(["bash=allow", "*=deny"], "bash", {"command": "ls" + extra}) == "allow"


def test_paths_match_as_they_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "secret").write_text("x")
    os.symlink("../secret", tmp_path / "src" / "innocent")
    rules = ["read:src/*=allow", "*=deny"]
    cwd = str(tmp_path)
    assert action(rules, "read", {"path": "src/a.py"}, cwd) == "allow"
    assert action(rules, "read", {"path": f"{cwd}/src/a.py"}, cwd) == "allow"
    assert action(rules, "read", {"path": "src/../secret"}, cwd) == "deny"
    assert action(rules, "read", {"path": "src/innocent"}, cwd) == "deny"
    assert action([f"read:{cwd}/*=allow", "*=deny"], "read", {"path": "/etc/passwd"}, cwd) == "deny"


def test_a_pattern_says_nothing_about_what_has_neither_command_nor_path() -> None:
    assert action(["weather:*=deny"], "weather", {"city": "Berlin"}) == "allow"
    assert action(["weather=deny"], "weather", {"city": "Berlin"}) == "deny"


@pytest.mark.parametrize(
    ("tool", "args", "summary"),
    [
        ("bash", {"command": "make\n  test"}, "bash: make test"),
        ("write", {"path": "a.txt", "content": "é"}, "write: a.txt (2 bytes)"),
        ("edit", {"path": "a.txt", "edits": [{}]}, "edit: a.txt (1 replacement)"),
        ("edit", {"path": "a.txt", "edits": [{}, {}]}, "edit: a.txt (2 replacements)"),
        ("read", {"path": "a.txt"}, "read: a.txt"),
        ("weather", {"city": "Berlin"}, 'weather: {"city":"Berlin"}'),
        ("bash", {"command": "x" * 500}, "bash: " + "x" * 194 + "…"),
    ],
)
def test_a_call_is_told_in_one_line(tool: str, args: dict[str, Any], summary: str) -> None:
    assert summarise(tool, args) == summary
