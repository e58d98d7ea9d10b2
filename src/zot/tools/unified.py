"""Two contents of a file, compared line by line."""

from __future__ import annotations

from collections.abc import Iterator

from zot.tools.text_encoding import detect

#: More lines than this are not compared: that may take very long.
MAX_COMPARED_LINES = 50_000


def unified(one: bytes | None, other: bytes | None, path: str) -> Iterator[str]:
    """Yield the rows of a unified diff, each ended by LF; None is no file. What is no text is only said to differ."""
    from difflib import unified_diff  # Only who compares needs it.

    names = "/dev/null" if one is None else f"a/{path}", "/dev/null" if other is None else f"b/{path}"
    left, right = _lines(one or b""), _lines(other or b"")
    if left is None or right is None:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
    elif len(left) + len(right) > MAX_COMPARED_LINES:
        yield f"Files {names[0]} and {names[1]} differ, and are too long to be compared\n"
    else:
        for row in unified_diff(left, right, *names):
            yield row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[str] | None:
    """Return the lines of a text, with their ends; None if it is none."""
    encoding = detect(data)
    if encoding is None:
        return None
    *lines, last = encoding.decode(data.removeprefix(encoding.bom)).split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]
