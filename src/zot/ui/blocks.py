"""Markdown, as much of it as models write, as HTML. What it does not know stays text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from zot.ui.block import RULE, Block, dedented, indent_of, next_said
from zot.ui.lists import begins_item, read_list
from zot.ui.tables import begins_table, read_table
from zot.ui.words import plain, words

#: Lists and quotes in each other, so many at most: what is deeper is text.
_DEEPEST = 24

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*)|$)")
_QUOTE = re.compile(r" {0,3}>[ \t]?")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")

#: A block that begins at a line, and the line behind it; None if it does not begin there.
_Read: TypeAlias = tuple[Block, int] | None


def markdown(text: str) -> str:
    """Return Markdown as HTML."""
    return "\n".join(block.whole for block in _blocks(text.replace("\r\n", "\n").split("\n"), 0))


def _blocks(lines: list[str], depth: int) -> Iterator[Block]:
    at = next_said(lines, 0)
    while at < len(lines):
        block, end = next(filter(None, (read(lines, at, depth) for read in _READERS)))
        yield block
        at = next_said(lines, end)
        block.is_apart = at > end


def _fence(lines: list[str], at: int, depth: int) -> _Read:
    fence = _FENCE.match(lines[at])
    if fence is None:
        return None
    end = at + 1
    while end < len(lines) and not _closes(lines[end], fence[2]):
        end += 1
    code = "\n".join(dedented(line, len(fence[1])) for line in lines[at + 1 : end])
    return _code(code), end + 1


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0]) and indent_of(line) < 4


def _indented(lines: list[str], at: int, depth: int) -> _Read:
    if indent_of(lines[at]) < 4:
        return None
    end = at
    while end < len(lines) and (not lines[end].strip() or indent_of(lines[end]) >= 4):
        end += 1
    return _code("\n".join(dedented(line, 4) for line in lines[at:end]).rstrip()), end


def _code(code: str) -> Block:
    return Block("pre", f"<code>{plain(code)}</code>")


def _heading(lines: list[str], at: int, depth: int) -> _Read:
    heading = _HEADING.match(lines[at])
    if heading is None:
        return None
    said = (heading[2] or "").strip()
    bare = said.rstrip("#")
    return _titled(len(heading[1]), bare.rstrip() if not bare or bare[-1] in " \t" else said), at + 1


def _titled(level: int, said: str) -> Block:
    return Block(f"h{min(6, level + 1)}", words(said))  # The page has a title of its own.


def _rule(lines: list[str], at: int, depth: int) -> _Read:
    return (Block("hr", ""), at + 1) if RULE.match(lines[at]) else None


def _list(lines: list[str], at: int, depth: int) -> _Read:
    if depth == _DEEPEST or not begins_item(lines[at]):
        return None
    return read_list(lines, at, lambda body: [*_blocks(body, depth + 1)], _starts)


def _quote(lines: list[str], at: int, depth: int) -> _Read:
    if depth == _DEEPEST or not _QUOTE.match(lines[at]):
        return None
    end = at
    while end < len(lines) and _QUOTE.match(lines[end]):
        end += 1
    quoted = [_QUOTE.sub("", line, count=1) for line in lines[at:end]]
    return Block("blockquote", "".join(block.whole for block in _blocks(quoted, depth + 1))), end


def _table(lines: list[str], at: int, depth: int) -> _Read:
    return read_table(lines, at) if begins_table(lines, at) else None


def _paragraph(lines: list[str], at: int, depth: int) -> tuple[Block, int]:
    end = at + 1
    while end < len(lines) and lines[end].strip():
        if underline := _UNDERLINE.match(lines[end]):
            return _titled(1 if underline[1][0] == "=" else 2, _said(lines[at:end])), end + 1
        if _starts(lines[end]) or begins_table(lines, end):
            break
        end += 1
    return Block("p", words(_said(lines[at:end]))), end


def _said(lines: list[str]) -> str:
    return "\n".join(line.strip() for line in lines)


def _starts(line: str) -> bool:
    """True if something else than more of a paragraph begins here."""
    if _FENCE.match(line) or _HEADING.match(line) or RULE.match(line) or _QUOTE.match(line):
        return True
    return begins_item(line, within_text=True)


_READERS: tuple[Callable[[list[str], int, int], _Read], ...] = (
    _fence, _indented, _heading, _rule, _list, _quote, _table, _paragraph,
)  # fmt: skip
