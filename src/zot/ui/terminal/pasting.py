"""Pastes as one piece. Textual would take an escape sequence inside of a paste for keys, which then come first."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

_ESC = "\x1b"
_BLANKS = re.compile(r"[\r\n]+|\t")
#: Control characters, and halves of characters.
_UNWRITTEN = ("Cc", "Cs")
#: What is longer is not meant for a place where keys are pressed.
_MAX_KEYS = 1000


def as_keys(text: str) -> str | None:
    """Return the characters that would be typed for a paste, its lines as one; None if it is too long for that."""
    return None if len(text) > _MAX_KEYS else "".join(filter(is_written, _BLANKS.sub(" ", text.strip("\r\n"))))


def is_written(character: str) -> bool:
    """True if a character is text.

    Python calls others not printable that are: every blank but one, joiners without which Persian and Hindi are
    misspelt, and characters that are newer than itself.
    """
    return unicodedata.category(character) not in _UNWRITTEN


class WholePastes(XTermParser):
    """Reads what a terminal sends. ESC in a paste is text: its escape stands for it."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pastes = False
        #: What may be the beginning of the end of a paste, and is not read yet.
        self._held = ""
        #: What may be the beginning of the beginning of one, and is read.
        self._read = ""

    def feed(self, data: str) -> Iterable[Message]:
        """Yield what a piece of input says; of none, that it is over."""
        text = self._harmless(self._held + data)
        return super().feed(text) if text or not data else ()

    def _harmless(self, data: str) -> str:
        done = ""
        while data:
            piece, data = self._pasted(data) if self._pastes else self._typed(data)
            done += piece
        return done

    def _typed(self, data: str) -> tuple[str, str]:
        """Return what comes before a paste begins, and what is left."""
        seen = self._read + data
        at = seen.find(BRACKETED_PASTE_START)
        if at < 0:
            self._read = seen[1 - len(BRACKETED_PASTE_START) :]
            return data, ""
        cut = at + len(BRACKETED_PASTE_START) - len(self._read)
        self._read, self._pastes = "", True
        return data[:cut], data[cut:]

    def _pasted(self, data: str) -> tuple[str, str]:
        """Return what was pasted, and what is left."""
        text, end, rest = data.partition(BRACKETED_PASTE_END)
        self._held = "" if end else _beginning(text)
        self._pastes = not end
        text = text.removesuffix(self._held)
        return text.replace(_ESC, "\\x1b") + end, rest


def _beginning(text: str) -> str:
    """Return the end of a text that may be the beginning of the end of a paste."""
    at = text.rfind(_ESC)
    return text[at:] if at >= 0 and BRACKETED_PASTE_END.startswith(text[at:]) else ""
