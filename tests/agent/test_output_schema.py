"""Output schemas: valid answers, problems with their places, refused schemas, bounded time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from zot.agent.output_schema import Expected, load
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
    ({"$ref": "#"}, 1),
    ({"pattern": "^[0-9]{4}$"}, "2026"),
    ({"pattern": "(?i)^yes$"}, "YES"),
]
WRONG: list[tuple[Any, Any, list[str]]] = [
    (False, 1, ["$: nothing is allowed here"]),
    ({"type": "string"}, 1, ["$: must be string, is integer"]),
    ({"type": "integer"}, True, ["$: must be integer, is boolean"]),
    ({"type": "integer"}, 1.5, ["$: must be integer, is number"]),
    ({"type": ["string", "null"]}, [], ["$: must be null or string, is array"]),
    ({"enum": [1, "a"]}, True, ['$: must be one of [1,"a"]']),
    ({"const": "a"}, "b", ['$: must be "a"']),
    ({"required": ["a", "b"]}, {}, ["$: 'a' is missing", "$: 'b' is missing"]),
    ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]}, ["$.a[1]: must be string, is integer"]),
    ({"properties": {}, "additionalProperties": False}, {"z": 1}, ["$: has 'z', which is not allowed"]),
    ({"additionalProperties": {"type": "integer"}}, {"a": "b"}, ["$.a: must be integer, is string"]),
    ({"propertyNames": {"pattern": "^a"}}, {"b": 1}, ["$.b (its name): must match ^a"]),
    ({"minItems": 1}, [], ["$: the number of items must be at least 1"]),
    ({"maxProperties": 0}, {"a": 1}, ["$: the number of properties must be at most 0"]),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ["$: items must be unique"]),
    ({"prefixItems": [{"type": "string"}]}, [1], ["$[0]: must be string, is integer"]),
    ({"allOf": [{"minimum": 3}, {"maximum": 1}]}, 2, ["$: it must be at least 3", "$: it must be at most 1"]),
    (
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        1,
        ["$: fits none of 2 alternatives; the first: $: must be string, is integer"],
    ),
    ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, 1, ["$: fits 2 alternatives instead of one"]),
    ({"not": {"type": "string"}}, "a", ["$: must not match the schema of `not`"]),
    ({"exclusiveMaximum": 2}, 2, ["$: must be below 2"]),
    ({"multipleOf": 2}, 3, ["$: must be a multiple of 2"]),
    (TREE, {"next": {"next": 1}}, ["$.next.next: must be object, is integer"]),
    ({"if": {"minimum": 3}, "then": {"multipleOf": 2}}, 5, ["$: must be a multiple of 2"]),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ["$: 'b' is missing"]),
    ({"contains": {"type": "string"}}, [1], ["$: None of it are valid under the given schema"]),
    ({"items": {"type": "string"}}, list(range(9)), [f"$[{n}]: must be string, is integer" for n in range(5)]),
]
#: Every draft that a schema may name, and one that nobody knows.
DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
    "https://example.com/own",
]
REFUSED: list[tuple[Any, str]] = [
    ([], "a schema is an object, true or false"),
    ({"requried": ["a"]}, "#: has 'requried', an unknown keyword"),
    ({"properties": {"a": {"dependencies": {}}}}, "#/properties/a/dependencies: nothing is allowed here"),
    ({"definitions": {"a": {"x-own": 1}}}, "#/definitions/a: has 'x-own', an unknown keyword"),
    ({"type": "text"}, '#/type: fits none of 2 alternatives; the first: #/type: must be one of ["array","boolean"'),
    ({"type": []}, "#/type: fits none of 2 alternatives"),
    ({"enum": []}, "#/enum: the number of items must be at least 1"),
    ({"anyOf": {}}, "#/anyOf: must be array, is object"),
    ({"minLength": True}, "#/minLength: must be integer, is boolean"),
    ({"items": [{}]}, "#/items: must be boolean or object, is array"),
    ({"pattern": "("}, "#/pattern: '(' is not a regular expression"),
    ({"pattern": r"(a)\1"}, r"#/pattern: '(a)\\1' is not a regular expression"),
    ({"pattern": "(?=a)b"}, "#/pattern: '(?=a)b' is not a regular expression"),
    ({"pattern": "(?<!a)b"}, "#/pattern: '(?<!a)b' is not a regular expression"),
    ({"patternProperties": {"((a{99}){99}){99}": True}}, "'((a{99}){99}){99}' is not a regular expression"),
    ({"pattern": "(" * 5_000 + ")" * 5_000}, "is not a regular expression"),
    ({"$ref": "https://example.com/x"}, "#/$ref: must match"),
    ({"$ref": "file:///etc/hosts"}, "#/$ref: must match"),
    ({"$ref": "#/$defs/nowhere"}, "Pointer '/$defs/nowhere' does not exist"),
    ({"multipleOf": 0}, "#/multipleOf: must be above 0"),
]


@pytest.mark.parametrize(("schema", "value"), FITS, ids=repr)
def test_a_valid_answer_has_no_problems(schema: Any, value: Any) -> None:
    assert Expected(schema).problems(json.dumps(value)) == []


@pytest.mark.parametrize(("schema", "value", "expected"), WRONG, ids=repr)
def test_each_problem_names_its_place(schema: Any, value: Any, expected: list[str]) -> None:
    assert Expected(schema).problems(json.dumps(value)) == expected


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=lambda one: repr(one)[:60])
def test_a_schema_that_cannot_be_checked_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Expected(schema)
    assert message in str(caught.value)


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_schema_may_name_any_draft_and_is_read_as_2020_12(draft: str) -> None:
    schema = Expected(
        {"$schema": draft, "definitions": {"a": {"type": "string"}}, "prefixItems": [{"$ref": "#/definitions/a"}]}
    )
    assert schema.problems("[1]") == ["$[0]: must be string, is integer"]


def test_an_answer_nested_too_deeply_is_a_problem_and_not_a_crash() -> None:
    problem = Expected(TREE).problems('{"next":' * 600 + "{}" + "}" * 600)
    assert problem == ["$: is nested too deeply"]
    assert Expected(TREE).problems('{"next":' * 100_000 + "{}" + "}" * 100_000)[0].startswith("it is not JSON (")


def test_a_schema_nested_too_deeply_is_refused() -> None:
    schema: Any = {}
    for _ in range(600):
        schema = {"items": schema}
    with pytest.raises(ConfigError, match="Recursion limit"):
        Expected(schema)


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_multiply_are_refused_before_they_are_followed(keyword: str) -> None:
    links = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)}
    with pytest.raises(ConfigError, match="so many schemas"):
        Expected({"$defs": {**links, "a60": {}}, "properties": {"a": {"$ref": "#/$defs/a0"}}})


def test_only_one_problem_of_a_very_large_answer_is_reported() -> None:
    answer = json.dumps([0] * 100_000)
    assert Expected({"items": {"type": "string"}}).problems(answer) == ["$[0]: must be string, is integer"]


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"{", "not JSON"), (b"\xff", "not JSON"), (b'{"iff":1}', "'iff'")]
)
def test_an_invalid_schema_file_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "s.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert str(file) in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|a)*$", "^(a*)*$", "^a*a*a*a*a*a*$", "(.*a){20}$", "^(a?){100}a{100}$"]
)
def test_no_pattern_backtracks(pattern: str) -> None:
    """A backtracking engine would not finish any of these."""
    problems = Expected({"pattern": pattern}).problems(json.dumps("a" * 100_000 + "!"))
    assert problems == [f"$: must match {pattern}"]
    names = Expected({"patternProperties": {pattern: False}})
    assert names.problems(json.dumps({"a" * 9_999 + "!": 1})) == []


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(ConfigError, match=r"needs the package jsonschema-rs.*pip install '\.\[schema\]'"):
        Expected({})
