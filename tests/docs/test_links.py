from __future__ import annotations

import re
from pathlib import Path

import pytest

from .markdown import anchors

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "examples" / "README.md", *DOCS]


def links(page: Path) -> list[tuple[Path, str]]:
    """Return the targets of a page's links: a file, and an anchor in it or ""."""
    found = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text())
    return [((page.parent / file).resolve() if file else page, anchor) for file, anchor in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target.read_text()), f"{target}#{anchor}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_is_in_an_index(page: Path) -> None:
    indexes = (ROOT / "README.md", ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md")
    assert page in {target for index in indexes for target, _ in links(index)}
