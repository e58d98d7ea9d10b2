"""What can be completed: commands at the beginning, files anywhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
from rich.text import Text
from textual.widgets import Static

from zot.ui.terminal.looks import safe
from zot.ui.terminal.mention import can_be_named, meant, mention

_MAX_FILES = 20_000
_FRESH_S = 10.0
_SHOWN = 6
_MOST = 50
_ELSEWHERE = ("/", "~/", "../", "./")
_UNLISTED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}


#: A text, and the line and column of the cursor in it.
Place: TypeAlias = tuple[str, tuple[int, int]]


class Offer(msgspec.Struct, frozen=True):
    """Something that can take the place of a word."""

    text: str
    help: str = ""


class Offers(Static):
    """A short list of offers, one of which is looked at."""

    DEFAULT_CSS = """
    Offers { height: auto; max-height: 6; display: none; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.offers: Sequence[Offer] = ()
        self.word = ""
        #: The text and the cursor that they are for.
        self.place: Place | None = None
        self._at = 0

    @property
    def chosen(self) -> Offer | None:
        """The offer that is looked at."""
        return self.offers[self._at] if self.offers else None

    def show(self, word: str, offers: Sequence[Offer], place: Place | None = None) -> None:
        """Offer these for ``word``, which stands at ``place``."""
        if not offers and not self.offers:  # As with nearly every key.
            return
        self.word, self.offers, self.place, self._at = word, offers, place if offers else None, 0
        self.display = bool(offers)
        self._draw()

    def move(self, step: int) -> None:
        """Look at another one."""
        if self.offers:
            self._at = (self._at + step) % len(self.offers)
            self._draw()

    def _draw(self) -> None:
        text = Text(no_wrap=True, overflow="ellipsis")
        shown = _SHOWN if len(self.offers) <= _SHOWN else _SHOWN - 1
        first = max(0, min(self._at - shown // 2, len(self.offers) - shown))
        for number, offer in enumerate(self.offers[first : first + shown], first):
            line = Text(_shown(offer.text), style="reverse" if number == self._at else "bold")
            if offer.help:
                line.append(f"  {_shown(offer.help)}", "dim")
            text.append(line)
            text.append("\n")
        if (hidden := len(self.offers) - shown) > 0:
            text.append(f"{hidden} more: Up, Down; Tab takes it", "dim")
        text.rstrip()
        self.update(text)


class Files:
    """The files below a directory, as they can be named in a prompt."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._known: list[str] = []
        self._until = 0.0

    def find(self, word: str) -> list[Offer]:
        """Return the files whose path has the letters in it that ``word`` means, the likeliest first.

        What begins like a path of its own, with ``/``, ``~`` or ``..``, is completed as one.
        """
        path = meant(word)
        if path.startswith(_ELSEWHERE):
            return [_offer(one) for one in self._beside(path)]
        if time.monotonic() > self._until:
            self._known = [*self._walk()]
            self._until = time.monotonic() + _FRESH_S
        wanted = path.lower()
        fits = [(_rank(one.lower(), wanted), len(one), one) for one in self._known if _fits(one.lower(), wanted)]
        return [_offer(one) for _, _, one in sorted(fits)[:_MOST]]

    def _beside(self, path: str) -> list[str]:
        """Return what there is in the directory that a path names, and begins like the rest of it."""
        place, name = os.path.split(path)
        place = place if place.endswith("/") else f"{place}/"
        try:
            with os.scandir(os.path.join(self._cwd, os.path.expanduser(place))) as found:
                fits = [one for one in found if one.name.startswith(name) and can_be_named(one.name)]
        except OSError:
            return []  # There is nothing to be offered in what cannot be read.
        hidden = name.startswith(".")
        # What cannot be looked at, such as a link that leads to itself, is offered as it is.
        paths = [f"{place}{one.name}{'/' * os.path.isdir(one.path)}" for one in fits if hidden or one.name[0] != "."]
        return sorted(paths)[:_MOST]

    def _walk(self) -> Iterator[str]:
        count = 0
        for place, directories, files in os.walk(self._cwd):
            directories[:] = sorted(name for name in directories if name not in _UNLISTED)
            inside = os.path.relpath(place, self._cwd)
            for name in sorted(files):
                count += 1
                if count > _MAX_FILES:
                    return
                path = name if inside == "." else os.path.join(inside, name)
                if can_be_named(path):
                    yield path


def _shown(text: str) -> str:
    """Return what may come from an extension as one line that the terminal can be given."""
    return safe(text).replace("\n", " ")


def _offer(path: str) -> Offer:
    return Offer(mention(path) if path.endswith("/") else f"{mention(path)} ")


def _fits(path: str, wanted: str) -> bool:
    letters = iter(path)
    return all(letter in letters for letter in wanted)


def _rank(path: str, wanted: str) -> int:
    name = os.path.basename(path)
    if name.startswith(wanted):
        return 0
    if path.startswith(wanted):
        return 1
    return 2 if wanted in path else 3
