"""The tools of one session: the paths that each may reach under a lock."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from optional import needs
from zot.config.config import Config
from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.runtime.shared import SharedResources
from zot.runtime.toolbox import Toolbox
from zot.tools.base import ToolContext


class Locked:
    """A locked session in a project; its home, with a skill and a configuration, is inside of the project."""

    def __init__(self, top: Path) -> None:
        self.home = top / "project" / "home"
        self.skill = self.home / "skills" / "brew"
        self.skill.mkdir(parents=True)
        (self.skill / "SKILL.md").write_text("---\nname: brew\ndescription: How to brew.\n---\nRun brew.sh.\n")
        (self.skill / "brew.sh").write_text("echo brewing\n")
        (self.home / "config.toml").write_text("")
        self.cwd = str(top / "project")
        env = {"ZOT_HOME": str(self.home), "PATH": os.environ["PATH"]}
        self.own = top / "project" / "own"
        self.own.mkdir()
        (self.own / "SKILL.md").write_text("---\nname: own\ndescription: Being written.\n---\n")
        self.resources = SharedResources()
        config = Config(provider="lab", lock=True, skills=(str(self.own),), env=env)
        self.toolbox = Toolbox(config, self.resources, cwd=self.cwd, key="key")
        self.context = ToolContext(self.cwd, env)

    async def call(self, name: str, **args: Any) -> str:
        """The text of a result, whether it failed or not."""
        [tool] = [tool for tool in self.toolbox.tools if tool.spec.name == name]
        try:
            [block] = await tool.run(args, self.context)
        except ToolFailed as problem:
            return str(problem)
        assert isinstance(block, TextBlock)
        return block.text


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    locked = Locked(tmp_path)
    yield locked
    await locked.toolbox.close()
    await locked.resources.close()


async def test_the_files_of_a_skill_can_be_read_and_not_written(locked: Locked) -> None:
    script = str(locked.skill / "brew.sh")
    assert await locked.call("read", path=script) == "echo brewing\n"
    for refused in (
        await locked.call("write", path=script, content="x"),
        await locked.call("edit", path=script, edits=[{"oldText": "echo", "newText": "x"}]),
        await locked.call("read", path=str(locked.home / "config.toml")),
        await locked.call("write", path="home/config.toml", content="x"),
    ):
        assert refused.endswith("where zot keeps its own files; locked tools do not touch it")
    assert (locked.skill / "brew.sh").read_text() == "echo brewing\n"


@needs("bwrap")
async def test_commands_see_the_files_of_a_skill_and_nothing_else_of_home(locked: Locked) -> None:
    text = await locked.call("bash", command=f"sh {locked.skill}/brew.sh; ls -A home; echo x > {locked.skill}/brew.sh")
    assert "\nbrewing\nskills\n" in text
    assert "Read-only file system" in text
    assert (locked.skill / "brew.sh").read_text() == "echo brewing\n"


@needs("bwrap")
async def test_a_skill_in_the_project_can_be_worked_on(locked: Locked) -> None:
    assert "[exit 0]" in await locked.call("bash", command="echo more >> own/SKILL.md")
    assert (await locked.call("write", path="own/x", content="x")).startswith("created")


@needs("bwrap")
async def test_a_spill_file_can_be_read(locked: Locked) -> None:
    text = await locked.call("bash", command="seq 100000")
    path = text.partition("the complete output is in ")[2].partition(" ...]")[0]
    assert await locked.call("read", path=path, offset=50_000, limit=1) == (
        "50000\n[lines 50000-50000 of 100000; continue with offset=50001]\n"
    )
    assert "\n100000\n" in await locked.call("bash", command=f"tail -1 {path}")
    assert (await locked.call("write", path=path, content="x")).endswith("locked tools do not touch it")
