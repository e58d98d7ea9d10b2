"""Half characters: lone surrogates, which no valid JSON or UTF-8 may contain, and their escapes."""

from __future__ import annotations

#: Escapes of half a character, and, so as not to mistake them for one, all others: those are the group.
_ESCAPE = (
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def has_half(text: str) -> bool:
    """True if ``text`` contains half a character."""
    return any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False


def without_halves(text: str) -> str:
    """Return ``text`` with halves that belong together joined, and all others as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_half_escapes(json: bytes) -> bytes:
    """Return JSON text in which every escape of half a character is one of U+FFFD."""
    import re  # Rare enough not to be paid for at every start.

    return re.sub(_ESCAPE, lambda escape: escape[1] or rb"\ufffd", json)
