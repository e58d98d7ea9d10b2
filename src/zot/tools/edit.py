"""The edit tool: exact replacements in one file, all of them or none.

Everything happens on bytes. What is outside the matches stays as it is, whatever encoding or line ends it has.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from zot.errors import ToolFailed
from zot.messages import TextBlock, ToolSpec
from zot.tools.arguments import decode_args, to_utf8
from zot.tools.base import Output, ToolContext
from zot.tools.changes import Change, apply, common_start, diff
from zot.tools.excerpt import Excerpt
from zot.tools.files import open_to_read, read_at, replace, resolve

#: A line end of either kind; never the second half of one.
_ANY_LINE_END = rb"(?:\r\n|(?<!\r)\n)"
_MAX_PLACES = 10
_MAX_SHOWN_BYTES = 1000
#: How much of a file we compare with a text that was not found in it.
_MAX_COMPARED_BYTES = 4 * 1024 * 1024


class EditPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old_text: str = msgspec.field(name="oldText")
    new_text: str = msgspec.field(name="newText")


class EditArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    edits: tuple[EditPair, ...]


class Edit:
    """Changes parts of files for the model."""

    spec = ToolSpec(
        name="edit",
        description=(
            "Replace exact text in a file. Each oldText must occur exactly once in the file as it is now, "
            "and no two may overlap; either all edits are made or none. Returns a diff."
        ),
        schema={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File, absolute or relative to the cwd"},
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {
                            "oldText": {"type": "string", "description": "Text to replace, with its exact whitespace"},
                            "newText": {"type": "string", "description": "What to put in its place"},
                        },
                        "required": ["oldText", "newText"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["path", "edits"],
            "additionalProperties": False,
        },
    )
    read_only = False

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Make all edits and return a diff of them. Raise ToolFailed, and then the file is as it was."""
        wanted = decode_args(args, EditArgs)
        path = resolve(wanted.path, context.cwd)
        if not wanted.edits:
            raise ToolFailed("at least one edit is required")
        data = _content(path, wanted.path)
        changes = _in_order([_change(data, pair, f"edit {n}") for n, pair in enumerate(wanted.edits, 1)])
        replace(path, apply(data, changes), wanted.path)
        shown = Excerpt()
        for row in diff(data, changes):
            shown.feed(row)
        return (TextBlock(shown.text()),)


def _content(path: str, shown: str) -> bytes:
    fd = open_to_read(path, shown)
    try:
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            raise ToolFailed(f"cannot edit {shown}: it is a directory")
        return read_at(fd, about.st_size, 0)
    finally:
        os.close(fd)


def _change(data: bytes, pair: EditPair, label: str) -> Change:
    old, new = to_utf8(pair.old_text, f"{label} oldText"), to_utf8(pair.new_text, f"{label} newText")
    if not old:
        raise ToolFailed(f"{label}: oldText must not be empty")
    if old == new:
        raise ToolFailed(f"{label}: oldText equals newText")
    places = list(_places(data, _pattern(old)))
    if not places:
        raise ToolFailed(f"{label}: oldText not found; {_nearly(data, old)}")
    if len(places) > 1:
        raise ToolFailed(f"{label}: oldText matches {_several(data, places)}; give more of the text around one of them")
    [(start, end)] = places
    if b"\r" not in old and b"\r" not in new and _has_crlf(data, start, end):
        new = new.replace(b"\n", b"\r\n")
    return Change(start, end, new)


def _pattern(old: bytes) -> re.Pattern[bytes]:
    """Return what finds ``old``; unless it speaks of CR itself, its line ends stand for those the file has."""
    if b"\r" in old:
        return re.compile(re.escape(old))
    return re.compile(_ANY_LINE_END.join(re.escape(line) for line in old.split(b"\n")))


def _places(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Find where ``pattern`` matches, also where matches overlap; at most one more than we would list."""
    found = pattern.search(data)
    for _ in range(_MAX_PLACES + 1):
        if found is None:
            return
        yield found.span()
        found = pattern.search(data, found.start() + 1)


def _has_crlf(data: bytes, start: int, end: int) -> bool:
    """Tell if the lines of a match end in CRLF: by its first line end, else the one behind it or before it."""
    at = data.find(b"\n", start)
    if at == -1:
        at = data.rfind(b"\n", 0, end)
    return at > 0 and data[at - 1 : at] == b"\r"


def _in_order(changes: list[Change]) -> list[Change]:
    """Return the changes by position. Raise ToolFailed if two of them touch the same bytes."""
    numbered = sorted(enumerate(changes, 1), key=lambda item: item[1].start)
    for (one, before), (two, after) in pairwise(numbered):
        if after.start < before.end:
            first, second = sorted((one, two))
            raise ToolFailed(f"edits {first} and {second} overlap; merge them into one edit")
    return [change for _, change in numbered]


def _several(data: bytes, places: Sequence[tuple[int, int]]) -> str:
    lines = ", ".join(str(_line_number(data, start)) for start, _ in places[:_MAX_PLACES])
    if len(places) > _MAX_PLACES:
        return f"more than {_MAX_PLACES} times (lines {lines}, ...)"
    return f"{len(places)} times (lines {lines})"


class _Line(NamedTuple):
    number: int
    text: bytes


def _nearly(data: bytes, old: bytes) -> str:
    """Say how a text that is not in the file nearly is, and show the place."""
    words = old.split()
    if not words:
        return "it is only whitespace"
    spaced = re.compile(rb"\s+".join(re.escape(word) for word in words)).search(data)
    if spaced is not None:
        start = data.rfind(b"\n", 0, spaced.start()) + 1
        number = _line_number(data, start)
        return f"it would match line {number} if whitespace were ignored. The file has there:\n" + _show(
            data[start : spaced.end()]
        )
    nearest = _nearest_line(data[:_MAX_COMPARED_BYTES], max(old.split(b"\n"), key=len))
    if nearest is None:
        return "no line of the file is like it"
    return f"the nearest line is {nearest.number}:\n{_show(nearest.text)}"


def _nearest_line(data: bytes, wanted: bytes) -> _Line | None:
    """Return the line most like ``wanted``; None if none is really like it."""
    wanted = wanted.strip()
    words = set(_words(wanted))
    best, best_score = None, 0.6
    for number, line in enumerate(data.split(b"\n"), 1):
        score = _likeness(wanted, words, line.strip())
        if score > best_score:
            best, best_score = _Line(number, line.rstrip(b"\r")), score
    return best


def _likeness(wanted: bytes, words: set[bytes], line: bytes) -> float:
    """Return 0 to 2: the share of common words, plus that of what both begin and end with.

    Words find a line whose order was changed, both ends one with a change in its middle; both are linear.
    """
    others = set(_words(line))
    if not words & others:
        return 0.0
    common = 2 * len(words & others) / (len(words) + len(others))
    ends = common_start(wanted, line) + common_start(wanted[::-1], line[::-1])
    length = max(len(wanted), len(line))
    return common + min(ends, length) / length


def _words(line: bytes) -> list[bytes]:
    return re.findall(rb"\w+|[^\w\s]", line)


def _show(text: bytes) -> str:
    return text[:_MAX_SHOWN_BYTES].decode(errors="replace")


def _line_number(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1
