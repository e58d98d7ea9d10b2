"""reference/credentials.md: its command lines print the output shown, and it lists every provider and flag."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment
from zot.commands import doctor, login
from zot.config.config import AGENT_FLAGS
from zot.config.vendors import VENDORS, Vendor

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "credentials.md").read_text()
EXAMPLES = list(zip(blocks(TEXT, "sh"), blocks(TEXT, "text"), strict=True))


def test_the_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    (programs / "zot").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m zot "$@"\n')
    (programs / "zot").chmod(0o755)
    env = environment({"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home)})
    for block, output in EXAMPLES:
        done = subprocess.run(
            ["sh", "-c", block.text], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.stdout.decode().replace(str(home), "~") == output.text, block.id()


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=lambda vendor: vendor.name)
def test_every_provider_is_listed_with_its_variables(vendor: Vendor) -> None:
    [row] = re.findall(rf"^\| `{vendor.name}` \|(.*)\|$", TEXT, re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", row)) == vendor.key_names


@pytest.mark.parametrize(
    "flag", [flag.name for flag in (*login.MANUAL.flags, *doctor.MANUAL.flags) if flag not in AGENT_FLAGS]
)
def test_every_flag_is_described(flag: str) -> None:
    assert re.search(rf"`{flag}\b", TEXT)
