"""docs/reference/tools.md lists every protected path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zot.config.protected_paths import PROTECTED

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "tools.md").read_text()


@pytest.mark.parametrize("program", PROTECTED)
def test_every_protected_path_is_listed(program: str) -> None:
    [row] = re.findall(rf"^\| {program} \|(.*)\|$", TEXT, re.MULTILINE)
    assert tuple(re.findall(r"`([^`]+)`", row)) == PROTECTED[program]
