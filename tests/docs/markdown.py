"""The fenced blocks of a Markdown page, with their places."""

from __future__ import annotations

import re
from typing import NamedTuple


class Block(NamedTuple):
    """One fenced block: its text, its line in the page, and its heading."""

    text: str
    line: int
    heading: str
    language: str

    def id(self) -> str:
        """Return its name in a test run."""
        return f"{self.heading}, line {self.line}"


def all_blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in their order."""
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [
        Block(match[2], page.count("\n", 0, match.start()) + 1, _heading(page[: match.start()]), match[1])
        for match in found
    ]


def blocks(page: str, language: str) -> list[Block]:
    """Return the blocks in ``language``."""
    return [block for block in all_blocks(page) if block.language == language]


def anchors(page: str) -> set[str]:
    """Return the targets of links: the headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _heading(before: str) -> str:
    return str(re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1])
