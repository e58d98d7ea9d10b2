"""What the README tells a stranger to type works as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
LINES = [line for block in blocks(TEXT, "sh") for line in block.text.splitlines()]
#: Lines that need no model of your own, no other terminal and no installation, and what they end with.
ENDS = {
    'zot -p "show me" --provider lab': "see what else I can do.",
    'echo \'{"id":"1"': '{"type":"done"}',
    'echo \'{"request_id"': '"total_tokens":120}}',
    'echo \'{"type":"prompt","message":"!cut-utf8"}\'': '{"type":"done"}',
    'echo \'{"type":"prompt","message":"!help"}\'': '{"type":"done"}',
    "zot ext new": "acknowledged the shutdown and exited",
}


def run(words: list[str], home: Path) -> str:
    path = f"{Path(sys.executable).parent}:{environment({})['PATH']}"
    done = subprocess.run(
        words,
        cwd=home,
        env=environment({"HOME": str(home), "ZOT_HOME": str(home / ".zot"), "PATH": path}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


@pytest.mark.parametrize("beginning", ENDS)
def test_a_line_for_the_shell_works(beginning: str, tmp_path: Path) -> None:
    (line,) = (line for line in LINES if line.startswith(beginning))
    assert run(["sh", "-c", line], tmp_path).endswith(ENDS[beginning])


def test_the_program_works(tmp_path: Path) -> None:
    (program,) = blocks(TEXT, "python")
    said = run([sys.executable, "-W", "error", "-c", program.text], tmp_path).splitlines()
    assert '"type":"user_message"' in said[0]
    assert said[-1] == '{"type":"done"}'
