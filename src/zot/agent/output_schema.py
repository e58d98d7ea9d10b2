"""Output schema: the JSON Schema that a final answer must satisfy, and the check of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from re import _parser  # type: ignore[attr-defined]  # The only parser of Python's expressions; typeshed hides it.
from typing import Any, TypeAlias

import msgspec

from zot import files
from zot.agent.transcript import Transcript
from zot.encoding import explain
from zot.errors import AnswerRejected, ConfigError, MalformedFile
from zot.messages import text_of

#: Longer texts are not looked at.
Schema: TypeAlias = Mapping[str, Any] | bool

#: Longest text that a pattern is matched against.
MAX_TEXT = 10_000
_MAX_STATES = 1_000
_MAX_KNOWN = 1_000
_MAX_PROBLEMS = 5
_MAX_DEPTH = 64
#: Times the model may correct its answer.
_MAX_CORRECTIONS = 2

_Fits: TypeAlias = Callable[[str], bool]
#: Predicate on the characters before and after a position; "" at the ends.
_Holds: TypeAlias = Callable[[str, str], bool]

_VALUES: Mapping[Any, frozenset[str]] = {
    dict: frozenset({"properties", "patternProperties", "$defs", "definitions"}),
    list: frozenset({"required", "enum", "allOf", "anyOf", "oneOf", "prefixItems"}),
    str: frozenset({"$ref", "pattern"}),
    int: frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}),
    int | float: frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    bool: frozenset({"uniqueItems"}),
}


@lru_cache(maxsize=100)
def compiled(expression: str) -> Pattern:
    """Return the compiled pattern of an expression. Raise ValueError with the reason if it is not supported."""
    return Pattern(expression)


class Pattern:
    """A regular expression matched in bounded time. Raise ValueError with the reason if it is not supported.

    `$` matches only at the very end. Backreferences, lookaround and flags are not supported.
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
        for after in (*text, ""):
            key = (now, before, after)
            if key not in self._known:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[key] = self._step(*key)
            found, now = self._known[key]
            if found:
                return True
            before = after
        return False

    def _step(self, now: frozenset[int], before: str, after: str) -> tuple[bool, frozenset[int]]:
        """Return whether the end is reached here, and the states after the next character.

        A match may begin anywhere.
        """
        reached, waiting = set[int](), [self._start, *now]
        while waiting:
            state = waiting.pop()
            if state in reached:
                continue
            reached.add(state)
            waiting += [to for holds, to in self._jumps[state] if holds is None or holds(before, after)]
        moves = (self._steps[state] for state in reached) if after else ()
        return self._end in reached, frozenset(to for fits, to in moves if fits(after))

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
                break  # An empty match, however often.
            to = again
        return to

    def _fork(self, targets: Sequence[int], holds: _Holds | None = None) -> int:
        state = self._state()
        self._jumps[state] += [(holds, target) for target in targets]
        return state


def _character(name: str, value: Any) -> _Fits:
    """Return the predicate of a character class. Raise ValueError for any other part of an expression."""
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
    "AT_BEGINNING": lambda before, after: not before,
    "AT_BEGINNING_STRING": lambda before, after: not before,
    "AT_END": lambda before, after: not after,
    "AT_END_STRING": lambda before, after: not after,
    "AT_BOUNDARY": lambda before, after: _is_word(before) != _is_word(after),
    "AT_NON_BOUNDARY": lambda before, after: _is_word(before) == _is_word(after),
}


class Problem(msgspec.Struct, frozen=True):
    """A wrong value: its place and the reason."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def load(path: str) -> Schema:
    """Read a schema from a file. Raise ConfigError, with the place, if it is invalid or uses unsupported keywords."""
    try:
        schema = files.load(path, msgspec.json.decode)
    except FileNotFoundError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    except MalformedFile as problem:
        raise ConfigError(f"{path}: not JSON: {problem.reason}") from None
    try:
        return checked(schema)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def checked(schema: Any) -> Schema:
    """Return ``schema`` if it is valid and fully supported. Raise ConfigError, with the place, if not."""
    if not isinstance(schema, dict | bool):
        raise ConfigError("a schema is an object, true or false")
    _check(schema, schema, "#")
    return schema


def unfenced(text: str) -> str:
    """Return the content of a code fence around the whole text; the text itself if there is none."""
    first, _, rest = text.strip().partition("\n")
    if first.rstrip().lower() not in ("```", "```json") or not rest.endswith("```"):
        return text
    return rest.removesuffix("```").strip()


def problems(schema: Schema, value: Any) -> list[Problem]:
    """Return the first few problems of ``value``; none if it satisfies the schema."""
    try:
        return list(islice(_problems(schema, value, _Look(schema, "$", 0)), _MAX_PROBLEMS))
    except RecursionError:
        return [Problem("$", "is nested too deeply")]


class _Look(msgspec.Struct, frozen=True):
    """Position of a check: the whole schema, the place in the value, and the references followed there."""

    root: Schema
    place: str
    depth: int

    def at(self, step: str) -> _Look:
        return _Look(self.root, self.place + step, 0)

    def deeper(self) -> _Look:
        return _Look(self.root, self.place, self.depth + 1)

    def wrong(self, reason: str) -> Problem:
        return Problem(self.place, reason)


def _problems(schema: Schema, value: Any, look: _Look) -> Iterator[Problem]:
    if look.depth > _MAX_DEPTH:
        yield look.wrong("the schema refers to itself without end")
    elif schema is False:
        yield look.wrong("nothing is allowed here")
    elif isinstance(schema, Mapping):
        for keyword, wanted in schema.items():
            yield from _KEYWORDS[keyword](schema, wanted, value, look)


_Check: TypeAlias = Callable[[Mapping[str, Any], Any, Any, _Look], Iterator[Problem]]


def _ignored(schema: Mapping[str, Any], wanted: Any, value: Any, look: _Look) -> Iterator[Problem]:
    return iter(())


def _type(schema: Mapping[str, Any], wanted: Any, value: Any, look: _Look) -> Iterator[Problem]:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not any(_TYPES[name](value) for name in names):
        yield look.wrong(f"must be {' or '.join(names)}, is {_name_of(value)}")


def _enum(schema: Mapping[str, Any], wanted: Any, value: Any, look: _Look) -> Iterator[Problem]:
    if not any(_same(value, item) for item in wanted):
        yield look.wrong(f"must be one of {_shown(wanted)}")


def _const(schema: Mapping[str, Any], wanted: Any, value: Any, look: _Look) -> Iterator[Problem]:
    if not _same(value, wanted):
        yield look.wrong(f"must be {_shown(wanted)}")


def _ref(schema: Mapping[str, Any], wanted: str, value: Any, look: _Look) -> Iterator[Problem]:
    yield from _problems(_resolved(look.root, wanted), value, look.deeper())


def _properties(schema: Mapping[str, Any], wanted: Mapping[str, Schema], value: Any, look: _Look) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name, inner in wanted.items():
            if name in value:
                yield from _problems(inner, value[name], look.at(f".{name}"))


def _pattern_properties(
    schema: Mapping[str, Any], wanted: Mapping[str, Schema], value: Any, look: _Look
) -> Iterator[Problem]:
    if isinstance(value, dict):
        for pattern, inner in wanted.items():
            for name in (name for name in value if _matches(pattern, name)):
                yield from _problems(inner, value[name], look.at(f".{name}"))


def _additional(schema: Mapping[str, Any], wanted: Schema, value: Any, look: _Look) -> Iterator[Problem]:
    if isinstance(value, dict):
        patterns = schema.get("patternProperties", {})
        for name in value:
            named = name in schema.get("properties", {}) or any(_matches(pattern, name) for pattern in patterns)
            if not named and wanted is False:
                yield look.wrong(f"has {name!r}, which is not allowed")
            elif not named:
                yield from _problems(wanted, value[name], look.at(f".{name}"))


def _property_names(schema: Mapping[str, Any], wanted: Schema, value: Any, look: _Look) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name in value:
            yield from _problems(wanted, name, look.at(f".{name} (its name)"))


def _required(schema: Mapping[str, Any], wanted: Sequence[str], value: Any, look: _Look) -> Iterator[Problem]:
    if isinstance(value, dict):
        yield from (look.wrong(f"{name!r} is missing") for name in wanted if name not in value)


def _items(schema: Mapping[str, Any], wanted: Schema, value: Any, look: _Look) -> Iterator[Problem]:
    if isinstance(value, list):
        first = len(schema.get("prefixItems", ()))
        for index in range(first, len(value)):
            yield from _problems(wanted, value[index], look.at(f"[{index}]"))


def _prefix_items(schema: Mapping[str, Any], wanted: Sequence[Schema], value: Any, look: _Look) -> Iterator[Problem]:
    if isinstance(value, list):
        for index, (inner, item) in enumerate(zip(wanted, value, strict=False)):
            yield from _problems(inner, item, look.at(f"[{index}]"))


def _unique(schema: Mapping[str, Any], wanted: bool, value: Any, look: _Look) -> Iterator[Problem]:
    if wanted and isinstance(value, list):
        texts = [msgspec.json.encode(item, order="sorted") for item in value]
        if len(set(texts)) < len(texts):
            yield look.wrong("must not have an item twice")


def _all_of(schema: Mapping[str, Any], wanted: Sequence[Schema], value: Any, look: _Look) -> Iterator[Problem]:
    for inner in wanted:
        yield from _problems(inner, value, look)


def _any_of(schema: Mapping[str, Any], wanted: Sequence[Schema], value: Any, look: _Look) -> Iterator[Problem]:
    if not any(_fits(inner, value, look) for inner in wanted):
        yield look.wrong(
            f"fits none of {len(wanted)} alternatives; the first: {next(_problems(wanted[0], value, look))}"
        )


def _one_of(schema: Mapping[str, Any], wanted: Sequence[Schema], value: Any, look: _Look) -> Iterator[Problem]:
    count = sum(_fits(inner, value, look) for inner in wanted)
    if count == 0:
        yield from _any_of(schema, wanted, value, look)
    elif count > 1:
        yield look.wrong(f"fits {count} alternatives instead of one")


def _not(schema: Mapping[str, Any], wanted: Schema, value: Any, look: _Look) -> Iterator[Problem]:
    if _fits(wanted, value, look):
        yield look.wrong("is what it must not be")


def _pattern(schema: Mapping[str, Any], wanted: str, value: Any, look: _Look) -> Iterator[Problem]:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        yield look.wrong(f"must have at most {MAX_TEXT} characters to be matched")
    elif isinstance(value, str) and not _matches(wanted, value):
        yield look.wrong(f"must match {wanted}")


def _multiple(schema: Mapping[str, Any], wanted: float, value: Any, look: _Look) -> Iterator[Problem]:
    if _is_number(value) and value % wanted != 0:
        yield look.wrong(f"must be a multiple of {wanted}")


def _bound(kind: Callable[[Any], bool], measure: Callable[[Any], float], word: str, *, least: bool) -> _Check:
    """Return the check of a limit, for values of one type."""

    def check(schema: Mapping[str, Any], wanted: float, value: Any, look: _Look) -> Iterator[Problem]:
        if kind(value) and (measure(value) < wanted if least else measure(value) > wanted):
            yield look.wrong(f"{word} must be at {'least' if least else 'most'} {wanted}")

    return check


def _exclusive(word: str, beyond: Callable[[float, float], bool]) -> _Check:
    def check(schema: Mapping[str, Any], wanted: float, value: Any, look: _Look) -> Iterator[Problem]:
        if _is_number(value) and not beyond(value, wanted):
            yield look.wrong(f"must be {word} {wanted}")

    return check


def _matches(pattern: str, text: str) -> bool:
    return len(text) <= MAX_TEXT and compiled(pattern).is_in(text)


def _fits(schema: Schema, value: Any, look: _Look) -> bool:
    return next(_problems(schema, value, look), None) is None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1, and 1.0 is."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _name_of(value: Any) -> str:
    return next(name for name, fits in _TYPES.items() if fits(value))


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _resolved(root: Schema, reference: str) -> Schema:
    """Resolve a reference inside the schema. Raise ConfigError if its target does not exist."""
    place: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            place = place[int(name)] if isinstance(place, list) else place[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ConfigError(f"$ref {reference!r} leads nowhere") from None
    if not isinstance(place, dict | bool):
        raise ConfigError(f"$ref {reference!r} leads to no schema")
    return place


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
}
_IS_TEXT, _IS_LIST, _IS_OBJECT = _TYPES["string"], _TYPES["array"], _TYPES["object"]
_KEYWORDS: Mapping[str, _Check] = {
    **dict.fromkeys(
        ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "format",
         "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"),
        _ignored,
    ),
    "type": _type,
    "enum": _enum,
    "const": _const,
    "$ref": _ref,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "required": _required,
    "minProperties": _bound(_IS_OBJECT, len, "the number of properties", least=True),
    "maxProperties": _bound(_IS_OBJECT, len, "the number of properties", least=False),
    "items": _items,
    "prefixItems": _prefix_items,
    "minItems": _bound(_IS_LIST, len, "the number of items", least=True),
    "maxItems": _bound(_IS_LIST, len, "the number of items", least=False),
    "uniqueItems": _unique,
    "minLength": _bound(_IS_TEXT, len, "the length", least=True),
    "maxLength": _bound(_IS_TEXT, len, "the length", least=False),
    "pattern": _pattern,
    "minimum": _bound(_is_number, float, "it", least=True),
    "maximum": _bound(_is_number, float, "it", least=False),
    "exclusiveMinimum": _exclusive("above", lambda value, limit: value > limit),
    "exclusiveMaximum": _exclusive("below", lambda value, limit: value < limit),
    "multipleOf": _multiple,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
}  # fmt: skip


def _check(schema: Any, root: Schema, place: str) -> None:
    """Raise ConfigError if a schema uses an unsupported keyword, or a keyword wrongly."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ConfigError(f"{place}: a schema is an object, true or false")
    for keyword, wanted in schema.items():
        if keyword not in _KEYWORDS:
            raise ConfigError(f"{place}: the keyword {keyword!r} cannot be checked")
        here = f"{place}/{keyword}"
        _check_value(keyword, wanted, root, here)
        for step, inner in _inner(keyword, wanted, here):
            _check(inner, root, step)


def _check_value(keyword: str, wanted: Any, root: Schema, place: str) -> None:
    kind = next((kind for kind, names in _VALUES.items() if keyword in names), None)
    if kind is not None and not (isinstance(wanted, kind) and (kind is bool or not isinstance(wanted, bool))):
        raise ConfigError(f"{place}: is of the wrong type")
    names = [wanted] if isinstance(wanted, str) else wanted
    if keyword == "type" and not (isinstance(names, list) and names and all(name in _TYPES for name in names)):
        raise ConfigError(f"{place}: must be one or more of {', '.join(_TYPES)}")
    if keyword in ("allOf", "anyOf", "oneOf", "enum") and not wanted:
        raise ConfigError(f"{place}: must not be empty")
    if keyword == "multipleOf" and not wanted > 0:
        raise ConfigError(f"{place}: must be above 0")
    if keyword == "$ref":
        if not wanted.startswith("#"):
            raise ConfigError(f"{place}: only references inside the schema, such as #/$defs/x, are followed")
        _resolved(root, wanted)
    for pattern in [wanted] if keyword == "pattern" else wanted if keyword == "patternProperties" else ():
        try:
            compiled(pattern)
        except ValueError as problem:
            raise ConfigError(f"{place}: {pattern!r}: {problem}") from None


def _inner(keyword: str, wanted: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the schemas inside a keyword, with their places."""
    match keyword:
        case "properties" | "patternProperties" | "$defs" | "definitions":
            yield from ((f"{place}/{name}", inner) for name, inner in wanted.items())
        case "allOf" | "anyOf" | "oneOf" | "prefixItems":
            yield from ((f"{place}/{index}", inner) for index, inner in enumerate(wanted))
        case "items" | "additionalProperties" | "propertyNames" | "not":
            yield place, wanted
        case _:
            pass


class Expected:
    """The requirement that an answer is JSON and satisfies a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @property
    def instruction(self) -> str:
        """The instruction for the system prompt."""
        text = msgspec.json.encode(self._schema).decode()
        return (
            "Your last message must be one JSON value and nothing else: no words around it, no code fence. "
            f"It must be valid against this JSON Schema:\n{text}"
        )

    def complaint(self, transcript: Transcript, *, made: int) -> str | None:
        """Return the correction to send to the model; None if its answer is valid.

        ``made`` is the number of corrections sent so far. Raise AnswerRejected once they are used up.
        """
        wrong = self._wrong(text_of(transcript.messages[-1].content) if len(transcript) else "")
        if wrong is None:
            return None
        if made >= _MAX_CORRECTIONS:
            raise AnswerRejected(f"the answer is not as the output schema wants it: {wrong}")
        return f"That is not the answer that is wanted: {wrong}. Answer again, with the corrected JSON value alone."

    def _wrong(self, text: str) -> str | None:
        try:
            value = msgspec.json.decode(unfenced(text))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            return f"it is not JSON ({explain(problem)})"
        return "; ".join(map(str, problems(self._schema, value))) or None
