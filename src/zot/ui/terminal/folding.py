"""What is long stands in the editor as one word, and is said in full."""

from __future__ import annotations

import re

#: What is pasted and longer than this is folded.
_FOLD_LINES = 6
_FOLD_CHARACTERS = 1000
#: What was said elsewhere, or before, and is longer than this. It may have been typed, to be changed in any place.
_LONG_LINES = 30
_LONG_CHARACTERS = 3000
#: So much of the first line and of the last one is still to be seen.
_SEEN_CHARACTERS = 200
MARK = re.compile(r"\[pasted #\d+: [^\]]*\]")


class Folds:
    """Knows what is folded, for as long as it can be brought back."""

    def __init__(self) -> None:
        #: What is folded, by the word that stands for it.
        self._folded: dict[str, str] = {}
        self._number = 0
        #: Those words that stand in the editor, or can be had back there: whoever writes another says just that.
        self._live: set[str] = set()
        #: How stood what was said, by what was said, if that is long.
        self._stood: dict[str, str] = {}

    def paste(self, text: str) -> str:
        """Return what is to stand for something that is pasted."""
        return self._fold(text) if _exceeds(text, _FOLD_LINES, _FOLD_CHARACTERS) else text

    def say(self, text: str) -> str:
        """Return all of what stands there, and know from now on how it stood."""
        said = MARK.sub(lambda found: self._folded[found[0]] if found[0] in self._live else found[0], text)
        if said != text or _exceeds(said, _LONG_LINES, _LONG_CHARACTERS):
            self._stood[said] = text
        self._live.clear()
        kept = {mark for stood in self._stood.values() for mark in MARK.findall(stood)}
        self._folded = {mark: text for mark, text in self._folded.items() if mark in kept}
        return said

    def recall(self, said: str) -> str:
        """Return how something stood before it was said; if that is not known, it is folded between its ends."""
        if said not in self._stood and _exceeds(said, _LONG_LINES, _LONG_CHARACTERS):
            first, middle, last = _cut(said)
            self._stood[said] = f"{first}{self._fold(middle)}{last}"
        stood = self._stood.get(said, said)
        self._live |= self._folded.keys() & set(MARK.findall(stood))
        return stood

    def _fold(self, text: str) -> str:
        lines = text.strip("\n").count("\n") + 1
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        self._number += 1
        mark = f"[pasted #{self._number}: {size}]"
        self._folded[mark] = text
        self._live.add(mark)
        return mark


def _exceeds(text: str, lines: int, characters: int) -> bool:
    return len(text) > characters or text.count("\n") >= lines


def _cut(text: str) -> tuple[str, str, str]:
    """Return the first line, what is between, line ends as well, and the last line; lines that are long are between."""
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    begin = len(first) if len(first) <= _SEEN_CHARACTERS else 0
    end = len(text) - (len(last) if len(last) <= _SEEN_CHARACTERS else 0)
    return text[:begin], text[begin:end], text[end:]
