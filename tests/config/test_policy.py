"""Policies for tools: the first rule that matches decides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from zot.agent.approvals import summarise
from zot.config.policy import Policy, Rule, subject_of
from zot.errors import ConfigError


def action(rules: list[str], tool: str, args: dict[str, Any], cwd: str = "/w") -> str:
    return Policy.parse(rules).action(tool, subject_of(args, cwd))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("bash=ask", Rule("bash", "", "ask")),
        ("*=deny", Rule("*", "", "deny")),
        ("bash:rm *=deny", Rule("bash", "rm *", "deny")),
        ("bash:X=1 make=allow", Rule("bash", "X=1 make", "allow")),
        ("read:/etc/*:x=deny", Rule("read", "/etc/*:x", "deny")),
        (" bash : rm * = deny ", Rule("bash", "rm *", "deny")),
        ("mcp__git-2.push=ask", Rule("mcp__git-2.push", "", "ask")),
    ],
)
def test_a_rule_is_read(text: str, rule: Rule) -> None:
    assert Rule.parse(text) == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bash",
        "bash=",
        "=allow",
        ":x=allow",
        "bash=maybe",
        "bash:x",
        "bash:=allow",
        "b*=deny",
        "a b=deny",
        "x:\0=deny",
    ],
)
def test_an_invalid_rule_is_reported(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a rule"):
        Rule.parse(text)


def test_without_rules_everything_is_allowed() -> None:
    assert action([], "bash", {"command": "ls"}) == "allow"


def test_the_first_rule_that_matches_decides() -> None:
    rules = ["bash:ls -*=allow", "bash=ask", "*=deny"]
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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory whose name is a pattern, with a secret that several ways lead to."""
    project = tmp_path / "p[1]"
    (project / "secret" / "deep").mkdir(parents=True)
    (project / "src").mkdir()
    os.symlink("secret", project / "link")
    os.symlink("../secret", project / "src" / "inner")
    return project


@pytest.mark.parametrize(
    "pattern",
    [
        "secret/*", "./secret/*", "secret", "secret/", "secret/.", "src/../secret/*", "../p[[]1]/secret/*",
        "../p[1]/secret", "link/*", "link", "*ecret/*", "**/secret", "**/x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["secret/x", "./secret/deep/../x", "link/x", "src/inner/x", "src/../secret/x"])
def test_a_denial_holds_for_every_spelling_of_rule_and_path(project: Path, pattern: str, path: str) -> None:
    for asked in (path, f"{project}/{path}"):
        assert action([f"write:{pattern}=deny"], "write", {"path": asked}, str(project)) == "deny"
        assert action([f"write:{pattern}=ask"], "write", {"path": asked}, str(project)) == "ask"
    assert action([f"write:{pattern}=deny"], "write", {"path": "src/y"}, str(project)) == "allow"
    assert action([f"write:{pattern}=deny"], "write", {"path": "secretly"}, str(project)) == "allow"


def test_a_denied_absolute_path_is_denied_through_links(project: Path) -> None:
    real = str(project).replace("[", "[[]")
    for rule in (f"write:{real}/link/*=deny", f"write:/{real}/secret=deny"):
        assert action([rule], "write", {"path": "secret/x"}, str(project)) == "deny"
        assert action([rule], "write", {"path": "link/x"}, "/") == "allow"
    assert action(["write:/=deny"], "write", {"path": "x"}, str(project)) == "deny"


def test_a_denied_path_at_home_may_use_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for rule in ("read:~/.ssh=deny", "read:~/**/id=deny"):
        assert action([rule], "read", {"path": f"{tmp_path}/.ssh/id"}) == "deny"
    assert action(["read:~/**/id=deny"], "read", {"path": f"{tmp_path}/id"}) == "deny"


def test_a_linked_directory_is_denied_by_either_name(project: Path) -> None:
    os.symlink(project, project.parent / "also")
    for cwd in (str(project), str(project.parent / "also")):
        for rule in ("write:secret/*=deny", f"write:{project.parent}/also/secret/*=deny"):
            assert action([rule], "write", {"path": "secret/x"}, cwd) == "deny"


@pytest.mark.parametrize(("pattern", "path"), [("secret/*", "secret/x"), ("./secret/x", "secret/x"), ("*", "src/y")])
def test_a_rule_allows_exactly_its_pattern(project: Path, pattern: str, path: str) -> None:
    assert action([f"write:{pattern}=allow", "*=deny"], "write", {"path": path}, str(project)) == "allow"


@pytest.mark.parametrize(
    ("pattern", "path"), [("secret", "secret/x"), ("link/*", "link/x"), ("src/*", "src/inner/x"), ("**/x", "x")]
)
def test_paths_that_only_resemble_an_allowed_one_are_not_allowed(project: Path, pattern: str, path: str) -> None:
    assert action([f"write:{pattern}=allow", "*=deny"], "write", {"path": path}, str(project)) == "deny"


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_an_impossible_path_is_allowed_by_no_pattern_and_denied_by_any(path: str) -> None:
    assert action(["write:/etc/*=deny"], "write", {"path": path}) == "deny"
    assert action(["write:*=allow", "*=ask"], "write", {"path": path}) == "ask"
    assert action(["write=allow", "*=deny"], "write", {"path": path}) == "allow"


def test_a_pattern_does_not_apply_to_a_tool_without_command_or_path() -> None:
    assert action(["weather:*=deny"], "weather", {"city": "Berlin"}) == "allow"
    assert action(["weather=deny"], "weather", {"city": "Berlin"}) == "deny"


@pytest.mark.parametrize(
    ("tool", "args", "summary"),
    [
        ("bash", {"command": "make\n  test"}, "bash: make\\n  test"),
        ("bash", {"command": "ls \x1b[2J"}, "bash: ls \\x1b[2J"),
        ("write", {"path": "a.txt", "content": "é"}, "write: a.txt (2 bytes)"),
        ("write", {"path": "b/../../w/a.txt", "content": ""}, "write: a.txt (0 bytes)"),
        ("write", {"path": "../v", "content": ""}, "write: /v (0 bytes)"),
        ("write", {"path": "a\0", "content": ""}, "write: a\\x00 (0 bytes)"),
        ("edit", {"path": "a.txt", "edits": [{}]}, "edit: a.txt (1 replacement)"),
        ("edit", {"path": "a.txt", "edits": [{}, {}]}, "edit: a.txt (2 replacements)"),
        ("read", {"path": "a.txt"}, "read: a.txt"),
        ("weather", {"city": "Berlin"}, 'weather: {"city":"Berlin"}'),
        ("bash", {"command": "x" * 500}, "bash: " + "x" * 194 + "…"),
    ],
)
def test_a_call_is_described_in_one_line(tool: str, args: dict[str, Any], summary: str) -> None:
    assert summarise(tool, args, subject_of(args, "/w")) == summary


def test_a_call_is_described_with_its_resolved_path(project: Path) -> None:
    os.symlink("/etc", project / "notes")
    args = {"path": "notes/passwd", "content": ""}
    told = summarise("write", args, subject_of(args, str(project)))
    assert told == "write: /etc/passwd (0 bytes), replacing the existing file"
    args = {"path": "link/x", "content": ""}
    assert summarise("write", args, subject_of(args, str(project))) == "write: secret/x (0 bytes)"
