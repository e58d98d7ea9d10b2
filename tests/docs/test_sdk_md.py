"""Every program in docs/sdk.md runs and prints what stands below it, and everything there is has its place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import zot
from harness import PATIENCE_S, environment
from zot import errors

from .markdown import Block, blocks

TEXT = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
EXAMPLES = list(zip(blocks(TEXT, "python"), blocks(TEXT, "text"), strict=True))
#: What needs no words in a reference of how to use it.
PLAIN = {"AgentEvent", "TextBlock", "__version__"}


@pytest.mark.parametrize(("program", "output"), EXAMPLES, ids=[program.id() for program, _ in EXAMPLES])
def test_a_program_prints_what_stands_below_it(program: Block, output: Block, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.text],
        cwd=tmp_path,
        env=environment({}),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout.decode().strip(), done.stderr.decode(), done.returncode) == (output.text.strip(), "", 0)


@pytest.mark.parametrize("setting", zot.Config.__struct_fields__)
def test_every_setting_is_described(setting: str) -> None:
    assert f"\n| `{setting}` |" in TEXT


@pytest.mark.parametrize("error", sorted(name for name, kind in vars(errors).items() if isinstance(kind, type)))
def test_every_error_is_described(error: str) -> None:
    assert f"`{error}`" in TEXT or f"`zot.{error}`" in TEXT


@pytest.mark.parametrize("member", [name for name in dir(zot.Runtime) if not name.startswith("_")])
def test_every_member_of_runtime_is_described(member: str) -> None:
    section = TEXT.partition("\n## Runtime\n")[2].partition("\n### ")[0]
    assert re.search(rf"\| .*`(await )?{member}\b.*\|", section)


@pytest.mark.parametrize(
    "name", [name for name in zot.__all__ if name not in ("TextBlock", "AgentEvent", "__version__")]
)
def test_every_public_name_is_mentioned(name: str) -> None:
    assert re.search(rf"\b{name}\b", TEXT)
