"""JSON Schema, as much of it as says what an answer must look like. Does no I/O.

A schema that uses a keyword we do not check is refused: an answer that was not checked must not seem so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from zot import files
from zot.agent.patterns import MAX_TEXT, compiled
from zot.errors import ConfigError, MalformedFile

Schema: TypeAlias = Mapping[str, Any] | bool

_MAX_PROBLEMS = 5
_MAX_DEPTH = 64


class Problem(msgspec.Struct, frozen=True):
    """Where a value is wrong, and how."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def load(path: str) -> Schema:
    """Read a schema from a file. Raise ConfigError, with the place, if it is none or more than we can check."""
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
    """Return ``schema`` if every answer can be checked against it. Raise ConfigError, with the place, if not."""
    if not isinstance(schema, dict | bool):
        raise ConfigError("a schema is an object, true or false")
    _check(schema, schema, "#")
    return schema


def unfenced(text: str) -> str:
    """Return what a code fence around the whole of a text has in it; the text itself if there is none."""
    first, _, rest = text.strip().partition("\n")
    if first.rstrip().lower() not in ("```", "```json") or not rest.endswith("```"):
        return text
    return rest.removesuffix("```").strip()


def problems(schema: Schema, value: Any) -> list[Problem]:
    """Return what is wrong with ``value``, at most the first few; nothing if it is as the schema wants it."""
    try:
        return list(islice(_problems(schema, value, _Look(schema, "$", 0)), _MAX_PROBLEMS))
    except RecursionError:
        return [Problem("$", "is nested too deeply")]


class _Look(msgspec.Struct, frozen=True):
    """Where we are: the whole schema, the place in the value, and how many references we have followed there."""

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
    """Return the check of a limit, on values of one kind."""

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
    """Return what a reference inside the schema means. Raise ConfigError if it leads nowhere."""
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
    """Raise ConfigError if a schema uses what we do not check, or uses it wrongly."""
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


_VALUES: Mapping[Any, frozenset[str]] = {
    dict: frozenset({"properties", "patternProperties", "$defs", "definitions"}),
    list: frozenset({"required", "enum", "allOf", "anyOf", "oneOf", "prefixItems"}),
    str: frozenset({"$ref", "pattern"}),
    int: frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}),
    int | float: frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    bool: frozenset({"uniqueItems"}),
}


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
