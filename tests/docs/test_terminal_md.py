"""docs/reference/terminal.md names every command of the terminal and every key that it tells people about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zot.ui.terminal.app import KEYS
from zot.ui.terminal.slash import COMMANDS

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "terminal.md").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_described(name: str) -> None:
    rows = [line.split("|")[1] for line in TEXT.split("\n") if line.startswith("| `/")]
    assert any(re.search(rf"`/{name}\b", row) for row in rows)


def test_every_key_of_the_help_is_described() -> None:
    keys = set(re.findall(r"`((?:Ctrl|Shift|Alt|Esc|Enter|Up|Down|Tab|Page)[\w+]*)`", KEYS))
    assert {"Esc", "Ctrl+S"} <= keys
    assert [key for key in sorted(keys) if f"`{key}`" not in TEXT] == []
