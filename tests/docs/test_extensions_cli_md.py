"""Every shell block of docs/reference/extensions-cli.md runs as shown; it describes every subcommand and flag."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment
from zot.commands.ext import GROUP

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "extensions-cli.md").read_text()


def test_the_page_is_one_story_that_works_as_written(tmp_path: Path) -> None:
    env = environment({"HOME": str(tmp_path)})
    for block in blocks(TEXT, "console"):
        for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            command = re.sub(r"\bzot ext", f"{shlex.quote(sys.executable)} -m zot ext", line, count=1)
            output = subprocess.check_output(["sh", "-c", command], env=env, cwd=tmp_path, timeout=PATIENCE_S).decode()
            pattern = ".*".join(map(re.escape, shown.split("...")))
            assert re.fullmatch(pattern, output), f"{line}\n{output}"


@pytest.mark.parametrize("name", GROUP.subcommands)
def test_every_subcommand_and_its_flags_are_described(name: str) -> None:
    subcommand = GROUP.subcommands[name]
    row = f"zot ext {name} {subcommand.takes}".rstrip()
    assert row in TEXT
    for flag in subcommand.flags:
        assert re.search(rf"`[^`]*{flag.name}[ `]", TEXT)
