"""`zot prompt`: the system prompt as the model receives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import forked
from harness import Zot, environment
from zot.config.config import PROMPTING, Config

FOOTER = "Date: 2026-01-31\nWorking directory: {cwd}\nTools: bash, edit, read, write"
FLAGS = ("--no-skill", "--frozen-time", "2026-01-31T12:00:00Z")


def prompt(cwd: Path, *flags: str) -> str:
    done = forked.run(["prompt", *FLAGS, *flags], cwd=cwd, env=environment({"ZOT_HOME": str(cwd / "home")}))
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_the_prompt_names_agent_and_directory_and_needs_no_key(tmp_path: Path) -> None:
    text = prompt(tmp_path)
    assert text.startswith("You are zot, a coding agent.")
    assert text.endswith("\n\n" + FOOTER.format(cwd=tmp_path) + "\n")


@pytest.mark.parametrize(
    ("files", "flags", "expected"),
    [
        ({"home/SYSTEM.md": "Own words.\n"}, (), "Own words."),
        ({"home/SYSTEM.md": "Own words."}, ("--system-prompt", "Others."), "Others."),
        ({}, ("--system-prompt", "Be.", "--append-system-prompt", "A", "--append-system-prompt", "B"), "Be.\n\nA\n\nB"),
        (
            {"home/SYSTEM.md": "Own.", "home/AGENTS.md": "Mine.", "AGENTS.md": "Ours."},
            ("--append-system-prompt", "A"),
            "Own.\n\nThese files have instructions for you. Where two of them disagree, the later one counts.\n\n"
            "{cwd}/home/AGENTS.md:\n\nMine.\n\n{cwd}/AGENTS.md:\n\nOurs.\n\nA",
        ),
        ({"home/SYSTEM.md": "Own.", "AGENTS.md": "Ours."}, ("--no-instructions",), "Own."),
    ],
)
def test_files_and_flags_are_joined_in_order(
    tmp_path: Path, files: dict[str, str], flags: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "home").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert prompt(tmp_path, *flags) == f"{expected}\n\n{FOOTER}\n".format(cwd=tmp_path)


def test_the_model_gets_exactly_this_prompt(zot: Callable[..., Zot], tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    file = tmp_path / "run.jsonl"
    process = zot(*FLAGS, "--record", str(file), env={"ZOT_HOME": str(tmp_path / "home")})
    process.send({"type": "prompt", "message": "hi"})
    process.finish()
    [asked] = [line for line in map(json.loads, file.read_text().split("\n")[:-1]) if line["type"] == "request"][:1]
    assert json.loads(asked["body"])["system"][0]["text"] + "\n" == prompt(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"caf\xe9", "not UTF-8"), (None, "Is a directory")], ids=["no text", "a directory"]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "home" / "SYSTEM.md"
    file.parent.mkdir()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    done = forked.run(["prompt"], env=environment({"ZOT_HOME": str(file.parent)}))
    assert (done.returncode, done.stderr.decode()) == (1, f"zot: {file}: {reason}\n")


def test_every_setting_that_makes_the_system_prompt_is_a_setting() -> None:
    """A wrong name would keep the old prompt of a resumed session although the setting was given."""
    assert {*Config.__struct_fields__, "no_tools"} >= PROMPTING
