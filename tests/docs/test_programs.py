"""Every program in the pages runs and prints the text below it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment

from .markdown import Block, blocks

DOCS = Path(__file__).parents[2] / "docs" / "reference"
#: The pages whose programs are followed by what they print.
PAGES = ("sdk", "recording", "extensions-python")


def examples() -> Iterator[tuple[str, Block, Block]]:
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text()
        for program, output in zip(blocks(text, "python"), blocks(text, "text"), strict=True):
            yield page, program, output


@pytest.mark.parametrize(
    ("program", "output"),
    [pytest.param(program, output, id=f"{page}: {program.id()}") for page, program, output in examples()],
)
def test_a_program_prints_the_output_shown_below_it(program: Block, output: Block, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.text],
        cwd=tmp_path,
        env=environment({}),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout.decode().strip(), done.stderr.decode(), done.returncode) == (output.text.strip(), "", 0)
