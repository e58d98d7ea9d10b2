"""JSON Schema: what fits, what does not and where, and which schemas cannot be checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zot.agent.output_schema import checked, load, problems
from zot.errors import ConfigError

TREE = {"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}

FITS: list[tuple[Any, Any]] = [
    (True, {"any": ["thing"]}),
    ({}, None),
    ({"type": "integer"}, 2.0),
    ({"type": "number"}, 2),
    ({"type": ["string", "null"]}, None),
    ({"enum": [1, "a", None]}, 1.0),
    ({"const": {"a": [1]}}, {"a": [1]}),
    ({"properties": {"a": {"type": "string"}}}, {"b": 1}),
    ({"properties": {"a": {"type": "string"}}}, "no object"),
    ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, {"x1": 1}),
    ({"additionalProperties": {"type": "integer"}}, {"a": 1}),
    ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", 1, 2]),
    ({"uniqueItems": True}, [1, True, "1", {"a": 1, "b": 2}, {"a": 1}]),
    ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, 4),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "a"),
    ({"not": {"type": "string"}}, 1),
    ({"pattern": "b+"}, "abbc"),
    ({"minLength": 2, "maxLength": 2}, "\U0001f600a"),
    ({"exclusiveMinimum": 1, "maximum": 2, "multipleOf": 0.5}, 1.5),
    ({"format": "email", "title": "x", "default": 1}, "not checked"),
    (TREE, {"next": {"next": {}}}),
]
WRONG: list[tuple[Any, Any, list[str]]] = [
    (False, 1, ["$: nothing is allowed here"]),
    ({"type": "string"}, 1, ["$: must be string, is integer"]),
    ({"type": "integer"}, True, ["$: must be integer, is boolean"]),
    ({"type": "integer"}, 1.5, ["$: must be integer, is number"]),
    ({"type": ["string", "null"]}, [], ["$: must be string or null, is array"]),
    ({"enum": [1, "a"]}, True, ['$: must be one of [1,"a"]']),
    ({"const": "a"}, "b", ['$: must be "a"']),
    ({"required": ["a", "b"]}, {}, ["$: 'a' is missing", "$: 'b' is missing"]),
    ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]}, ["$.a[1]: must be string, is integer"]),
    ({"properties": {}, "additionalProperties": False}, {"z": 1}, ["$: has 'z', which is not allowed"]),
    ({"additionalProperties": {"type": "integer"}}, {"a": "b"}, ["$.a: must be integer, is string"]),
    ({"propertyNames": {"pattern": "^a"}}, {"b": 1}, ["$.b (its name): must match ^a"]),
    ({"minItems": 1}, [], ["$: the number of items must be at least 1"]),
    ({"maxProperties": 0}, {"a": 1}, ["$: the number of properties must be at most 0"]),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ["$: must not have an item twice"]),
    ({"prefixItems": [{"type": "string"}]}, [1], ["$[0]: must be string, is integer"]),
    ({"allOf": [{"minimum": 3}, {"maximum": 1}]}, 2, ["$: it must be at least 3", "$: it must be at most 1"]),
    (
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        1,
        ["$: fits none of 2 alternatives; the first: $: must be string, is integer"],
    ),
    ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, 1, ["$: fits 2 alternatives instead of one"]),
    ({"not": {"type": "string"}}, "a", ["$: is what it must not be"]),
    ({"exclusiveMaximum": 2}, 2, ["$: must be below 2"]),
    ({"multipleOf": 2}, 3, ["$: must be a multiple of 2"]),
    (TREE, {"next": {"next": 1}}, ["$.next.next: must be object, is integer"]),
    ({"$ref": "#"}, 1, ["$: the schema refers to itself without end"]),
    ({"items": {"type": "string"}}, list(range(9)), [f"$[{n}]: must be string, is integer" for n in range(5)]),
]
UNCHECKED: list[tuple[Any, str]] = [
    ([], "a schema is an object, true or false"),
    ({"if": {}}, "#: the keyword 'if' cannot be checked"),
    ({"properties": {"a": {"dependentRequired": {}}}}, "#/properties/a: the keyword 'dependentRequired' cannot"),
    ({"type": "text"}, "#/type: must be one or more of object, array"),
    ({"type": []}, "#/type: must be one or more of"),
    ({"enum": []}, "#/enum: must not be empty"),
    ({"anyOf": {}}, "#/anyOf: is of the wrong type"),
    ({"minLength": True}, "#/minLength: is of the wrong type"),
    ({"items": [{}]}, "#/items: a schema is an object, true or false"),
    ({"pattern": "("}, "#/pattern: '('"),
    ({"pattern": r"(a)\1"}, r"#/pattern: '(a)\\1': groupref cannot be checked in bounded time"),
    ({"pattern": "(?=a)b"}, r"#/pattern: '(?=a)b': assert cannot be checked in bounded time"),
    ({"pattern": "(?i)a"}, "#/pattern: '(?i)a': flags cannot be used"),
    ({"patternProperties": {"((a{9}){9}){99}": True}}, "it is too large"),
    ({"$ref": "https://example.com/x"}, "only references inside the schema"),
    ({"$ref": "#/$defs/nowhere"}, "leads nowhere"),
    ({"multipleOf": 0}, "must be above 0"),
]


@pytest.mark.parametrize(("schema", "value"), FITS, ids=repr)
def test_what_fits_has_no_problems(schema: Any, value: Any) -> None:
    assert problems(checked(schema), value) == []


@pytest.mark.parametrize(("schema", "value", "expected"), WRONG, ids=repr)
def test_what_does_not_fit_is_told_with_its_place(schema: Any, value: Any, expected: list[str]) -> None:
    assert [str(problem) for problem in problems(checked(schema), value)] == expected


@pytest.mark.parametrize(("schema", "message"), UNCHECKED, ids=repr)
def test_a_schema_that_cannot_be_checked_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(schema)
    assert message in str(caught.value)


def test_a_value_nested_beyond_reason_is_a_problem_and_not_a_crash() -> None:
    value: Any = {}
    for _ in range(5000):
        value = {"next": value}
    assert [str(problem) for problem in problems(checked(TREE), value)] == ["$: is nested too deeply"]


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"{", "not JSON"), (b"\xff", "not JSON"), (b'{"if":1}', "'if'")]
)
def test_a_file_that_is_no_schema_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "s.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert reason in str(caught.value)


def test_a_pattern_that_would_take_for_ever_is_checked_at_once() -> None:
    schema = checked({"pattern": "^(a+)+$", "patternProperties": {"^(b|b)*$": True}, "additionalProperties": False})
    assert [str(problem) for problem in problems(schema, "a" * 9_999 + "!")] == ["$: must match ^(a+)+$"]
    long = "$: must have at most 10000 characters to be matched"
    assert [str(problem) for problem in problems(schema, "a" * 10_001)] == [long]
    assert problems(schema, {"b" * 9_999: 1}) == []
