"""Server-sent events come out the same however the stream was written and cut."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zot.errors import StreamBroken
from zot.providers.sse import SseParser

BOM = b"\xef\xbb\xbf"

#: The lines of a value: anything but what ends a line.
_line = st.binary(max_size=12).map(lambda raw: raw.translate(None, b"\r\n"))
_data = st.lists(_line, min_size=1, max_size=3).map(b"\n".join)
_field = st.sampled_from([b": a comment", b":", b"id: 7", b"retry: 100", b"event: ping", b"nonsense", b"datum: x"])
_event = st.tuples(st.lists(_field, max_size=2), st.one_of(st.none(), _data), st.lists(_field, max_size=2))


def _rendered(events: Iterable[tuple[list[bytes], bytes | None, list[bytes]]], eol: bytes, space: bytes) -> bytes:
    lines: list[bytes] = []
    for before, data, after in events:
        values = [] if data is None else [b"data:" + space + value for value in data.split(b"\n")]
        lines += [*before, *values, *after, b""]
    return b"".join(line + eol for line in lines)


def _fed(pieces: Iterable[bytes]) -> list[bytes]:
    parser = SseParser()
    return [payload for piece in pieces for payload in parser.feed(piece)]


def _cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[a:b] for a, b in pairwise(bounds)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(_event, max_size=5),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
    st.lists(st.integers(0, 2000), max_size=8),
)
def test_any_events_however_written_and_cut_give_their_data(
    events: list[tuple[list[bytes], bytes | None, list[bytes]]], eol: bytes, bom: bool, places: list[int]
) -> None:
    stream = BOM * bom + _rendered(events, eol, b" ")
    expected = [data for _, data, _ in events if data is not None]
    assert _fed([stream]) == expected
    assert _fed(bytes([byte]) for byte in stream) == expected
    assert _fed(_cut(stream, places)) == expected


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"event: x\ndata: a\n\n", [b"a"]),
        (b"event: x\ndata: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\nevent: x\n\n", [b"a"]),
        (b"event: data: x\n\n", []),
        (b"Data: a\n\n", []),
        (b": ping\n\n\n\ndata: a\n\n", [b"a"]),
        (b"data: never finished\n", []),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [b"a", b"b", b"c"]),
        (b"data: a\xe2\x80\xa8b\x85c\x0bd\n\n", [b"a\xe2\x80\xa8b\x85c\x0bd"]),
        (BOM + b"data: a\n\n" + BOM + b"data: b\n\n", [b"a"]),
        (b"\xef\xbbdata: a\n\ndata: b\n\n", [b"b"]),
    ],
)
def test_the_rules_of_the_format(stream: bytes, expected: list[bytes]) -> None:
    assert _fed([stream]) == expected
    assert _fed(bytes([byte]) for byte in stream) == expected


@pytest.mark.parametrize("name", [b"", b"event: delta\n"])
@pytest.mark.parametrize(
    ("stranger", "data"),
    [(b": ping", []), (b"event: end\ndata: z", [b"z"]), (b"data: y\ndata: z", [b"y\nz"]),
     (b"event: delta\ndata:z", [b"z"]),
     (b"event: delta\nid: 1\ndata: z", [b"z"]), (b"\n\n\n", []), (b"event: delta\ndata: y\n\nz", [b"y"])],
)  # fmt: skip
def test_an_unusual_event_is_understood_wherever_the_stream_is_cut(
    name: bytes, stranger: bytes, data: list[bytes]
) -> None:
    usual = [name + b"data: %d\n\n" % number for number in range(4)]
    stream, expected = b"".join([*usual[:2], stranger, b"\n\n", *usual[2:]]), [b"0", b"1", *data, b"2", b"3"]
    for place in range(len(stream)):
        assert _fed([usual[0], stream[:place], stream[place:]]) == [b"0", *expected]


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_out_as_soon_as_its_last_line_ends(eol: bytes) -> None:
    # A CRLF that has only half arrived has ended its line already.
    stream = (b"data: a" + eol + eol).removesuffix(b"\n") if eol == b"\r\n" else b"data: a" + eol + eol
    parser = SseParser()
    assert parser.feed(stream) == [b"a"]
    assert parser.feed(b"\ndata: b\n\n" if eol == b"\r\n" else b"data: b\n\n") == [b"b"]


def test_an_empty_chunk_changes_nothing() -> None:
    assert _fed([b"", b"data: a\r", b"", b"\n", b"", b"\r\n", b"data: b\n", b"", b"\n"]) == [b"a", b"b"]


@pytest.mark.parametrize("piece", [1 << 16, 1 << 24])
def test_an_event_that_is_too_long_breaks_the_stream(piece: int) -> None:
    parser = SseParser()
    parser.feed(b"data: ")
    for _ in range((1 << 24) // piece - 1):
        assert parser.feed(b"x" * piece) == []
    with pytest.raises(StreamBroken, match="longer than 16777216 bytes"):
        parser.feed(b"x" * piece)


def test_a_long_event_in_small_pieces_takes_linear_time() -> None:
    # Eight times the bytes take eight times as long; if each piece cost what came before it, it would be 64 times.
    short = min(_time_to_feed(256 << 10) for _ in range(3))
    long = min(_time_to_feed(2 << 20) for _ in range(3))
    assert long < 24 * short


def _time_to_feed(size: int) -> float:
    parser = SseParser()
    parser.feed(b"data: ")
    piece = b"x" * 64
    start = time.process_time()
    for _ in range(size // len(piece)):
        parser.feed(piece)
    payloads = parser.feed(b"\n\n")
    spent = time.process_time() - start
    assert payloads == [b"x" * size]
    return spent
