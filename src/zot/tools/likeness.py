"""How a text that is not in a file nearly is: which difference hides it, and where the closest place is.

The model that hears this tries again, so the place is worth a search; but one that is linear in the file, and of a
large file only in its beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from zot.tools.diff import common_start

MAX_COMPARED_CHARACTERS = 1024 * 1024
MAX_COMPARED_LINES = 20_000
MAX_SHOWN_CHARACTERS = 1000

#: A line that a text has more often says little about where it belongs.
_MAX_REPEATS = 8
#: How much of a text, by the length of its lines, must be at a place for it to be the closest.
_LEAST_SHARE = 0.2
_LEAST_LIKENESS = 0.6


def nearly(text: str, old: str) -> str:
    """Say how ``old``, which is not in ``text``, nearly is, and show the place."""
    if not old.split():
        return "it is only whitespace"
    text = text[:MAX_COMPARED_CHARACTERS]
    for difference, simplified in _DIFFERENCES:
        if found := _find(text, old, simplified):
            return f"it would match line {found.number} if {difference} were ignored. The file has there:\n{found.text}"
    lines, wanted = text.split("\n"), old.split("\n")
    if block := _closest_block(lines, wanted):
        return block
    nearest = _nearest_line(lines, max(wanted, key=len))
    if nearest is None:
        return "no line of the file is like it"
    return f"the nearest line is {nearest.number}:\n{nearest.text}"


class _Lines(NamedTuple):
    """Some lines of the file, from ``number`` on."""

    number: int
    text: str


class _Simplified(NamedTuple):
    """A text without a kind of difference, and how to find the line of a position in it."""

    text: str
    line_of: Callable[[int], int]


def _without_cr(text: str) -> _Simplified:
    simple = text.replace("\r", "")
    return _Simplified(simple, lambda at: simple.count("\n", 0, at) + 1)


def _without_case(text: str) -> _Simplified:
    simple = text.lower()
    return _Simplified(simple, lambda at: simple.count("\n", 0, at) + 1)


def _without_spaces(text: str) -> _Simplified:
    def line_of(at: int) -> int:
        start = 0
        for word in re.finditer(r"\S+", text):
            start = word.start()
            at -= len(word[0])
            if at < 0:
                break
        return text.count("\n", 0, start) + 1

    return _Simplified("".join(text.split()), line_of)


def _without_both(text: str) -> _Simplified:
    simple = _without_spaces(text)
    return simple._replace(text=simple.text.lower())


_DIFFERENCES: Sequence[tuple[str, Callable[[str], _Simplified]]] = (
    ("line ends", _without_cr),
    ("whitespace", _without_spaces),
    ("case", _without_case),
    ("whitespace and case", _without_both),
)


def _find(text: str, old: str, simplified: Callable[[str], _Simplified]) -> _Lines | None:
    within, wanted = simplified(text), simplified(old).text
    at = within.text.find(wanted)
    if at == -1:
        return None
    first, last = within.line_of(at), within.line_of(at + len(wanted.rstrip("\n")) - 1)
    return _Lines(first, _shown("\n".join(text.split("\n")[first - 1 : last])))


def _closest_block(lines: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Say where most of ``wanted`` is, and how the first line that differs does; None if it is nowhere really."""
    weights = [len(line.strip()) for line in wanted if line.strip()]
    if len(weights) < 2:
        return None
    start, weight = _vote(lines, wanted)
    pairs = [(_line_at(lines, start + number), line.strip()) for number, line in enumerate(wanted)]
    differing = [number for number, pair in enumerate(pairs) if not _agree(*pair, number=number, last=len(pairs) - 1)]
    if weight < _LEAST_SHARE * sum(weights) or not differing:
        return None
    has, should_have = pairs[differing[0]]
    at = max(start + differing[0], 0) + 1
    return (
        f"the closest place begins at line {max(start, 0) + 1}, where line {at} differs.\n"
        f"The file has: {_shown(has) or 'nothing'}\noldText has:  {_shown(should_have) or 'nothing'}"
    )


def _vote(lines: Sequence[str], wanted: Sequence[str]) -> tuple[int, int]:
    """Return where ``wanted`` would begin so that the most of it, by length, is where it should be; and how much is."""
    numbers: dict[str, list[int]] = {}
    for number, line in enumerate(wanted):
        numbers.setdefault(line.strip(), []).append(number)
    telling = {line: at for line, at in numbers.items() if len(at) <= _MAX_REPEATS}
    votes: Counter[int] = Counter()
    for at, line in enumerate(lines):
        stripped = line.strip()
        for number in telling.get(stripped, ()):
            votes[at - number] += len(stripped)
    return max(votes.items(), key=lambda vote: vote[1], default=(0, 0))


def _line_at(lines: Sequence[str], at: int) -> str:
    return lines[at].strip() if 0 <= at < len(lines) else ""


def _agree(has: str, wanted: str, *, number: int, last: int) -> bool:
    """Tell if two lines are the same; the first and last of a text need not be whole."""
    return has == wanted or (number == 0 and has.endswith(wanted)) or (number == last and has.startswith(wanted))


def _nearest_line(lines: Sequence[str], wanted: str) -> _Lines | None:
    """Return the line most like ``wanted``; None if none is really like it. Looks only at the first of equal lines."""
    wanted = wanted.strip()
    words = set(_words(wanted))
    firsts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        firsts.setdefault(line.strip(), number)
    best, best_score = None, _LEAST_LIKENESS
    for line, number in islice(firsts.items(), MAX_COMPARED_LINES):
        score = _likeness(wanted, words, line)
        if score > best_score:
            best, best_score = number, score
    return None if best is None else _Lines(best, _shown(lines[best - 1].rstrip("\r")))


def _likeness(wanted: str, words: set[str], line: str) -> float:
    """Return 0 to 2: the share of common words, plus that of what both begin and end with.

    Words find a line whose order was changed, both ends one with a change in its middle; both are linear.
    """
    others = set(_words(line))
    if not words & others:
        return 0.0
    common = 2 * len(words & others) / (len(words) + len(others))
    ends = common_start(wanted, line) + common_start(wanted[::-1], line[::-1])
    length = max(len(wanted), len(line))
    return common + min(ends, length) / length


def _words(line: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", line)


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."
