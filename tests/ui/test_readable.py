"""Text for people: whole, in order, and without sequences that a terminal would obey."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zot.messages import CallBlock, ImageBlock, Message, ResultBlock, TextBlock, ThinkingBlock
from zot.text import escaped
from zot.ui.readable import escaped_id, format_size, message_lines, one_line, tool_names


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "a\\x0db"),
        ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202ecba\u2066", "abc\\u202ecba\\u2066"),
        ("\ud83d", "\\ud83d"),
        ("\u00fcber \U0001f469\u200d\U0001f4bb", "\u00fcber \U0001f469\u200d\U0001f4bb"),
    ],
)
def test_terminal_control_sequences_are_escaped(text: str, seen: str) -> None:
    assert escaped(text) == seen


def test_names_that_differ_in_white_space_look_different() -> None:
    names = ["a b", "a b ", " a b", "a  b", "a b\n", "a b\n\u2028", "a\xa0b"]
    seen = ["a b", "a b\\x20", "\\x20a b", "a \\x20b", "a b\\x0a", "a b\\x0a\\u2028", "a\\xa0b"]
    assert [escaped_id(one) for one in names] == seen
    assert escaped_id("x" * 61, 60) == "x" * 59 + "…"


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    line = one_line(text, 10)
    assert [letter for letter in line if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")] == []


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (2_340_000, "2.3 MB"),
        (10**13, "10000.0 GB"),
    ],
)
def test_sizes_are_short(count: int, text: str) -> None:
    assert format_size(count) == text


def test_a_message_shows_the_client_s_text_and_in_full_the_model_s() -> None:
    blocks = (ThinkingBlock("Hm.", signature="s"), ThinkingBlock(redacted="x"), TextBlock("secret"), IMAGE)
    message = Message("assistant", blocks, "2026-01-31T12:00:00.000Z", shown_text="[removed]")
    picture = "  [image/png, 3 bytes]"
    head = "assistant  2026-01-31 12:00:00"
    assert [*message_lines(message, {}, full=False)] == [head, "    [removed]", picture]
    thoughts = ["  thinking", "    Hm.", "  thinking, sealed"]
    assert [*message_lines(message, {}, full=True)] == [head, *thoughts, "    secret", picture]


IMAGE = ImageBlock("image/png", b"abc")


def test_calls_are_one_line_and_their_results_are_cut_short() -> None:
    call = CallBlock("1", "bash", {"command": "x" * 500})
    broken = CallBlock("2", "read", None, malformed='{"pa')
    asked = Message("assistant", (call, broken), "2026-01-31T12:00:00.000Z")
    _, one, two = message_lines(asked, {}, full=False)
    assert (len(one), two) == (len("  -> bash ") + 160, '  -> read {"pa')
    result = ResultBlock("1", True, (TextBlock("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"), IMAGE))
    answer = Message("tool", (result, ResultBlock("9", False, ())), "2026-01-31T12:00:00.000Z")
    assert [*message_lines(answer, tool_names(asked), full=False)][1:] == [
        "  <- bash, an error",
        *(f"    {number}" for number in range(1, 9)),
        "  … 5 more characters; --full shows them",
        "  [image/png, 3 bytes]",
        "  <- 9",
    ]
    assert len([*message_lines(answer, tool_names(asked), full=True)]) == 14


def test_long_lines_are_cut_short() -> None:
    message = Message("tool", (ResultBlock("1", False, (TextBlock("x" * 10_000),)),), "2026-01-31T12:00:00.000Z")
    assert [*message_lines(message, {}, full=False)][2:] == [
        f"    {'x' * 800}",
        "  … 9200 more characters; --full shows them",
    ]
