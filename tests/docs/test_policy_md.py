"""docs/reference/policy.md: its rules parse, its sets exist, and its examples are decided as described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zot.config.policy import Policy, Rule, subject_of
from zot.config.shell_commands import COMMAND_SETS

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "policy.md").read_text()
EXAMPLE = blocks(TEXT, "policy")[0].text.splitlines()


def test_every_rule_on_the_page_is_one() -> None:
    rules = [*EXAMPLE, *re.findall(r"`(\w+:[^`]*=(?:allow|deny|ask))`", TEXT)]
    assert len([Rule.parse(rule) for rule in rules]) > 10


def test_every_set_is_described() -> None:
    assert re.findall(r"^\| `@(.*?)` \|", TEXT, re.MULTILINE) == [*COMMAND_SETS]


@pytest.mark.parametrize(
    ("rules", "command", "action"),
    [
        (EXAMPLE, "make test", "allow"),
        (EXAMPLE, "make test; rm -r x", "ask"),
        (EXAMPLE, "rm -r x", "deny"),
        (EXAMPLE, "ls -l", "ask"),
        (["bash:git log=allow", "bash=ask"], "git log", "allow"),
        (["bash:git log=allow", "bash=ask"], "git log -p", "ask"),
        (["bash:cat *=allow", "bash=ask"], "cat a b", "allow"),
        (["bash:cat *=allow", "bash=ask"], "cat -n a", "ask"),
        (["bash:cat **=allow", "bash=ask"], "cat -n a", "allow"),
        (["bash:make=allow", "bash=ask"], "X=1 make", "ask"),
        (["bash:X=1 make=allow", "bash=ask"], "X=1 make", "allow"),
    ],
)
def test_a_command_is_decided_as_described(rules: list[str], command: str, action: str, tmp_path: Path) -> None:
    assert Policy.parse(rules).action("bash", subject_of({"command": command}, str(tmp_path))) == action


@pytest.mark.parametrize(
    ("path", "action"),
    [("src/a/b.py", "allow"), ("src/out/b.py", "ask"), ("secret/key", "deny"), ("link/key", "deny"), ("other", "ask")],
)
def test_a_path_is_decided_as_described(path: str, action: str, tmp_path: Path) -> None:
    for name in ("src", "secret", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "src" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to("secret")
    policy = Policy.parse(["write:secret=deny", "write:src/*=allow", "write=ask"])
    assert policy.action("write", subject_of({"path": path, "content": ""}, str(tmp_path))) == action
