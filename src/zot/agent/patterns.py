"""Regular expressions whose time is bounded: one pass over the text, whatever the expression. Does no I/O.

`re` goes back and tries again, for some expressions for ever, and nothing can interrupt it. So it only reads them here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]  # The only reader of Python's expressions; typeshed hides it.
from typing import Any, TypeAlias

#: Longer texts are not looked at.
MAX_TEXT = 10_000
_MAX_STATES = 1_000
_MAX_KNOWN = 1_000

_Fits: TypeAlias = Callable[[str], bool]
#: What stands before a place and what behind it; "" at the ends.
_Holds: TypeAlias = Callable[[str, str], bool]


@lru_cache(maxsize=100)
def compiled(expression: str) -> Pattern:
    """Return the pattern of an expression. Raise ValueError, with the reason, if there is none."""
    return Pattern(expression)


class Pattern:
    """An expression that can be looked for in a text. Raise ValueError, with the reason, for one that cannot.

    `$` is the very end of the text. There are no references to groups, no looking ahead or behind, and no flags.
    """

    def __init__(self, expression: str) -> None:
        try:
            parsed = _parser.parse(expression)
        except (re.error, RecursionError, OverflowError) as problem:
            raise ValueError(str(problem)) from None
        if parsed.state.flags & ~re.UNICODE:
            raise ValueError("flags cannot be used")
        self._steps: list[tuple[_Fits, int]] = []
        self._jumps: list[list[tuple[_Holds | None, int]]] = []
        self._end = self._state()
        try:
            self._start = self._sequence(parsed, self._end)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        self._known: dict[tuple[frozenset[int], str, str], tuple[bool, frozenset[int]]] = {}

    def is_in(self, text: str) -> bool:
        """True if some part of ``text`` matches."""
        now: frozenset[int] = frozenset()
        before = ""
        for behind in (*text, ""):
            key = (now, before, behind)
            if key not in self._known:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[key] = self._step(*key)
            found, now = self._known[key]
            if found:
                return True
            before = behind
        return False

    def _step(self, now: frozenset[int], before: str, behind: str) -> tuple[bool, frozenset[int]]:
        """Return if the end is reached here, and the states behind the next character. A match may begin anywhere."""
        reached, waiting = set[int](), [self._start, *now]
        while waiting:
            state = waiting.pop()
            if state in reached:
                continue
            reached.add(state)
            waiting += [to for holds, to in self._jumps[state] if holds is None or holds(before, behind)]
        moves = (self._steps[state] for state in reached) if behind else ()
        return self._end in reached, frozenset(to for fits, to in moves if fits(behind))

    def _state(self, fits: _Fits = lambda _: False, to: int = -1) -> int:
        if len(self._steps) >= _MAX_STATES:
            raise ValueError("it is too large")
        self._steps.append((fits, to))
        self._jumps.append([])
        return len(self._steps) - 1

    def _sequence(self, items: Sequence[tuple[Any, Any]], to: int) -> int:
        """Return the state from which ``items`` lead to ``to``."""
        for name, value in reversed([*items]):
            to = self._item(str(name), value, to)
        return to

    def _item(self, name: str, value: Any, to: int) -> int:
        match name:
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                return self._repeated(least, most, inner, to)
            case "SUBPATTERN":
                _, added, removed, inner = value
                if added or removed:
                    raise ValueError("flags cannot be used")
                return self._sequence(inner, to)
            case "BRANCH":
                return self._fork([self._sequence(branch, to) for branch in value[1]])
            case "AT":
                return self._fork([to], _PLACES[str(value)])
            case _:
                return self._state(_character(name, value), to)

    def _repeated(self, least: int, most: int, inner: Sequence[tuple[Any, Any]], to: int) -> int:
        if most is _parser.MAXREPEAT:
            loop = self._fork([to])
            self._jumps[loop].append((None, self._sequence(inner, loop)))
            to = loop
        else:
            out = to
            for _ in range(most - least):
                to = self._fork([out, self._sequence(inner, to)])
        for _ in range(least):
            if (again := self._sequence(inner, to)) == to:
                break  # Nothing, however often.
            to = again
        return to

    def _fork(self, targets: Sequence[int], holds: _Holds | None = None) -> int:
        state = self._state()
        self._jumps[state] += [(holds, target) for target in targets]
        return state


def _character(name: str, value: Any) -> _Fits:
    """Return what tells if a character is meant. Raise ValueError if the part of an expression is no character."""
    match name:
        case "LITERAL":
            return lambda character: ord(character) == value
        case "NOT_LITERAL":
            return lambda character: ord(character) != value
        case "ANY":
            return lambda character: character != "\n"
        case "RANGE":
            return lambda character: value[0] <= ord(character) <= value[1]
        case "CATEGORY":
            return _CATEGORIES[str(value)]
        case "IN":
            inverted = str(value[0][0]) == "NEGATE"
            members = [_character(str(kind), one) for kind, one in value[inverted:]]
            return lambda character: inverted != any(fits(character) for fits in members)
        case _:
            raise ValueError(f"{name.lower().replace('_', ' ')} cannot be checked in bounded time")


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[str, _Fits] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda character: not character.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda character: not character.isspace(),
    "CATEGORY_WORD": _is_word,
    "CATEGORY_NOT_WORD": lambda character: not _is_word(character),
}
_PLACES: dict[str, _Holds] = {
    "AT_BEGINNING": lambda before, behind: not before,
    "AT_BEGINNING_STRING": lambda before, behind: not before,
    "AT_END": lambda before, behind: not behind,
    "AT_END_STRING": lambda before, behind: not behind,
    "AT_BOUNDARY": lambda before, behind: _is_word(before) != _is_word(behind),
    "AT_NON_BOUNDARY": lambda before, behind: _is_word(before) == _is_word(behind),
}
