"""One line of a lab script: a word, then arguments and options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

_TOKEN = re.compile(r"(?:([A-Za-z][\w-]*)=)?(?:('[^']*')|(\"(?:[^\"\\]|\\.)*\")|([\[{])|([^\s'\"]\S*)|(?=\s|$))")
_NESTING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[\[\]{}]")
_PLACEHOLDER = re.compile(r"\$(?:[1-9]|[a-z]+)")
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}

Literal = str | dict[str, Any] | list[Any]


class Word(str):
    """An argument that was written without quotes."""

    __slots__ = ()


class BadLine(Exception):
    """A line does not read; the text says what was found or expected."""


class Line(msgspec.Struct, frozen=True):
    """A line taken apart. The readers below raise BadLine when an argument is not what a directive needs."""

    number: int
    word: str
    args: tuple[Literal, ...] = ()
    options: Mapping[str, Literal] = {}

    def filled(self, values: Mapping[str, str]) -> Line:
        """Return this line with each placeholder that ``values`` knows replaced; others stay as they are."""
        options = {name: _fill(value, values) for name, value in self.options.items()}
        return Line(self.number, self.word, tuple(_fill(arg, values) for arg in self.args), options)

    def placeholders(self) -> set[str]:
        """Return the names of the placeholders in it, without the ``$``."""
        values = [*self.args, *self.options.values()]
        return {name[1:] for value in values for text in _texts_in(value) for name in _PLACEHOLDER.findall(text)}

    def count(self, least: int, most: int) -> None:
        """Check how many arguments there are."""
        if not least <= len(self.args) <= most:
            raise BadLine(f"{len(self.args)} arguments")

    def allow(self, *names: str) -> None:
        """Check that no other option is given."""
        for name in self.options:
            if name not in names:
                raise BadLine(f"option {name!r}")

    def text(self, index: int) -> str:
        """Return an argument that is text, quoted or not."""
        return _text(self.args[index])

    def texts(self) -> tuple[str, ...]:
        """Return all arguments as text; at least one."""
        self.count(1, 1_000_000)
        return tuple(_text(arg) for arg in self.args)

    def integer(self, index: int) -> int:
        """Return an argument that is a whole number."""
        return _integer(self.args[index])

    def positive(self, index: int) -> int:
        """Return an argument that is a whole number of at least 1."""
        return _positive(self.args[index])

    def seconds(self, index: int) -> float:
        """Return an argument that is a duration: 20ms, 1.5s, 2m, or a number of seconds."""
        return _seconds(self.args[index])

    def option_integer(self, name: str, default: int) -> int:
        return _integer(self.options[name]) if name in self.options else default

    def option_positive(self, name: str, default: int) -> int:
        return _positive(self.options[name]) if name in self.options else default

    def option_text(self, name: str, default: str) -> str:
        return _text(self.options[name]) if name in self.options else default

    def option_seconds(self, name: str, default: float) -> float:
        return _seconds(self.options[name]) if name in self.options else default


def parse_line(number: int, source: str) -> Line | None:
    """Read one line; None if it is blank or a comment. Raise BadLine."""
    tokens: list[Literal] = []
    options: dict[str, Literal] = {}
    at = _skip_space(source, 0)
    while at < len(source) and source[at] != "#":
        name, value, at = _token(source, at)
        if name is not None and tokens:
            options[name] = value
        else:
            tokens.append(value)
        at = _skip_space(source, at)
    if not tokens:
        return None
    word, *args = tokens
    if not isinstance(word, Word):
        raise BadLine(f"{_shown(word)} where a directive should be")
    return Line(number, word, tuple(args), options)


def _skip_space(source: str, at: int) -> int:
    while at < len(source) and source[at].isspace():
        at += 1
    return at


def _token(source: str, at: int) -> tuple[str | None, Literal, int]:
    """Return the name (of an option), the value and the end of the token that begins at ``at``."""
    match = _TOKEN.match(source, at)
    if match is None or (match[5] and match[5][0] in "]}"):
        raise BadLine(f"{source[at:]!r}: a string or bracket that does not close or open")
    name, raw, quoted, bracket, bare = match.groups()
    end = match.end()
    if raw is not None:
        value: Literal = raw[1:-1]
    elif quoted is not None:
        value = _decode(quoted)
    elif bracket is not None:
        end = _closing(source, match.start(4))
        value = _decode(source[match.start(4) : end])
    elif bare is None:
        value = ""
    else:
        value = Word(bare)
    if end < len(source) and not source[end].isspace():
        raise BadLine(f"{source[end:]!r} right behind a value: a space is missing")
    return name, value, end


def _closing(source: str, start: int) -> int:
    """Return the end of the JSON object or array that begins at ``start``."""
    depth = 0
    for match in _NESTING.finditer(source, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    raise BadLine(f"{source[start:]!r}: a bracket that does not close")


def _decode(text: str) -> Literal:
    try:
        value: Literal = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise BadLine(f"{text}: not JSON: {exc}") from exc
    return value


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    match value:
        case str():
            kind: Callable[[str], str] = type(value)
            return kind(_PLACEHOLDER.sub(lambda found: values.get(found[0][1:], found[0]), value))
        case list():
            return [_fill(item, values) for item in value]
        case dict():
            return {_fill(name, values): _fill(item, values) for name, item in value.items()}
        case _:
            return value


def _texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts_in(item)
        case dict():
            yield from value
            for item in value.values():
                yield from _texts_in(item)
        case _:
            pass


def _text(value: Literal) -> str:
    if not isinstance(value, str):
        raise BadLine(f"{_shown(value)} where text should be")
    return str(value)


def _integer(value: Literal) -> int:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10):
        raise BadLine(f"{_shown(value)} where a number should be")
    return int(value)


def _positive(value: Literal) -> int:
    number = _integer(value)
    if number < 1:
        raise BadLine(f"{number} where a number of at least 1 should be")
    return number


def _seconds(value: Literal) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadLine(f"{_shown(value)} where a duration such as 20ms or 1.5s should be")
    return float(match[1]) * _SECONDS[match[2]]


def _shown(value: Literal) -> str:
    return msgspec.json.encode(str(value) if isinstance(value, str) else value).decode()
