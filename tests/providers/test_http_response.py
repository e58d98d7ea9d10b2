"""HTTP responses: whole, in pieces, cut off, malformed and endless."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zot.errors import ConnectionFailed, StreamBroken
from zot.providers.http import MAX_HEAD_BYTES, MAX_HEADERS, MAX_INTERIM, Progress, ResponseParser

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Sample(NamedTuple):
    data: bytes
    status: int
    headers: dict[str, str]
    body: bytes
    reusable: bool


SAMPLES = {
    "content-length": Sample(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello",
        200,
        {"content-length": "5", "x-a": "1, 2"},
        b"hello",
        True,
    ),
    "chunked with extensions and trailers": Sample(
        CHUNKED + b'3;name="v"\r\nabc\r\nA;x\r\n0123456789\r\n0;last\r\nx-sum: 9\r\nx-more: 8\r\n\r\n',
        200,
        {"transfer-encoding": "chunked"},
        b"abc0123456789",
        True,
    ),
    "interim answers first": Sample(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
        b"HTTP/1.1 429 Slow Down\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\nno",
        429,
        {"retry-after": "1", "content-length": "2"},
        b"no",
        True,
    ),
    "204": Sample(b"HTTP/1.1 204 No Content\r\n\r\n", 204, {}, b"", True),
    "304 that announces a body": Sample(
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", 304, {"content-length": "7"}, b"", True
    ),
    "connection: close": Sample(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx",
        200,
        {"connection": "close", "content-length": "1"},
        b"x",
        False,
    ),
    "HTTP/1.0": Sample(b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", 200, {"content-length": "1"}, b"x", False),
    "HTTP/1.0 with keep-alive": Sample(
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
        200,
        {"connection": "keep-alive", "content-length": "1"},
        b"x",
        True,
    ),
    "no reason phrase": Sample(b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", 200, {"content-length": "0"}, b"", True),
}


def received(*pieces: bytes) -> ResponseParser:
    answer = ResponseParser("service:443")
    for piece in pieces:
        answer.feed(piece)
    return answer


def outcome(answer: ResponseParser, data: bytes) -> Sample:
    assert answer.progress is Progress.WHOLE
    return Sample(data, answer.status, answer.headers, answer.take(1 << 30), answer.reusable)


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_an_answer_is_the_same_whole_or_byte_by_byte(sample: Sample) -> None:
    assert outcome(received(sample.data), sample.data) == sample
    assert outcome(received(*(bytes([byte]) for byte in sample.data)), sample.data) == sample


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_an_answer_is_the_same_wherever_it_is_split(sample: Sample) -> None:
    for at in range(1, len(sample.data)):
        assert outcome(received(sample.data[:at], sample.data[at:]), sample.data) == sample


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("clean", [True, False])
def test_a_cut_answer_is_never_whole(sample: Sample, clean: bool) -> None:
    head_end = sample.data.rindex(b"HTTP/") + sample.data[sample.data.rindex(b"HTTP/") :].index(b"\r\n\r\n") + 4
    for at in range(len(sample.data)):
        answer = received(sample.data[:at])
        answer.end(clean=clean)
        assert answer.progress is Progress.BROKEN
        assert type(answer.failure) is (ConnectionFailed if at < head_end else StreamBroken)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8), data=st.data())
def test_any_chunked_body_survives_any_split_and_no_cut(chunks: list[bytes], data: st.DataObject) -> None:
    coded = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    at = data.draw(st.integers(0, len(coded) - 1))

    answer = received(coded[:at])
    before = answer.take(1 << 30)
    assert answer.progress is not Progress.WHOLE
    answer.feed(coded[at:])
    assert (before + answer.take(1 << 30), answer.progress) == (b"".join(chunks), Progress.WHOLE)

    cut = received(coded[:at])
    cut.end(clean=True)
    assert isinstance(cut.failure, ConnectionFailed | StreamBroken)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_at_all_leave_a_defined_state(pieces: list[bytes]) -> None:
    for prefix in ([], [CHUNKED]):
        answer = received(*prefix, *pieces)
        answer.end(clean=False)
        assert (answer.progress is Progress.BROKEN) == (answer.failure is not None)
        assert not answer.reusable


def test_a_body_without_length_lasts_until_the_connection_is_closed_in_order() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    closed, lost = received(head, b"one ", b"two"), received(head, b"one ")
    closed.end(clean=True)
    lost.end(clean=False)
    assert (closed.progress, closed.take(1 << 30), closed.reusable) == (Progress.WHOLE, b"one two", False)
    assert (lost.progress, lost.take(1 << 30)) == (Progress.BROKEN, b"one ")
    assert str(lost.failure) == "the answer of service:443 was cut short"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00",
        b"<html>not a status line</html>\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        CHUNKED + b"xyz\r\nabc\r\n",
        CHUNKED + b"3\r\nabcd\r\n",
        CHUNKED + b"fffffffffffffffffff\r\n",
    ],
)
def test_invalid_http_breaks_the_answer(data: bytes) -> None:
    for answer in (received(data), received(*(bytes([byte]) for byte in data))):
        assert answer.progress is Progress.BROKEN
        assert type(answer.failure) is StreamBroken
        assert not answer.reusable


def test_bytes_before_the_malformed_part_can_still_be_read() -> None:
    answer = received(CHUNKED + b"3\r\nabc\r\nzz\r\n")
    assert (answer.take(1 << 30), answer.progress) == (b"abc", Progress.BROKEN)


def test_the_number_of_headers_is_bounded() -> None:
    def head(count: int) -> bytes:
        return b"HTTP/1.1 204 No Content\r\n" + b"x: y\r\n" * count + b"\r\n"

    assert received(head(MAX_HEADERS)).progress is Progress.WHOLE
    assert type(received(head(MAX_HEADERS + 1)).failure) is StreamBroken


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 ", b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nx: ", CHUNKED + b"2\r\nab\r\n0\r\nx: ", CHUNKED + b"2;"],
    ids=["line ends", "version", "reason", "header", "trailer", "chunk extension"],
)
def test_an_answer_without_a_body_is_bounded(start: bytes) -> None:
    filler = b"\r\n" if start == b"" else b"a"
    answer = received(start)
    for _ in range(MAX_HEAD_BYTES // 1000 + 2):
        answer.feed(filler * (1000 // len(filler)))
    assert type(answer.failure) is StreamBroken


def test_a_large_head_is_refused_even_in_one_piece() -> None:
    answer = received(b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD_BYTES + b"\r\ncontent-length: 2\r\n\r\nok")
    assert type(answer.failure) is StreamBroken


def test_a_long_body_is_not_mistaken_for_a_head() -> None:
    answer = received(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    for _ in range(1000):
        answer.feed(b"a" * 1000)
    assert (answer.progress, len(answer.take(1 << 30))) == (Progress.WHOLE, 1_000_000)


def test_the_frames_of_many_small_chunks_do_not_add_up() -> None:
    answer = received(CHUNKED)
    for _ in range(MAX_HEAD_BYTES):
        answer.feed(b"1\r\n")
        answer.feed(b"a\r\n")
    assert (answer.progress, len(answer.take(1 << 30))) == (Progress.BODY, MAX_HEAD_BYTES)


def test_the_number_of_interim_answers_is_bounded_too() -> None:
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    final = b"HTTP/1.1 204 No Content\r\n\r\n"
    assert received(interim * MAX_INTERIM + final).progress is Progress.WHOLE
    assert type(received(interim * (MAX_INTERIM + 1) + final).failure) is StreamBroken


def test_a_bodiless_answer_ends_with_its_head_whatever_it_announces() -> None:
    answer = ResponseParser("service:443", bodiless=True)
    answer.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
    assert (answer.progress, answer.status, answer.take(1 << 30)) == (Progress.WHOLE, 200, b"")


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad", b"junk"])
@pytest.mark.parametrize("together", [True, False])
def test_bytes_after_the_answer_are_not_part_of_it_and_spoil_the_connection(extra: bytes, together: bool) -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    answer = received(whole + extra) if together else received(whole, extra)
    assert (answer.progress, answer.take(1 << 30), answer.reusable) == (Progress.WHOLE, b"ok", False)
