"""Check of a JSON value against a vendor's request type: every key known, none missing, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

# The vendors' types are made with this; what typing has of the same name does not know them in Python 3.11.
from typing_extensions import get_type_hints, is_typeddict

_PLAIN: Mapping[Any, tuple[type, ...]] = {
    str: (str,), int: (int,), bool: (bool,), float: (int, float), NoneType: (NoneType,), dict: (dict,),
}  # fmt: skip


def misfits(value: Any, kind: Any, where: str = "$") -> list[str]:
    """Return where ``value`` is not of the type ``kind``; for a union, the errors of the nearest choice."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return []
    if origin in (Annotated, Required, NotRequired):
        return misfits(value, args[0], where)
    if origin in (Union, UnionType):
        return min((misfits(value, choice, where) for choice in args), key=lambda found: _distance(found, where))
    if origin is Literal:
        return [] if value in args else [f"{where}: not one of {args}"]
    if is_typeddict(kind):
        return [*_fields(value, kind, where)]
    if origin is dict or origin is Mapping:
        return [] if isinstance(value, dict) else [f"{where}: no object"]
    if origin is not None:  # All that is left are lists, under one name or another.
        return [*_items(value, args[0], where)]
    fits = type(value) in _PLAIN.get(kind, ())
    return [] if fits else [f"{where}: no {getattr(kind, '__name__', kind)}"]


def _distance(problems: list[str], where: str) -> tuple[int, int]:
    """The nearest choice is the one of the right kind, by form and by name, and with the fewest mistakes then."""
    return sum(problem.startswith(f"{where}: no ") or ": not one of" in problem for problem in problems), len(problems)


def _fields(value: Any, kind: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: no object"
        return
    known = get_type_hints(kind, include_extras=True)
    yield from (f"{where}: unknown key {key!r}" for key in value.keys() - known.keys())
    yield from (f"{where}: {key!r} is missing" for key in _required(kind, known) - value.keys())
    for key in value.keys() & known.keys():
        yield from misfits(value[key], known[key], f"{where}.{key}")


def _required(kind: Any, known: Mapping[str, Any]) -> set[str]:
    """Return the keys that must be there. Of annotations that are text, the class itself does not know."""
    marks = {key: get_origin(hint) for key, hint in known.items()}
    declared = {key for key in kind.__required_keys__ if marks[key] is not NotRequired}
    return declared | {key for key, mark in marks.items() if mark is Required}


def _items(value: Any, kind: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{where}: no list"
        return
    for index, item in enumerate(value):
        yield from misfits(item, kind, f"{where}.{index}")
