"""Text that others chose, such as the name of a file, made safe to stand in a line for a person or a model."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` with a backslash escape for all that would not be seen: controls, line ends, broken bytes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
