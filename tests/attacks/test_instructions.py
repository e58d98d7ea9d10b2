"""A clone whose instructions and skills are links: the linked files must not reach the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zot.config.skills import load
from zot.errors import ConfigError
from zot.files import open_beneath
from zot.runtime.system_prompt import FILE_NAMES, discover

SKILL = "---\nname: s\ndescription: s3cret\n---\ns3cret\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory beside one with a secret."""
    (tmp_path / "clone" / "docs").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text(SKILL)
    return tmp_path / "clone"


def _chain(clone: Path, name: str) -> None:
    (clone / "docs" / "far").symlink_to("../../outside")
    (clone / name).symlink_to("docs/far/key")


WAYS: dict[str, Callable[[Path, str], object]] = {
    "to a key": lambda clone, name: (clone / name).symlink_to("../outside/key"),
    "to a key, absolute": lambda clone, name: (clone / name).symlink_to(clone.parent / "outside" / "key"),
    "in and out": lambda clone, name: (clone / name).symlink_to("docs/../../outside/key"),
    "through a link to a directory": _chain,
    "to the environment": lambda clone, name: (clone / name).symlink_to("/proc/self/environ"),
    "to a descriptor": lambda clone, name: (clone / name).symlink_to("/dev/fd/0"),
    "to itself": lambda clone, name: (clone / name).symlink_to(name),
    "a pipe": lambda clone, name: os.mkfifo(clone / name),
    "a directory": lambda clone, name: (clone / name).mkdir(),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("name", FILE_NAMES)
def test_instructions_linked_from_outside_are_not_read(
    name: str, way: Callable[[Path, str], object], clone: Path
) -> None:
    way(clone, name)
    assert discover(cwd=str(clone), home=None) == ()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_skill_linked_from_outside_is_not_read(way: Callable[[Path, str], object], clone: Path) -> None:
    way(clone, "SKILL.md")
    with pytest.raises(ConfigError):
        load(str(clone))


def test_links_that_stay_inside_work(clone: Path) -> None:
    (clone / "docs" / "AGENTS.md").write_text("inside")
    (clone / "CLAUDE.md").symlink_to("docs/x/../AGENTS.md")
    (clone / "docs" / "x").mkdir()
    assert [item.text for item in discover(cwd=str(clone), home=None)] == ["inside"]


def test_the_user_s_own_file_may_be_a_link_but_not_to_the_kernel(clone: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "AGENTS.md").symlink_to(tmp_path / "outside" / "key")
    assert len(discover(cwd=str(clone), home=str(home))) == 1
    (home / "AGENTS.md").unlink()
    (home / "AGENTS.md").symlink_to("/proc/self/environ")
    assert discover(cwd=str(clone), home=str(home)) == ()


@pytest.mark.parametrize("name", ["docs", "AGENTS.md"])
def test_a_link_planted_during_the_read_is_not_followed(
    name: str, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: between the check and the opening."""
    (clone / "docs" / "AGENTS.md").write_text("inside")
    (clone.parent / "outside" / "AGENTS.md").write_text("s3cret")
    path, target = (clone / "docs", "../outside") if name == "docs" else (clone / "docs" / name, "../../outside/key")
    readlink = os.readlink

    def meddled(looked_at: str, **options: int) -> str:
        try:
            return readlink(looked_at, **options)
        finally:
            if looked_at == name and not path.is_symlink():
                path.rename(clone / "kept")
                path.symlink_to(target)

    monkeypatch.setattr(os, "readlink", meddled)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels of symbolic links"):
        open_beneath(str(clone), "docs/AGENTS.md")
    assert path.is_symlink()
