"""A block of a page, and the lines that blocks are made of."""

from __future__ import annotations

import re

import msgspec

RULE = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")


class Block(msgspec.Struct):
    """An element, what is in it, and whether a blank line is behind it. ``attributes`` begin with a blank."""

    tag: str
    inner: str
    is_apart: bool = False
    attributes: str = ""

    @property
    def whole(self) -> str:
        return f"<{self.tag}{self.attributes}>{self.inner}</{self.tag}>" if self.tag != "hr" else "<hr>"


def indent_of(line: str) -> int:
    """Return how many columns of white space a line begins with."""
    return sum(4 if one == "\t" else 1 for one in line[: len(line) - len(line.lstrip(" \t"))])


def dedented(line: str, columns: int) -> str:
    """Return a line without so many columns of white space, or as many as it has."""
    at = 0
    while columns > 0 and at < len(line) and line[at] in " \t":
        columns -= 4 if line[at] == "\t" else 1
        at += 1
    return " " * -columns + line[at:]


def next_said(lines: list[str], at: int) -> int:
    """Return the next line that is not blank, or the end."""
    while at < len(lines) and not lines[at].strip():
        at += 1
    return at
