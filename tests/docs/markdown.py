"""The fenced blocks of a Markdown page, with where they stand."""

from __future__ import annotations

import re
from typing import NamedTuple


class Block(NamedTuple):
    """One fenced block: its text, its line in the page, and the heading it stands under."""

    text: str
    line: int
    heading: str

    def id(self) -> str:
        """Return what names it in a test run."""
        return f"{self.heading}, line {self.line}"


def blocks(page: str, language: str) -> list[Block]:
    """Return the blocks in ``language``."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(match[1], page.count("\n", 0, match.start()) + 1, _heading(page[: match.start()])) for match in found]


def anchors(page: str) -> set[str]:
    """Return what a link can point at: the headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _heading(before: str) -> str:
    return str(re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1])
