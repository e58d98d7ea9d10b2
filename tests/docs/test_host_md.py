"""docs/reference/host.md is true: its example, and every flag, field, code and type."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from harness import PATIENCE_S, environment
from zot.commands.host import _HOST_FLAGS
from zot.wire.host import ErrorCode, Request, RequestType, Response

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "host.md").read_text()


def test_the_first_example_prints_the_output_shown_below_it(tmp_path: Path) -> None:
    program, output = blocks(TEXT, "sh")[0], blocks(TEXT, "json")[0]
    zot = tmp_path / "zot"
    zot.write_text(f'#!/bin/sh\nexec {sys.executable} -m zot "$@"\n')
    zot.chmod(0o755)
    env = environment({"ZOT_HOME": str(tmp_path / "home")})
    done = subprocess.run(
        ["/bin/sh", "-c", program.text], env=env | {"PATH": f"{tmp_path}:{env['PATH']}"}, cwd=tmp_path,
        capture_output=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert (json.loads(done.stdout), done.stderr) == (json.loads(output.text), b"")


@pytest.mark.parametrize("flag", [flag.name for flag in _HOST_FLAGS])
def test_every_flag_is_described(flag: str) -> None:
    assert f"| `{flag}" in TEXT


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_every_code_is_described(code: str) -> None:
    assert f"`{code}`" in TEXT.partition("\n## The answer\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("kind", get_args(RequestType))
def test_every_type_is_described(kind: str) -> None:
    assert f"`{kind}`" in TEXT


@pytest.mark.parametrize("field", sorted({*Request.__struct_fields__, *Response.__struct_fields__}))
def test_every_field_is_described(field: str) -> None:
    assert f"`{field}`" in TEXT
