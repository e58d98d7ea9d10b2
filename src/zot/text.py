"""Text made safe: control characters escaped for terminals and models, lone surrogates replaced."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` with a backslash escape for all that would not be seen: controls, line ends, broken bytes."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def printable_line(text: str, limit: int) -> str:
    """Return ``text`` as one printable line of at most so many characters, and a sign that there was more."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[:limit]}…"


def shell_word(text: str) -> str:
    """Return ``text`` as one word of a command for bash, zsh and others, in which all that there is can be seen."""
    from shlex import quote

    if text.isprintable():
        return quote(text)
    return "$'" + "".join(_typed(one) for one in text) + "'"


def _typed(one: str) -> str:
    if one.isprintable():
        return f"\\{one}" if one in "\\'" else one
    how = "surrogateescape" if "\udc80" <= one <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in one.encode("utf-8", how))


def _escaped(one: str) -> str:
    if "\udc80" <= one <= "\udcff":  # a byte of a file's name that is no character
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape").decode()


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
