"""Thoughts that a server leaves in the text: ``<think>...</think>`` at its beginning. Does no I/O."""

from __future__ import annotations

import enum

_OPEN = "<think>"
_CLOSE = "</think>"


class _At(enum.Enum):
    START = "before a tag, if one comes"
    THOUGHT = "between the tags"
    GAP = "behind the thought, before the text"
    TEXT = "in the text"


class ThinkTags:
    """Tells thoughts from text while both arrive. Tags anywhere but at the beginning are text like any other."""

    def __init__(self) -> None:
        self._held = ""
        self._at = _At.START

    @property
    def is_over(self) -> bool:
        """True when nothing that comes can be a thought any more."""
        return self._at is _At.TEXT

    def feed(self, text: str) -> tuple[str, str]:
        """Return what of a thought, and what of the text after it, is certain by now."""
        self._held += text
        if self._at is _At.START:
            self._begin()
        thought = self._take_thought() if self._at is _At.THOUGHT else ""
        if self._at is _At.GAP and (rest := self._held.lstrip("\n")):
            self._held, self._at = rest, _At.TEXT
        return thought, self._take(len(self._held)) if self._at is _At.TEXT else ""

    def finish(self) -> tuple[str, str]:
        """There is no more text. Return what was still held."""
        held = self._take(len(self._held))
        at, self._at = self._at, _At.TEXT
        return (held, "") if at is _At.THOUGHT else ("", held if at is _At.START else "")

    def _begin(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(_OPEN):
            self._held, self._at = begun[len(_OPEN) :], _At.THOUGHT
        elif not _OPEN.startswith(begun):
            self._at = _At.TEXT

    def _take_thought(self) -> str:
        thought, closed, rest = self._held.partition(_CLOSE)
        if closed:
            self._held, self._at = rest, _At.GAP
            return thought
        # What may be the beginning of the tag is held back.
        sizes = range(len(_CLOSE) - 1, 0, -1)
        keep = next((size for size in sizes if self._held.endswith(_CLOSE[:size])), 0)
        return self._take(len(self._held) - keep)

    def _take(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken
