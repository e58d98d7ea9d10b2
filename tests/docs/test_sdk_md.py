"""docs/reference/sdk.md describes every public name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import zot

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "sdk.md").read_text()
#: What needs no words in a reference of how to use it.
PLAIN = {"AgentEvent", "TextBlock", "__version__"}


@pytest.mark.parametrize("setting", zot.Config.__struct_fields__)
def test_every_setting_is_described(setting: str) -> None:
    assert f"\n| `{setting}` |" in TEXT


@pytest.mark.parametrize("member", [name for name in dir(zot.Runtime) if not name.startswith("_")])
def test_every_member_of_runtime_is_described(member: str) -> None:
    section = TEXT.partition("\n## Runtime\n")[2].partition("\n### ")[0]
    assert re.search(rf"\| .*`(await )?{member}\b.*\|", section)


@pytest.mark.parametrize(
    "name", [name for name in zot.__all__ if name not in ("TextBlock", "AgentEvent", "__version__")]
)
def test_every_public_name_is_mentioned(name: str) -> None:
    assert re.search(rf"\b{name}\b", TEXT)
