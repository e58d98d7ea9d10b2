"""Wrong values are found, with their place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Required

import pytest
from typing_extensions import TypedDict

from .typed import misfits


class Word(TypedDict, total=False):
    type: Required[Literal["word"]]
    text: Required[str]
    count: int | None


class Image(TypedDict):
    type: Literal["image"]
    url: str


class Said(TypedDict):
    parts: str | Iterable[Word | Image]
    about: dict[str, object]


@pytest.mark.parametrize(
    ("parts", "problems"),
    [
        ("hi", []),
        ([{"type": "word", "text": "a", "count": None}, {"type": "image", "url": "b"}], []),
        ([{"type": "word", "text": "a", "size": 1}], ["$.parts.0: unknown key 'size'"]),
        ([{"type": "word", "count": 1}], ["$.parts.0: 'text' is missing"]),
        ([{"type": "image", "url": 1}], ["$.parts.0.url: no str"]),
        ([{"type": "word", "text": "a", "count": True}], ["$.parts.0.count: no int"]),
        ({}, ["$.parts: no str"]),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_reported_with_its_place(parts: Any, problems: list[str]) -> None:
    assert misfits({"parts": parts, "about": {}}, Said) == problems


def test_an_object_is_not_a_list() -> None:
    assert misfits({"parts": "hi", "about": []}, Said) == ["$.about: no object"]
