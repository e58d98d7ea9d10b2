"""docs/architecture.md lists the packages of the source and names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "zot"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_page_lists_every_package_and_module_at_the_top() -> None:
    tree = re.search(r"^```\nsrc/zot/\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert tree
    first, *rows = tree[1].rstrip("\n").split("\n")
    packages = [row.split("/")[0].strip() for row in rows]
    assert sorted(packages) == sorted(path.parent.name for path in SRC.glob("*/__init__.py"))
    modules = set(re.findall(r"\w+", first.partition("   ")[0]))
    assert modules == {path.stem for path in SRC.glob("*.py")} - {"__init__", "__main__", "cli", "version"}


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`([a-z_/]+\.py)`", PAGE)
    assert len(named) > 10
    homes = [SRC, SRC / "serve" / "daemon", ROOT]
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []
