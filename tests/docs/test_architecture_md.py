"""docs/explanation/architecture.md lists the packages of the source and names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

from test_architecture import MAY_IMPORT

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "zot"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


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


def test_the_tiers_of_the_page_are_those_of_the_import_table() -> None:
    line = re.search(r"^cli > .* > vocabulary$", PAGE, re.MULTILINE)
    assert line
    tiers = [tier.split(", ") for tier in line[0].split(" > ")[:-1]]
    depth = {package: at for at, tier in enumerate(tiers) for package in tier}
    assert depth.keys() == MAY_IMPORT.keys() - {"__main__", "__init__"}
    imports = [(one, other) for one in depth for other in MAY_IMPORT[one]]
    assert [(one, other) for one, other in imports if depth[one] >= depth[other]] == []
