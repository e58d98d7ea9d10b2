"""Bytes become lines: at LF and nowhere else, within a limit, however they arrive."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zot.wire.lines import MAX_LINE_BYTES, LineSplitter, TooLong, has_more_values

LIMIT = 12
#: Rich in what lines are made of: ends, blanks, and lengths around the limit.
STREAMS = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b" ", b"a", b"x" * 11, b"y" * 13, b"\xe2\x80\xa8"])).map(
    b"".join
)


def lines_of(*chunks: bytes, limit: int = LIMIT) -> list[bytes | TooLong]:
    """Return the lines of a whole stream that arrives in these chunks."""
    splitter = LineSplitter(max_line_bytes=limit)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@given(stream=STREAMS | st.binary(), data=st.data())
def test_chunks_make_no_difference(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    assert lines_of(*chunks) == lines_of(stream)
    assert lines_of(*(stream[at : at + 1] for at in range(len(stream)))) == lines_of(stream)


@given(stream=STREAMS)
def test_lines_are_separated_by_line_feeds(stream: bytes) -> None:
    pieces = (piece.removesuffix(b"\r") for piece in stream.split(b"\n"))
    kept = [piece for piece in pieces if piece.strip()]
    expected = [TooLong(LIMIT) if len(piece) > LIMIT else piece for piece in kept]
    assert lines_of(stream) == expected


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\x1d", "\x1e", "\r", "\0"])
def test_only_a_line_feed_ends_a_line(character: str) -> None:
    line = f"a{character}b".encode()
    assert lines_of(line + b"\n" + line) == [line, line]


def test_only_one_carriage_return_is_dropped() -> None:
    assert lines_of(b"a\r\nb\r\r\n\r\n") == [b"a", b"b\r"]


def test_a_line_may_be_as_long_as_the_limit_not_counting_its_end() -> None:
    exact, longer = b"x" * LIMIT, b"x" * (LIMIT + 1)
    assert lines_of(exact + b"\n") == [exact]
    assert lines_of(exact + b"\r\n") == [exact]
    assert lines_of(exact) == [exact]
    assert lines_of(longer + b"\n") == [TooLong(LIMIT)]
    assert lines_of(longer) == [TooLong(LIMIT)]


def test_a_line_that_is_too_long_is_reported_once_and_as_soon_as_it_is_known() -> None:
    splitter = LineSplitter(max_line_bytes=LIMIT)
    assert splitter.feed(b"x" * (LIMIT + 2)) == [TooLong(LIMIT)]
    assert splitter.feed(b"y" * 100) == []
    assert splitter.feed(b"z\nnext\n") == [b"next"]


def test_discarded_bytes_are_not_kept() -> None:
    splitter = LineSplitter(max_line_bytes=LIMIT)
    for _ in range(100):
        splitter.feed(b"x" * 1000)
    assert splitter.unread() == b""


def test_the_beginning_of_a_line_can_be_handed_over() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b'one\n{"ty') == [b"one"]
    splitter.feed(b'pe":')
    assert splitter.unread() == b'{"type":'


def test_the_limit_is_sixteen_mebibytes() -> None:
    assert MAX_LINE_BYTES == 16 * 1024 * 1024


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a,{["\\\n\u20ac', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='b,["\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(value=JSON, size=st.integers(1, 9))
def test_values_are_counted_outside_of_texts_and_in_pieces(value: object, size: int) -> None:
    def punctuation(value: object) -> int:
        if not isinstance(value, list | dict):
            return 0
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(0, len(value) - 1) + sum(map(punctuation, inner))

    line, count = json.dumps(value, separators=(",", ":")).encode(), punctuation(value)
    assert not has_more_values(line, count, piece_bytes=size)
    assert count == 0 or has_more_values(line, count - 1, piece_bytes=size)
