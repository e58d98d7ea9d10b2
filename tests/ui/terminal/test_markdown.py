"""Streamed Markdown looks the same as Markdown drawn at once."""

from __future__ import annotations

import pytest
from rich.segment import Segment
from textual.strip import Strip

from zot.ui.terminal.markdown import Flow, markdown
from zot.ui.terminal.markdown import drawn as as_lines
from zot.ui.terminal.styles import ASCII, Look

ROWS = "".join(f"| {number} | {'x' * (number % 9)} |\n" for number in range(200))
TABLE = f"| number | how much |\n|---:|:-:|\n{ROWS}"
POINTS = "".join(f"- point {number} of **many**\n" for number in range(90))
PROSE = "".join(f"word{number} " + "and **two bold** " * (number % 30 == 0) for number in range(900))
LONG = "\n".join(f"line_{number} = {number}" if number % 7 else "" for number in range(200))
TEXTS = {
    "a bit of everything": "# Title\n\nSome `code`.\n\n- one\n\n  more\n\n> said\n\n| a |\n|---|\n| 1 |\n\nEnd.",
    "code": "Before\n\n```python\ndef f(x):\n    return x\n```\n\nAfter ``` and so on",
    "long code": f"Before\n\n```python\n{LONG}\n```\n\nAfter\n\n```\n{LONG}\n```\n",
    "long code that does not end": f"~~~ sh\n{LONG}",
    "a heading below its text": "Title\n=====\n\ntext\n---\n\nmore",
    "a long list": f"{POINTS}\nEnd.",
    "a long list with room": "".join(f"- point {number}\n\n  of many\n\n" for number in range(50)),
    "a long numbered list": "".join(f"{number}. a point\n   - and one below\n" for number in range(7, 90)),
    "a list that numbers itself": "1. a point\n" * 90,
    "a long table": TABLE,
    "long tables between other things": f"Before\n\n{TABLE}\nBetween\n\n{TABLE}| 7 | {'wide ' * 30}|\n\nAfter",
    "a long paragraph": PROSE,
    "a long paragraph with open ends": f"A ` and a ** and [one {'more word ' * 500} ends** here](a)` {'or not ' * 99}",
    "a long paragraph of lines": "".join(f"line {number} of *many*\n" for number in range(300)),
    "nothing": "\n\n",
}


def drawn(flow: Flow, text: str, look: Look | None = None) -> list[str]:
    look = look or Look()
    return [strip.text.rstrip() for strip in flow.lines(text, 60, look)]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_drawn_incrementally_it_looks_as_drawn_at_once(text: str) -> None:
    flow, step = Flow(), 1 if len(text) < 300 else 211
    for end in range(step, len(text), step):
        drawn(flow, text[:end])
    assert drawn(flow, text) == drawn(Flow(), text)


def test_all_lines_of_long_code_are_there() -> None:
    code = [line.strip() for line in drawn(Flow(), f"```python\n{LONG}\n```")]
    assert code == LONG.split("\n")


@pytest.mark.parametrize("text", [POINTS, PROSE, TABLE], ids=["a list", "prose", "a table"])
def test_a_long_block_in_pieces_looks_as_a_whole(text: str) -> None:
    whole = [line.text.rstrip() for line in as_lines(markdown(text, Look()), 60)]
    assert drawn(Flow(), text) == whole[whole[0] == "" :]


class Weighed(Flow):
    """Records how much is drawn at once."""

    most = 0

    def _block(self, text: str) -> list[Strip]:
        self.most = max(self.most, len(text))
        return super()._block(text)


@pytest.mark.parametrize("text", [POINTS, PROSE, f"| a | b |\n|---|---|\n{ROWS}", f"```\n{LONG}\n```"])
def test_only_the_last_piece_of_a_growing_block_is_drawn(text: str) -> None:
    flow = Weighed()
    for end in range(300, len(text), 300):
        drawn(flow, text[:end])
    assert 0 < flow.most < min(3000, len(text))
    before = Segment("  ")
    first = flow.lines(text, 60, Look(), before)
    again = flow.lines(f"{text} m", 60, Look(), before)
    assert all(one is other for one, other in zip(first[2:50], again[2:50], strict=True))


def test_a_table_has_one_head_and_the_same_columns_in_all_its_rows() -> None:
    flow = Flow()
    for end in range(100, len(TABLE), 100):
        drawn(flow, TABLE[:end])
    head, rule, *rows = drawn(flow, TABLE)
    assert head.split() == ["number", "how", "much"]
    assert {*rule.strip()} == {"─"}
    assert [int(row.split()[0]) for row in rows] == [*range(200)]
    assert {row.index(str(number)) + len(str(number)) for number, row in enumerate(rows)} == {len(" number")}


@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_wide_table_shrinks_its_widest_columns(width: int) -> None:
    text = f"| a | b |\n|---|---|\n| short | {'many words ' * 9}|\n"
    lines = [line.text for line in Flow().lines(text, width, Look())]
    assert max(map(len, lines)) <= width
    assert "".join("".join(lines).split()).count("manywords") == 9
    assert lines[2].split()[0] == "short"


def test_where_only_ascii_can_be_shown_nothing_else_is_drawn() -> None:
    assert "".join(drawn(Flow(), "- one\n\n> said\n\n| a |\n|---|\n| 1 |\n", ASCII)).isascii()


def test_text_that_looks_like_a_tag_is_shown_verbatim() -> None:
    text = "Use <div>, Vec<String>, a<b and c>d\n\n<table><tr>\n\n- <b>one</b> <!-- two -->\n\nend"
    shown = ["Use <div>, Vec<String>, a<b and c>d", "", "<table><tr>", "", " • <b>one</b> <!-- two -->", "", "end"]
    assert drawn(Flow(), text) == shown


def test_an_entity_inserts_no_invisible_character() -> None:
    text = (
        "A&#x202e;B &#x200f;C &amp; [D&#xfeff;](E&#x202e;F)\n\n| &#13;G |\n|---|\n| **&#x2067;H** |\n\n![I&#x2028;](J)"
    )
    shown = "\n".join(drawn(Flow(), text))
    assert shown.replace("\n", "").isprintable()
    for escape in (r"A\u202eB", r"\u200fC &", r"D\ufeff", r"\x0dG", r"\u2067H"):
        assert escape in shown


def test_the_lines_of_a_paragraph_stay_lines() -> None:
    assert drawn(Flow(), "one\ntwo\n\n- three\n  four") == ["one", "two", "", " • three", "   four"]
