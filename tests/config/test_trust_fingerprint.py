"""Fingerprints of trusted directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import zot.config.trust
from zot.config.trust import DEFAULT_DATA, fingerprint
from zot.errors import UserError


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """An extension with code, links and data of all kinds."""
    top = tmp_path / "ext"
    (top / "lib").mkdir(parents=True)
    (top / "data" / "cache").mkdir(parents=True)
    (tmp_path / "shared.py").write_text("shared")
    for name in (
        "extension.json", "package.json", "tsconfig.json", "tsconfig.build.json", "run.py", "lib/help.py",
        "lib/util.py", "todos.json", "lib/state.json", "notes.db", "notes.db-wal", "ext.log", "data/cache/anything.py",
    ):  # fmt: skip
        (top / name).write_text(name)
    (top / "run.py").chmod(0o755)
    (top / "link").symlink_to("lib")
    (top / "outer").symlink_to("../shared.py")
    (top / "nowhere").symlink_to("../later.py")
    return top


def write(name: str) -> Callable[[Path], object]:
    return lambda top: (top / name).write_text("changed")


def relink(name: str, target: str) -> Callable[[Path], object]:
    def change(top: Path) -> None:
        (top / name).unlink()
        (top / name).symlink_to(target)

    return change


CODE_CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte of code": write("run.py"),
    "a byte of code below": write("lib/help.py"),
    "the manifest": write("extension.json"),
    "package.json": write("package.json"),
    "tsconfig": write("tsconfig.build.json"),
    "a new file": write("new.py"),
    "a file less": lambda top: (top / "lib/help.py").unlink(),
    "another name": lambda top: (top / "lib/help.py").rename(top / "lib/helper.py"),
    "another place": lambda top: (top / "lib/help.py").rename(top / "help.py"),
    "contents exchanged": lambda top: [
        (top / "lib/help.py").write_text("lib/util.py"), (top / "lib/util.py").write_text("lib/help.py")
    ],
    "executable": lambda top: (top / "lib/help.py").chmod(0o755),
    "no longer executable": lambda top: (top / "run.py").chmod(0o644),
    "a setting": write("todos.json"),
    "a setting of a runtime": write("deno.json"),
    "a setting below": write("lib/state.json"),
    "code that looks like data": write("notes.db.py"),
    "where a link leads": relink("link", "data"),
    "a link instead of a file": relink("lib/help.py", "util.py"),
    "what is behind a link that leads out": lambda top: (top / "../shared.py").resolve().write_text("changed"),
    "something at last behind a link": lambda top: (top / "../later.py").resolve().write_text("malice"),
}  # fmt: skip


@pytest.mark.parametrize("change", CODE_CHANGES.values(), ids=CODE_CHANGES.keys())
def test_a_change_of_code_is_another_fingerprint(change: Callable[[Path], object], code: Path) -> None:
    before = fingerprint(str(code), DEFAULT_DATA)
    change(code)
    assert fingerprint(str(code), DEFAULT_DATA) != before


DATA_CHANGES: dict[str, Callable[[Path], object]] = {
    "a setting in data": write("data/todos.json"),
    "a database": write("notes.db"),
    "its journal": write("notes.db-wal"),
    "a new log": write("other.log"),
    "anything in data": write("data/cache/anything.py"),
    "a link in data to anywhere": lambda top: (top / "data/link").symlink_to("/"),
    "an empty directory": lambda top: (top / "empty").mkdir(),
    "times": lambda top: os.utime(top / "run.py", (0, 0)),
    "permissions other than to run": lambda top: (top / "lib/help.py").chmod(0o600),
}


@pytest.mark.parametrize("change", DATA_CHANGES.values(), ids=DATA_CHANGES.keys())
def test_a_change_of_data_keeps_the_fingerprint(change: Callable[[Path], object], code: Path) -> None:
    before = fingerprint(str(code), DEFAULT_DATA)
    change(code)
    assert fingerprint(str(code), DEFAULT_DATA) == before


def test_without_patterns_everything_counts(code: Path) -> None:
    before = fingerprint(str(code))
    write("data/cache/anything.py")(code)
    assert fingerprint(str(code)) != before


@pytest.mark.parametrize("patterns", [("*",), ("**",), ("lib/**", "extension.json", "*.py")])
def test_no_pattern_makes_the_manifest_data(patterns: tuple[str, ...], code: Path) -> None:
    before = fingerprint(str(code), patterns)
    write("run.py")(code)
    assert fingerprint(str(code), patterns) == before
    write("extension.json")(code)
    assert fingerprint(str(code), patterns) != before


def test_the_last_pattern_that_matches_decides(code: Path) -> None:
    before = fingerprint(str(code), ("*.py", "!run.py", "lib/*.py"))
    write("lib/help.py")(code)
    assert fingerprint(str(code), ("*.py", "!run.py", "lib/*.py")) == before
    write("run.py")(code)
    assert fingerprint(str(code), ("*.py", "!run.py", "lib/*.py")) != before


def test_the_location_does_not_matter(code: Path) -> None:
    before = fingerprint(str(code))
    (code.parent / "link").symlink_to("ext")
    assert fingerprint(str(code.parent / "link")) == before
    assert fingerprint(str(code.rename(code.parent / "moved"))) == before
    assert before.startswith("sha256:")
    assert len(before) == 71


def test_names_are_not_confused_with_contents(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "a").write_text("bc")
    (tmp_path / "two" / "ab").write_text("c")
    assert fingerprint(str(tmp_path / "one")) != fingerprint(str(tmp_path / "two"))


def test_an_uncheckable_directory_is_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(**limits: int) -> str:
        for name, limit in limits.items():
            monkeypatch.setattr(zot.config.trust, name, limit)
        with pytest.raises(UserError) as refused:
            fingerprint(str(code))
        monkeypatch.undo()
        return str(refused.value)

    assert refusal(MAX_FILES=5) == f"{code} has more than 5 files, too many to be checked"
    assert refusal(MAX_BYTES=50) == f"{code} has more than 50 bytes, too many to be checked"
    os.mkfifo(code / "pipe")
    assert refusal() == f"{code}/pipe is neither a file nor a directory"
    (code / "pipe").unlink()
    (code / "out").symlink_to("..")
    assert refusal() == f"{code}/out leads to a directory outside, which cannot be checked"
    (code / "out").unlink()
    code.rename(code.parent / "gone")
    assert refusal() == f"{code}: No such file or directory"


def test_a_very_deep_directory_is_accepted(tmp_path: Path) -> None:
    ways = [tmp_path / "/".join("d" * depth) for depth in range(1, 1101)]
    try:
        for way in ways:
            way.mkdir()
        empty = fingerprint(str(tmp_path))
        (ways[-1] / "file").touch()
        assert fingerprint(str(tmp_path)) != empty
    finally:
        (ways[-1] / "file").unlink()
        for way in reversed(ways):  # too deep for the clean-up of pytest
            way.rmdir()
