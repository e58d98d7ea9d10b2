"""Colours, marks and safe text for terminals."""

from __future__ import annotations

import codecs
import locale
import os
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from zot.text import escaped, printable

#: Escape sequences of terminal programs: colours, cursor movements, titles.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LIGHT_BACKGROUNDS = ("7", "15")

Level: TypeAlias = Literal["info", "success", "warn", "error"]


class Look(msgspec.Struct, frozen=True):
    """The marks that a terminal can show, and the theme for code on its background."""

    user: str = "❯"
    call: str = "●"
    failed: str = "✗"
    folded: str = "▸"
    unfolded: str = "▾"
    bar: str = "│"
    more: str = "…"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    dot: str = "·"
    code_theme: str = "ansi_dark"
    unicode: bool = True


#: For terminals without Unicode.
ASCII = Look(
    user=">",
    call="*",
    failed="!",
    folded="+",
    unfolded="-",
    bar="|",
    more="...",
    spinner="|/-\\",
    dot="-",
    unicode=False,
)


def charset(env: Mapping[str, str] = os.environ) -> str:
    """Return the locale's encoding; ASCII if Python does not know it."""
    try:
        return codecs.lookup(_replaced(env) or locale.getencoding()).name
    except LookupError:
        return "ascii"


def _replaced(env: Mapping[str, str]) -> str:
    """Return LANG's encoding where Python has replaced the locale by C.UTF-8; "" if it has not.

    Python does so if this machine lacks the locale; the terminal still uses its encoding.
    """
    is_replaced = not env.get("LC_ALL") and env.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8")
    return env.get("LANG", "").partition(".")[2].partition("@")[0] if is_replaced else ""


def look_for(env: Mapping[str, str] = os.environ, encoding: str | None = None) -> Look:
    """Return the look for a terminal with this environment and encoding."""
    look = Look() if (encoding or charset()).startswith("utf") else ASCII
    is_light = env.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_BACKGROUNDS
    return msgspec.structs.replace(look, code_theme="ansi_light") if is_light else look


def safe(text: str) -> str:
    """Return foreign text safe for a terminal: no escape sequences, LF line ends."""
    if "\x1b" in text:
        text = _SEQUENCES.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return escaped(text).expandtabs(4)


def program_output(text: str) -> str:
    """Return a program's output as `safe` text, with the last state of lines that it overwrote."""
    if "\r" in text:
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return safe(text)


def unabridged(text: str) -> str:
    """Return a call's text unabridged: every invisible character but LF and TAB written as its escape."""
    return "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))


def tokens(count: int) -> str:
    """Format a number of tokens."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 100_000 else f"{count // 1000}k"


def shortened(path: str, home: str) -> str:
    """Return a path with ``~`` for the user's home."""
    return "~" + path[len(home) :] if home and (path == home or path.startswith(home + "/")) else path
