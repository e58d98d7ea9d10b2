from __future__ import annotations

import pytest

from zot.providers.lab.script import BadLine, ScriptLine, Word, parse_line


@pytest.mark.parametrize(
    ("source", "args", "options"),
    [
        ('say "Hel" "lo"', ("Hel", "lo"), {}),
        ("say hello world", ("hello", "world"), {}),
        ('say "a # b"   # a comment', ("a # b",), {}),
        ("  say\tx\r", ("x",), {}),
        (r'say "a\n\"b\" \u00e9"', ('a\n"b" é',), {}),
        (r"say '^\d+ \"x\"'", (r"^\d+ \"x\"",), {}),
        ('say {"a": {"b": ["]", "}"]}} id=tA', ({"a": {"b": ["]", "}"]}},), {"id": "tA"}),
        ("say [1, 2] x=[3] y={\"z\": 1} q='a b' e=", ([1, 2],), {"x": [3], "y": {"z": 1}, "q": "a b", "e": ""}),
        ("say 1.5s retry-after=1", ("1.5s",), {"retry-after": "1"}),
    ],
)
def test_a_line_is_a_word_then_arguments_and_options(source: str, args: object, options: object) -> None:
    assert parse_line(3, source) == ScriptLine(3, "say", args, options)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["", "   ", "# say", "\t# x", "\r"])
def test_blank_lines_and_comments_are_ignored(source: str) -> None:
    assert parse_line(1, source) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('say "open', "'\"open': a string or bracket that does not close or open"),
        ("say 'open", '"\'open": a string or bracket that does not close or open'),
        ('say {"a": 1', "'{\"a\": 1': a bracket that does not close"),
        ("say }", "'}': a string or bracket that does not close or open"),
        ('say "a""b"', "'\"b\"' right after a value: a space is missing"),
        ('"say" x', '"say" where a directive should be'),
    ],
)
def test_a_malformed_line_gives_the_reason(source: str, message: str) -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(1, source)
    assert str(caught.value) == message


def test_a_literal_that_is_not_json_says_so() -> None:
    with pytest.raises(BadLine, match=r"^{a}: not JSON: "):
        parse_line(1, "say {a}")


def test_unquoted_words_are_separate_arguments() -> None:
    line = parse_line(1, "scene !say '(.*)'")
    assert line is not None
    assert [isinstance(arg, Word) for arg in line.args] == [True, False]


@pytest.mark.parametrize(
    ("written", "seconds"), [("20ms", 0.02), ("1s", 1.0), ("0.5", 0.5), (".5s", 0.5), ("2m", 120.0), ("3.s", 3.0)]
)
def test_durations_have_units(written: str, seconds: float) -> None:
    assert ScriptLine(1, "wait", (written,)).seconds(0) == seconds


def test_placeholders_are_filled_in_any_text_and_unknown_ones_stay() -> None:
    line = ScriptLine(1, "call", ("$1", {"a$1": ["$2", "$9 $HOME $$ $0 $model $nope"]}), {"id": "t$1"})
    assert line.filled({"1": "x", "2": "$1", "model": "m"}) == ScriptLine(
        1, "call", ("x", {"ax": ["$1", "$9 $HOME $$ $0 m $nope"]}), {"id": "tx"}
    )
