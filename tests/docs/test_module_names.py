"""Source files and modules that the docs name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "zot"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))


def test_every_source_file_that_a_decision_names_exists() -> None:
    """Paths start at src/zot: `serve/streams.py`."""
    named = [(page.name, path) for page in DECISIONS for path in re.findall(r"[\w./-]+\.py\b", page.read_text())]
    assert len(named) > 5
    assert [(page, path) for page, path in named if not (SRC / path).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_in_a_module_that_a_page_names_exists(page: Path) -> None:
    """`journal/repair.back_up` is a name in src/zot/journal/repair.py."""
    packages = "|".join(path.parent.name for path in SRC.glob("*/__init__.py"))
    for module, name in re.findall(rf"`((?:{packages})(?:/\w+)+)\.(?!py\b)(\w+)", page.read_text()):
        source = SRC / f"{module}.py"
        assert source.is_file(), f"{module}.{name}"
        assert re.search(rf"\b(class|def) {name}\b|^{name}\b", source.read_text(), re.MULTILINE), f"{module}.{name}"
