"""Expressions are found as `re` finds them, but in bounded time."""

from __future__ import annotations

import re
from itertools import product

import pytest

from zot.agent.output_schema import MAX_TEXT, Pattern

EXPRESSIONS = [
    "", "a", "^a", "a$", "^a$", "^$", "a|b", "^(a|ab)(c|bcd)$", "a*", "^a*$", "^a+b?$", "^a{2}$", "^a{1,2}b{0,1}$",
    "^a{2,}$",
    "^(a|b)*?1$", "[ab]1", "[^ab]", "[^a-c1]$", "^.$", r"\d", r"\D\w\W", r"\s", r"\S\b", r"\ba", r"\Ba", r"\Aa\Z",
    "^(a*)*$",
    "^((a|b)+1?)+$", "()", "^(){5}a$", "^(?:ab)+$", "^(?P<n>a)b$", "(a{0,2}){2}b", "^(|a)+b$", "$^",
]  # fmt: skip
TEXTS = ["".join(letters) for length in range(5) for letters in product("ab1 ", repeat=length)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_found_is_what_re_finds(expression: str) -> None:
    pattern, known = Pattern(expression), re.compile(expression)
    assert [text for text in TEXTS if pattern.is_in(text)] == [text for text in TEXTS if known.search(text)]


def test_the_end_is_the_very_end() -> None:
    assert not Pattern("^a$").is_in("a\n")
    assert Pattern(r"^\w+$").is_in("Gr\u00fc\u00dfe_\u0663")


@pytest.mark.parametrize(
    "expression", ["^(a+)+$", "^(a|a)*$", "^(a*)*$", "^a*a*a*a*a*a*$", "(.*a){20}$", "^(a?){100}a{100}$"]
)
def test_no_expression_takes_for_ever(expression: str) -> None:
    """With `re` each of these would still be running when the sun is gone."""
    assert not Pattern(expression).is_in("a" * (MAX_TEXT - 1) + "!")


@pytest.mark.parametrize(
    "expression", ["(", "a**", r"(a)\1", "(?=a)", "(?<!a)b", "(?i)a", "(?i:a)", "(?>a)", "a++", "(a)?(?(1)b|c)",
                   "a{1001}",
                   "((a{50}){50}){50}", "(" * 5_000 + ")" * 5_000]
)  # fmt: skip
def test_what_cannot_be_bounded_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Pattern(expression)


def test_nothing_repeated_is_nothing() -> None:
    assert Pattern("^(((){4000000}){4000000}){4000000}$").is_in("")
