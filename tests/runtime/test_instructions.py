"""AGENTS.md files: which are found, in which order, and which are not believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zot.runtime.system_prompt import MAX_BYTES, Instructions, discover


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with a directory inside."""
    (tmp_path / "project" / "inner").mkdir(parents=True)
    return tmp_path / "project"


def below(top: Path, found: tuple[Instructions, ...]) -> list[tuple[str, str]]:
    return [(str(Path(item.path).relative_to(top)), item.text) for item in found]


def test_instructions_of_the_home_come_first_and_the_nearest_last(tree: Path) -> None:
    home = tree.parent / "home"
    home.mkdir()
    for directory, text in ((home, "of the user"), (tree, "of the project"), (tree / "inner", "of the part")):
        (directory / "AGENTS.md").write_text(f"\n{text}\n")
    assert below(tree.parent, discover(cwd=str(tree / "inner"), home=str(home))) == [
        ("home/AGENTS.md", "of the user"),
        ("project/AGENTS.md", "of the project"),
        ("project/inner/AGENTS.md", "of the part"),
    ]
    assert below(tree.parent, discover(cwd=str(tree), home=None)) == [("project/AGENTS.md", "of the project")]


def test_a_home_that_is_the_project_is_read_once(tree: Path) -> None:
    (tree / "AGENTS.md").write_text("once")
    assert below(tree, discover(cwd=str(tree), home=str(tree))) == [("AGENTS.md", "once")]


def test_one_file_per_directory_is_read(tree: Path) -> None:
    (tree / "CLAUDE.md").write_text("claude")
    assert below(tree, discover(cwd=str(tree), home=None)) == [("CLAUDE.md", "claude")]
    (tree / "AGENTS.md").write_text("agents")
    assert below(tree, discover(cwd=str(tree), home=None)) == [("AGENTS.md", "agents")]
    (tree / "AGENTS.md").write_text(" \n")
    assert discover(cwd=str(tree), home=None) == ()


def test_a_path_that_is_not_a_file_is_skipped_without_blocking(tree: Path) -> None:
    os.mkfifo(tree / "AGENTS.md")
    (tree / "inner" / "AGENTS.md").mkdir()
    (tree / "CLAUDE.md").symlink_to("CLAUDE.md")
    assert discover(cwd=str(tree / "inner"), home=str(tree / "nowhere")) == ()


def test_invalid_utf_8_and_a_byte_order_mark_are_accepted(tree: Path) -> None:
    (tree / "AGENTS.md").write_bytes(b"\xef\xbb\xbfcaf\xe9")
    assert below(tree, discover(cwd=str(tree), home=None)) == [("AGENTS.md", "caf\ufffd")]


def test_a_long_file_is_cut_and_says_so(tree: Path) -> None:
    (tree / "AGENTS.md").write_text("x" * (MAX_BYTES + 1))
    [(_, text)] = below(tree, discover(cwd=str(tree), home=None))
    assert text == "x" * MAX_BYTES + f"\n[the rest was left out: it is longer than {MAX_BYTES} bytes]"


def test_the_number_of_files_is_bounded(tree: Path) -> None:
    deep = tree.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    for directory in (deep, *deep.parents[:40]):
        (directory / "AGENTS.md").write_text("x")
    found = discover(cwd=str(deep), home=None)
    assert (len(found), found[-1].path) == (32, str(deep / "AGENTS.md"))


def test_another_user_s_file_above_the_directory_is_ignored(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may write into a directory above ours. The code learns our user id from a parameter alone."""
    (tree / "AGENTS.md").write_text("run this")
    (tree / "inner" / "AGENTS.md").write_text("ours")
    us = os.stat(tree).st_uid
    real = os.fstat

    def foreign(descriptor: int) -> os.stat_result:
        status = list(real(descriptor))
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tree / "AGENTS.md"):
            status[4] = us + 1
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", foreign)
    monkeypatch.setattr(os, "geteuid", lambda: us + 2)
    assert below(tree, discover(cwd=str(tree / "inner"), home=None)) == [("inner/AGENTS.md", "ours")]
