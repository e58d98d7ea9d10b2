"""Windows of text files."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zot.tools.read import Window
from zot.tools.text_encoding import UTF_8, Encoding

UTF_16 = Encoding("UTF-16 LE", "utf-16-le", unit=2)

texts = st.text("ab\r\n\u0a00\u0100é", max_size=60)


@given(texts, st.integers(1, 9), st.integers(1, 9), st.sampled_from([UTF_8, UTF_16]), st.data())
def test_pieces_of_any_size_give_the_same_window(
    text: str, first: int, limit: int, encoding: Encoding, data: st.DataObject
) -> None:
    units = len(encoding.encode(text)) // encoding.unit
    cuts = sorted(data.draw(st.sets(st.integers(0, units), max_size=5)))
    whole = window(text, [], encoding, first=first, limit=limit)
    assert window(text, cuts, encoding, first=first, limit=limit) == whole
    assert window(text, list(range(units)), encoding, first=first, limit=limit) == whole


@given(texts, st.integers(1, 9), st.integers(1, 9))
def test_a_window_holds_its_lines(text: str, first: int, limit: int) -> None:
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")] if text else []
    shown, total, last = window(text, [], UTF_8, first=first, limit=limit)
    wanted = lines[first - 1 : first - 1 + limit]
    assert total == len(lines)
    assert last == first - 1 + len(wanted)
    assert shown.replace("\r", "").startswith("".join(wanted).replace("\r", ""))


def window(text: str, cuts: list[int], encoding: Encoding, *, first: int, limit: int) -> tuple[str, int, int]:
    data = encoding.encode(text)
    at = [0, *(cut * encoding.unit for cut in cuts), len(data)]
    found = Window(encoding, first=first, limit=limit)
    for start, end in pairwise(at):
        found.feed(data[start:end])
    found.finish()
    return found.text(), found.total, found.last


def test_an_endless_line_shows_its_beginning_and_counts_the_rest() -> None:
    found = Window(UTF_8, first=1, limit=1)
    for _ in range(1000):
        found.feed(b"x" * 10_000)
    found.finish()
    assert found.text() == f"{'x' * 51200}[... this line has 9948800 bytes more]\n"


def test_a_cut_line_does_not_look_like_another_encoding() -> None:
    found = Window(UTF_8, first=1, limit=2)
    found.feed(b"x" * 4095 + "é".encode() * 10 + b"\n")
    found.finish()
    assert found.text() == (f"{'x' * 4095}[... this line has 20 bytes more; offset=1 limit=1 shows 50 KiB of it]\n")
