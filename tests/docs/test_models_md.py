"""Every command in docs/reference/models.md prints the text shown, and its conversation runs as written."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PATIENCE_S, Zot, environment
from zot.commands.models import MANUAL
from zot.providers.user_models import OwnModel

from .markdown import Block, blocks
from .test_rpc_md import hold

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()
[FILE] = blocks(TEXT, "json")


@pytest.mark.parametrize("block", blocks(TEXT, "console"), ids=Block.id)
def test_a_command_prints_the_output_shown_below_it(block: Block, tmp_path: Path) -> None:
    if block.heading == FILE.heading:
        (tmp_path / "models.json").write_text(FILE.text)
    first, _, output = block.text.partition("\n")
    assert first.startswith("$ zot ")
    done = subprocess.run(
        [sys.executable, "-m", "zot", *shlex.split(first)[2:]],
        env=environment({"ZOT_HOME": str(tmp_path), "PATH": os.environ["PATH"]}),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout.decode(), done.stderr.decode(), done.returncode) == (output, "", 0)


@pytest.mark.parametrize("block", blocks(TEXT, "rpc"), ids=Block.id)
def test_a_conversation_runs_as_written(block: Block, tmp_path: Path, zot: Callable[..., Zot]) -> None:
    (tmp_path / "models.json").write_text(FILE.text)
    hold(block.text, zot)


@pytest.mark.parametrize("flag", [flag.name for flag in MANUAL.flags])
def test_every_flag_is_described(flag: str) -> None:
    assert f"`{flag}" in TEXT


@pytest.mark.parametrize("field", OwnModel.__struct_encode_fields__)
def test_every_field_of_the_file_is_described(field: str) -> None:
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    assert any(f"`{field}`" in row for row in rows)
