"""Every shell block of docs/reference/sessions.md runs as shown; it describes every subcommand and flag."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment
from zot.commands.sessions import GROUP
from zot.config.config import RESUME_FLAGS

from .markdown import blocks

DOCS = Path(__file__).parents[2] / "docs" / "reference"
TEXT = (DOCS / "sessions.md").read_text()


def test_the_page_is_one_story_that_works_as_written(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "zot"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m zot "$@"\n')
    program.chmod(0o755)
    env = environment({"HOME": str(tmp_path)})
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    for block in blocks(TEXT, "console"):
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            output = subprocess.check_output(["sh", "-c", command], env=env, cwd=tmp_path, timeout=PATIENCE_S).decode()
            pattern = ".*".join(map(re.escape, shown.split("...")))
            assert re.fullmatch(pattern, output), f"{command}\n{output}"


@pytest.mark.parametrize("name", GROUP.subcommands)
def test_every_subcommand_and_its_flags_are_described(name: str) -> None:
    subcommand = GROUP.subcommands[name]
    assert re.search(rf"`{name}( {re.escape(subcommand.takes)})?`", TEXT)
    for flag in subcommand.flags:
        assert re.search(rf"`[^`]*{flag.name}[ `]", TEXT)


@pytest.mark.parametrize("flag", [flag.name for flag in RESUME_FLAGS])
def test_every_flag_of_one_prompt_is_described(flag: str) -> None:
    assert re.search(rf"\| .*`{flag}[ `]", (DOCS / "once.md").read_text())
