"""Text made safe: control characters escaped for terminals and models, lone surrogates replaced."""

from __future__ import annotations

import re

#: Matches escapes of lone surrogates; all other escapes are captured in the group, so none is misread.
_ESCAPE = (
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def printable(text: str) -> str:
    """Return ``text`` with backslash escapes for unprintable characters: controls, line ends, undecodable bytes."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def printable_line(text: str, limit: int) -> str:
    """Return ``text`` as one printable line, cut to ``limit`` characters with an ellipsis."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[:limit]}…"


def shell_word(text: str) -> str:
    """Return ``text`` quoted as one shell word, with unprintable characters visible as escapes."""
    from shlex import quote  # Imported lazily: hello is answered without it.

    if text.isprintable():
        return quote(text)
    return "$'" + "".join(_typed(one) for one in text) + "'"


def _typed(one: str) -> str:
    if one.isprintable():
        return f"\\{one}" if one in "\\'" else one
    how = "surrogateescape" if "\udc80" <= one <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in one.encode("utf-8", how))


def _escaped(one: str) -> str:
    if "\udc80" <= one <= "\udcff":  # an undecodable byte of a file name
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape").decode()


def has_surrogate(text: str) -> bool:
    """True if ``text`` contains a surrogate."""
    return any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False


def replace_surrogates(text: str) -> str:
    """Return ``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def replace_surrogate_escapes(json: bytes) -> bytes:
    """Return JSON text with every escape of a lone surrogate replaced by an escape of U+FFFD."""
    return re.sub(_ESCAPE, lambda escape: escape[1] or rb"\ufffd", json)
