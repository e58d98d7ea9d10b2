"""Diffs of known changes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from zot.tools.diff import MAX_PIECE_LINES, Change, Skipped, apply, diff, lines_in_common
from zot.tools.text_encoding import LATIN_1, UTF_8, Encoding, to_units

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


def shown(data: bytes, changes: list[Change], encoding: Encoding = UTF_8) -> bytes:
    rows = list(diff(to_units(data, encoding), changes, encoding))
    assert all(isinstance(row, bytes) and row.endswith(b"\n") for row in rows)
    return b"".join(row for row in rows if isinstance(row, bytes))


@given(edited_texts())
def test_a_diff_makes_the_new_text_of_the_old_one(edited: tuple[bytes, list[Change]]) -> None:
    data, changes = edited
    assert patched(data, shown(data, changes)) == apply(data, changes)


@given(edited_texts(), st.sampled_from([UTF_16, LATIN_1]))
def test_a_diff_is_the_same_in_every_encoding(edited: tuple[bytes, list[Change]], encoding: Encoding) -> None:
    data, changes = edited
    other = [
        Change(one.start * encoding.unit, one.end * encoding.unit, encoding.encode(one.new.decode())) for one in changes
    ]
    assert shown(encoding.encode(data.decode()), other, encoding) == shown(data, changes)


def test_lines_far_from_any_change_are_left_out() -> None:
    data = b"".join(b"%d\n" % n for n in range(10, 30))
    changes = [Change(15, 17, b"x\nxx"), Change(51, 53, b"y")]
    assert shown(data, changes) == (
        b"@@ -3,7 +3,8 @@\n 12\n 13\n 14\n-15\n+x\n+xx\n 16\n 17\n 18\n"
        b"@@ -15,6 +16,6 @@\n 24\n 25\n 26\n-27\n+y\n 28\n 29\n"
    )


def test_changes_with_six_lines_between_them_are_shown_in_one_piece() -> None:
    data = b"".join(b"%d\n" % n for n in range(10, 18))
    changes = [Change(0, 2, b"x"), Change(21, 23, b"y")]
    assert shown(data, changes) == b"@@ -1,8 +1,8 @@\n-10\n+x\n 11\n 12\n 13\n 14\n 15\n 16\n-17\n+y\n"


def test_changes_in_one_line_are_shown_once() -> None:
    assert shown(b"a b c\n", [Change(0, 1, b"x"), Change(4, 5, b"z")]) == b"@@ -1 +1 @@\n-a b c\n+x b z\n"


def test_a_change_of_nothing_but_the_line_end_is_seen() -> None:
    assert shown(b"a\nb\n", [Change(1, 2, b"\r\n")]) == b"@@ -1,2 +1,2 @@\n-a\n+a\\r\n b\n"
    assert shown(b"a\r\nb\r\n", [Change(1, 3, b"\n")]) == b"@@ -1,2 +1,2 @@\n-a\\r\n+a\n b\n"
    assert shown(b"a\r\nb\r\n", [Change(0, 1, b"x")]) == b"@@ -1,2 +1,2 @@\n-a\n+x\n b\n"
    end = b"\\ No newline at end of file\n"
    assert shown(b"a\nb", [Change(3, 3, b"\n")]) == b"@@ -1,2 +1,2 @@\n a\n-b\n" + end + b"+b\n"
    assert shown(b"a\nb", [Change(0, 1, b"x")]) == b"@@ -1,2 +1,2 @@\n-a\n+x\n b\n" + end


def test_the_first_and_the_last_lines_are_numbered_as_patch_expects() -> None:
    assert shown(b"", [Change(0, 0, b"a\n")]) == b"@@ -0,0 +1 @@\n+a\n"
    assert shown(b"a\n", [Change(0, 2, b"")]) == b"@@ -1 +0,0 @@\n-a\n"


def test_the_middle_of_a_long_piece_is_only_counted() -> None:
    new = b"ab\n" * (2 * MAX_PIECE_LINES + 5)
    rows = list(diff("x\n", [Change(0, 2, new)]))
    assert rows[:2] == [b"@@ -1 +1,%d @@\n" % (2 * MAX_PIECE_LINES + 5), b"-x\n"]
    half = [b"+ab\n"] * MAX_PIECE_LINES
    assert rows[2:] == [*half, Skipped(5 * 4, 5), *half]


@given(st.text("ab\n", max_size=12), st.text("ab\n", max_size=12))
def test_lines_in_common_are_whole_and_do_not_overlap(one: str, other: str) -> None:
    head, tail = lines_in_common(one, other)
    before, after = one.splitlines(keepends=True), other.splitlines(keepends=True)
    first = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(before), len(after)) if first is None else first
    before, after = before[first:], after[first:]
    last = 0
    while last < min(len(before), len(after)) and before[-last - 1] == after[-last - 1]:
        last += 1
    assert head == len("".join(one.splitlines(keepends=True)[:first]))
    assert tail == len("".join(before[len(before) - last :]))


def patched(data: bytes, diff: bytes) -> bytes:
    """Apply a diff; it must name the lines that are there."""
    old, new, at = data.splitlines(keepends=True), list[bytes](), 0
    rows = diff.splitlines(keepends=True)
    for row, following in zip(rows, [*rows[1:], b""], strict=False):
        text = row[1:-1] if following.startswith(b"\\") else row[1:]
        if header := re.fullmatch(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n", row):
            start = int(header[1]) - (header[2] != b"0")
            new += old[at:start]
            at = start
            assert int(header[3]) == len(new) + (header[4] != b"0")
        if row[:1] in (b" ", b"-"):
            assert old[at] == text
            at += 1
        if row[:1] in (b" ", b"+"):
            new.append(text)
    return b"".join([*new, *old[at:]])
