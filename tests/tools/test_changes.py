from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zot.tools.changes import Change, apply, diff
from zot.tools.encoding import LATIN_1, Encoding

UTF_16 = Encoding("UTF-16 BE", "utf-16-be", unit=2)


@st.composite
def edited_texts(draw: st.DrawFn, *, max_size: int = 60) -> tuple[bytes, list[Change]]:
    """A text of short lines and changes of it, in order, without overlap; some only insert."""
    data = draw(st.text("ab\n", max_size=max_size)).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=6)))
    cuts = cuts[: len(cuts) // 2 * 2]
    pieces = draw(st.lists(st.text("xy\n", max_size=6), min_size=len(cuts) // 2, max_size=len(cuts) // 2))
    spans = [(start, draw(st.sampled_from([start, end]))) for start, end in zip(cuts[::2], cuts[1::2], strict=True)]
    changes = [Change(start, end, new.encode()) for (start, end), new in zip(spans, pieces, strict=True)]
    return data, [change for change in changes if change.new or change.end > change.start]


@given(edited_texts())
def test_a_diff_shows_nothing_but_lines_of_both_texts_in_their_order(edited: tuple[bytes, list[Change]]) -> None:
    data, changes = edited
    rows = list(diff(data, changes))
    assert all(row[:1] in b" -+" or row == b"...\n" for row in rows)
    rows = [row for row in rows if row != b"...\n"]
    assert is_within([row[1:] for row in rows if row[:1] != b"+"], lines(data))
    assert is_within([row[1:] for row in rows if row[:1] != b"-"], lines(apply(data, changes)))


@given(edited_texts(max_size=9))
def test_a_diff_without_gaps_holds_both_texts_whole(edited: tuple[bytes, list[Change]]) -> None:
    data, changes = edited
    rows = list(diff(data, changes))
    if not changes or b"...\n" in rows or data.count(b"\n") > 3:
        return
    assert [row[1:] for row in rows if row[:1] != b"+"] == lines(data)
    assert [row[1:] for row in rows if row[:1] != b"-"] == lines(apply(data, changes))


@given(edited_texts(), st.sampled_from([UTF_16, LATIN_1]))
def test_a_diff_is_the_same_in_every_encoding(edited: tuple[bytes, list[Change]], encoding: Encoding) -> None:
    data, changes = edited
    other = [
        Change(one.start * encoding.unit, one.end * encoding.unit, encoding.encode(one.new.decode())) for one in changes
    ]
    assert list(diff(encoding.encode(data.decode()), other, encoding)) == list(diff(data, changes))


def test_lines_far_from_any_change_are_left_out() -> None:
    data = b"".join(b"%d\n" % n for n in range(10, 30))
    changes = [Change(15, 17, b"x"), Change(51, 53, b"y")]
    assert b"".join(diff(data, changes)) == (
        b" 12\n 13\n 14\n-15\n+x\n 16\n 17\n 18\n...\n 24\n 25\n 26\n-27\n+y\n 28\n 29\n"
    )


def test_changes_with_six_lines_between_them_are_shown_in_one_piece() -> None:
    data = b"".join(b"%d\n" % n for n in range(10, 18))
    changes = [Change(0, 2, b"x"), Change(21, 23, b"y")]
    assert b"".join(diff(data, changes)) == b"-10\n+x\n 11\n 12\n 13\n 14\n 15\n 16\n-17\n+y\n"


def test_changes_in_one_line_are_shown_once() -> None:
    assert b"".join(diff(b"a b c\n", [Change(0, 1, b"x"), Change(4, 5, b"z")])) == b"-a b c\n+x b z\n"


def lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.removesuffix(b"\n").split(b"\n")] if data else []


def is_within(rows: list[bytes], all_lines: list[bytes]) -> bool:
    rest = iter(all_lines)
    return all(row in rest for row in rows)
