"""Text made safe: control characters escaped for terminals and models, lone surrogates replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Matches escapes of lone surrogates; all other escapes are captured in the group, so none is misread.
_ESCAPE = (
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


#: Characters that a terminal obeys or hides: C0 and C1 controls, direction marks, surrogates, and those without width;
#: not LF and not TAB. Joiners and variation selectors are a part of emoji and of some scripts, but never after ASCII.
_INVISIBLE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
    "|(?<=[\x00-\x7f])(?:[\u200c\u200d\ufe00-\ufe0e]|\ufe0f(?!\u20e3))"
)
#: Characters without width or ink that Python calls printable.
_BLANK = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"

#: Two swapped letters of three, as in rcp for rpc, are this much alike.
_ALIKE = 0.66


def escaped(text: str) -> str:
    """Return ``text`` safe for a terminal: invisible characters are written as escapes; LF and TAB stay.

    Everything that zot prints on a terminal passes through here, so no sequence in it is obeyed.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return re.sub(_INVISIBLE, lambda found: escape_of(found[0]), text.replace("\r\n", "\n"))


def escape_of(one: str) -> str:
    """Return the escape of one character."""
    code = ord(one)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def escaped_bytes(data: bytes) -> bytes:
    """Return UTF-8 `escaped`, with bytes that are none as escapes."""
    return escaped(data.decode("utf-8", "backslashreplace")).encode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """Return ``text`` with backslash escapes for all that cannot be seen: controls, line ends, undecodable bytes, and
    characters without width."""
    if text.isprintable() and (text.isascii() or not re.search(_BLANK, text)):
        return text
    return "".join(one if one.isprintable() and not re.match(_BLANK, one) else _escaped(one) for one in text)


def visible(text: str) -> str:
    """Return ``text`` with all that cannot be seen as escapes, but for line feeds: each line is `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def printable_line(text: str, limit: int) -> str:
    """Return ``text`` as one printable line, cut to ``limit`` characters with an ellipsis."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[:limit]}…"


def exact_line(text: str, limit: int) -> str:
    """Return ``text`` as one line in which everything can be told apart, also line ends, cut to ``limit``."""
    text = printable(text)
    return text if len(text) <= limit else f"{text[:limit]}…"


def shell_word(text: str) -> str:
    """Return ``text`` quoted as one shell word, with unprintable characters visible as escapes."""
    from shlex import quote  # Imported lazily: hello is answered without it.

    if text == printable(text):
        return quote(text)
    return "$'" + "".join(_typed(one) for one in text) + "'"


def _typed(one: str) -> str:
    if one == printable(one):
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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" if ``word`` resembles a known one, else ""."""
    from difflib import get_close_matches  # Imported lazily: only mistakes need it.

    bare = {one.lstrip("-/"): one for one in known}  # The signs of a flag or slash command would count as likeness.
    near = get_close_matches(word.lstrip("-/"), [*bare], n=1, cutoff=_ALIKE)
    return f"; did you mean {bare[near[0]]}?" if near else ""
