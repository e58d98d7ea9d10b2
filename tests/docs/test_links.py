from __future__ import annotations

import re
from pathlib import Path

import pytest

from .markdown import anchors

ROOT = Path(__file__).parents[2]
PAGES = ("docs/rpc.md", "docs/sdk.md", "examples/README.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    for file, _, anchor in re.findall(r"\]\(([^)#]*)(#?)([^)]*)\)", path.read_text()):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not anchor or anchor in anchors(target.read_text()), f"{file}#{anchor}"
