"""Markdown that is drawn while it is written looks as if it had been there at once."""

from __future__ import annotations

import pytest

from zot.tui.looks import ASCII, Look
from zot.tui.markdown import Flow

LONG = "\n".join(f"line_{number} = {number}" if number % 7 else "" for number in range(200))
TEXTS = {
    "a bit of everything": "# Title\n\nSome `code`.\n\n- one\n\n  more\n\n> said\n\n| a |\n|---|\n| 1 |\n\nEnd.",
    "code": "Before\n\n```python\ndef f(x):\n    return x\n```\n\nAfter ``` and so on",
    "long code": f"Before\n\n```python\n{LONG}\n```\n\nAfter\n\n```\n{LONG}\n```\n",
    "long code that does not end": f"~~~ sh\n{LONG}",
    "a heading below its text": "Title\n=====\n\ntext\n---\n\nmore",
    "nothing": "\n\n",
}


def drawn(flow: Flow, text: str, look: Look | None = None) -> list[str]:
    look = look or Look()
    return [strip.text.rstrip() for strip in flow.lines(text, 60, look)]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_drawn_piece_by_piece_it_looks_as_drawn_at_once(text: str) -> None:
    flow, step = Flow(), 1 if len(text) < 300 else 211
    for end in range(step, len(text), step):
        drawn(flow, text[:end])
    assert drawn(flow, text) == drawn(Flow(), text)


def test_all_lines_of_long_code_are_there() -> None:
    code = [line.strip() for line in drawn(Flow(), f"```python\n{LONG}\n```")]
    assert code == LONG.split("\n")


def test_where_only_ascii_can_be_shown_nothing_else_is_drawn() -> None:
    assert "".join(drawn(Flow(), "- one\n\n> said\n\n| a |\n|---|\n| 1 |\n", ASCII)).isascii()


def test_what_looks_like_a_tag_is_shown_as_it_is() -> None:
    text = "Use <div>, Vec<String>, a<b and c>d\n\n<table><tr>\n\n- <b>one</b> <!-- two -->\n\nend"
    shown = ["Use <div>, Vec<String>, a<b and c>d", "", "<table><tr>", "", " • <b>one</b> <!-- two -->", "", "end"]
    assert drawn(Flow(), text) == shown
