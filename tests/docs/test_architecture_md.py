"""The tree in the page on the architecture is that of the source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "zot"
TREE = re.search(
    r"^```\nsrc/zot/\n(.*?)^```$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE | re.DOTALL
)
NAMES = re.compile(r"( +)((?:[\w.]+/?, )*[\w.]+/?)  ")


def named() -> Iterator[str]:
    """Yield each file and directory of the tree, with the packages that it stands in."""
    assert TREE
    packages: list[str] = []
    for line in TREE[1].splitlines():
        if match := NAMES.match(line):
            del packages[len(match[1]) // 2 - 1 :]
            names = match[2].split(", ")
            yield from ("".join([*packages, name]) for name in names)
            packages += [name for name in names if name.endswith("/")]


def test_each_file_of_the_source_stands_in_the_tree_once() -> None:
    listed = Counter(named())
    files = {str(file.relative_to(SRC)) for file in SRC.rglob("*.py") if file.name != "__init__.py"}
    assert {name for name in listed if name.endswith(".py")} == files
    assert [name for name, times in listed.items() if times > 1 or not (SRC / name).exists()] == []
