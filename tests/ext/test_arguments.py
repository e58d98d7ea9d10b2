"""The description of a tool for the model, from its type hints and its docstring."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from zot.ext.declarations import Arguments


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(msgspec.Struct):
    """A place in a file."""

    name: str
    height: int = 0


class Options(TypedDict, total=False):
    language: str


@dataclasses.dataclass
class Range:
    first: int
    last: int


class Node(msgspec.Struct):
    children: list[Node] = []


def nothing() -> None: ...


def plain(text: str, count: int, ratio: float, sure: bool, anything, whatever: Any = None) -> None:  # type: ignore[no-untyped-def]  # one has no hint
    """Do it."""


def words(unit: Unit, mode: Literal["fast", "slow"] = "fast", level: Literal[1, 2] = 1) -> None: ...


def lists(tags: list[str], pairs: dict[str, int], empty: list[int] = []) -> None: ...  # noqa: B006


def maybe(name: str | None = None, size: int | str = 1) -> None: ...


def nested(place: Place, more: list[Place], options: Options, within: Range | None = None) -> None: ...


def bounded(
    limit: Annotated[int, msgspec.Meta(ge=1, le=10, description="How many.")] = 5,
    code: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")] = "a",
) -> None: ...


async def google(city: str, days: int = 1, *, unit: str = "c") -> str:
    """Get the weather.

    For now and the next days.

    Args:
        city: The name of the city,
            as it is spelled there.
        days (int): How many days.
        other: Not a parameter.

    Returns:
        A line for each day.
    """
    return city + str(days) + unit


def sphinx(city: str, days: int = 1) -> None:
    """Get the weather.

    :param city: The name of the city,
        as it is spelled there.
    :param int days: How many days.
    :returns: nothing
    """


OBJECT = {"type": "object"}
STRING = {"type": "string"}
PLACE = {
    "title": "Place",
    "description": "A place in a file.",
    "type": "object",
    "properties": {"name": STRING, "height": {"type": "integer", "default": 0}},
    "required": ["name"],
}
CITY = {"type": "string", "description": "The name of the city, as it is spelled there."}
DAYS = {"type": "integer", "default": 1, "description": "How many days."}
SCHEMAS: dict[Any, dict[str, Any]] = {
    nothing: {"properties": {}, "required": []},
    plain: {
        "properties": {
            "text": STRING,
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "sure": {"type": "boolean"},
            "anything": {},
            "whatever": {"default": None},
        },
        "required": ["text", "count", "ratio", "sure", "anything"],
    },
    words: {
        "properties": {
            "unit": {"type": "string", "title": "Unit", "enum": ["c", "f"]},
            "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
            "level": {"enum": [1, 2], "default": 1},
        },
        "required": ["unit"],
    },
    lists: {
        "properties": {
            "tags": {"type": "array", "items": STRING},
            "pairs": {"type": "object", "additionalProperties": {"type": "integer"}},
            "empty": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["tags", "pairs"],
    },
    maybe: {
        "properties": {
            "name": {"anyOf": [STRING, {"type": "null"}], "default": None},
            "size": {"anyOf": [{"type": "integer"}, STRING], "default": 1},
        },
        "required": [],
    },
    nested: {
        "properties": {
            "place": PLACE,
            "more": {"type": "array", "items": PLACE},
            "options": {"title": "Options", "type": "object", "properties": {"language": STRING}, "required": []},
            "within": {
                "anyOf": [
                    {"type": "null"},
                    {
                        "title": "Range",
                        "type": "object",
                        "properties": {"first": {"type": "integer"}, "last": {"type": "integer"}},
                        "required": ["first", "last"],
                    },
                ],
                "default": None,
            },
        },
        "required": ["place", "more", "options"],
    },
    bounded: {
        "properties": {
            "limit": {"type": "integer", "minimum": 1, "maximum": 10, "description": "How many.", "default": 5},
            "code": {"type": "string", "pattern": "^[a-z]+$", "default": "a"},
        },
        "required": [],
    },
    google: {
        "properties": {"city": CITY, "days": DAYS, "unit": {"type": "string", "default": "c"}},
        "required": ["city"],
    },
    sphinx: {"properties": {"city": CITY, "days": DAYS}, "required": ["city"]},
}


@pytest.mark.parametrize("function", SCHEMAS, ids=lambda function: str(function.__name__))
def test_the_schema_of_a_function(function: Any) -> None:
    assert normal(Arguments(function).schema) == normal(OBJECT | SCHEMAS[function])


def normal(node: Any) -> Any:
    """Return a schema in which the order of alternatives does not matter."""
    if isinstance(node, dict):
        return {key: normal(value) for key, value in node.items()}
    if isinstance(node, list):
        return sorted(map(normal, node), key=repr) if any(isinstance(item, dict) for item in node) else node
    return node


@pytest.mark.parametrize(
    ("function", "description"),
    [
        (nothing, ""),
        (plain, "Do it."),
        (google, "Get the weather.\n\nFor now and the next days."),
        (sphinx, "Get the weather."),
    ],
)
def test_the_description_of_a_function_is_its_docstring_without_sections(function: Any, description: str) -> None:
    assert Arguments(function).description == description


def test_arguments_become_what_the_types_say() -> None:
    read = Arguments(nested).read(
        {
            "place": {"name": "a"},
            "more": [{"name": "b", "height": "5"}],
            "options": {},
            "within": {"first": 1, "last": 2},
        }
    )
    assert read == {"place": Place("a"), "more": [Place("b", 5)], "options": {}, "within": Range(1, 2)}
    assert Arguments(words).read({"unit": "f", "more": 1}) == {"unit": Unit.FAHRENHEIT, "mode": "fast", "level": 1}


def test_wrong_arguments_are_refused_with_the_place() -> None:
    with pytest.raises(ValueError, match=r"at `\$.place.height`"):
        Arguments(nested).read({"place": {"name": "a", "height": "high"}})
    with pytest.raises(ValueError, match="Invalid enum value"):
        Arguments(words).read({"unit": "k"})


def variadic(*names: str) -> None: ...


def keywords(**names: str) -> None: ...


def positional(name: str, /) -> None: ...


def recursive(node: Node) -> None: ...


def strange(place: Extraordinary) -> None: ...


class Extraordinary:
    def __init__(self, place: int) -> None: ...


@pytest.mark.parametrize("function", [variadic, keywords, positional, recursive, strange])
def test_a_type_without_a_schema_is_refused(function: Any) -> None:
    with pytest.raises(TypeError):
        Arguments(function)


class Shop:
    def buy(self, what: str, count: int = 1) -> None:
        """Buy something."""


def test_methods_can_be_tools() -> None:
    arguments = Arguments(Shop().buy)
    assert arguments.schema["required"] == ["what"]
    assert arguments.read({"what": "tea"}) == {"what": "tea", "count": 1}
