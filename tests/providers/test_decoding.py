"""Events of a service: known ones are checked, unknown ones ignored."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zot.errors import StreamBroken
from zot.providers.sse import EventReader


class _Word(msgspec.Struct, tag="word"):
    text: str


class _Number(msgspec.Struct, tag="number"):
    number: int


class _Change(msgspec.Struct, tag="change"):
    delta: _Word | _Number


READER = EventReader(msgspec.json.Decoder(_Word | _Change), kinds=("word", "change", "number"))


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"novelty","text":1}',
        b'{"type":"change","delta":{"type":"novelty"}}',
        b'{"type":"novelty"}',
        b'{"text":"no type at all"}',
    ],
)
def test_an_event_of_an_unknown_kind_is_ignored(payload: bytes) -> None:
    assert READER.decode_with_care(payload) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not json",
        b'{"type":"word"',
        b'{"type":"word"}',
        b'{"type":"word","text":1}',
        b'{"type":"change","delta":{"type":"number","number":"x"}}',
        b'{"type":"change","delta":7}',
        b'["word"]',
        b"[" * 100_000,
        b'{"type":"novelty","x":' + b"[" * 100_000,
    ],
)
def test_an_event_that_contradicts_itself_breaks_the_stream(payload: bytes) -> None:
    with pytest.raises(StreamBroken, match="cannot be read"):
        READER.decode_with_care(payload)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"\ude00", "\ufffd"),
        (rb"a\uD83Db", "a\ufffdb"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"),
        (rb"\ud83d\u0041", "\ufffdA"),
        (rb"\ud83d\n", "\ufffd\n"),
        (rb"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (rb"\\\ud83d", "\\\ufffd"),
        (b"\xff", "\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
    ],
)
def test_a_lone_surrogate_costs_one_character(written: bytes, read: str) -> None:
    assert READER.decode_with_care(b'{"type":"word","text":"' + written + b'"}') == _Word(read)


@given(st.text(st.characters(), max_size=8).map(json.dumps))
def test_any_text_a_vendor_may_escape_can_be_read(text: str) -> None:
    expected = json.loads(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert READER.decode_with_care(b'{"type":"word","text":%s}' % text.encode()) == _Word(expected)


@given(st.text(st.one_of(st.characters(categories=["Cs"]), st.sampled_from("\\u\ud83d\ude00")), max_size=8))
def test_any_row_of_surrogates_can_be_read(text: str) -> None:
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    payload = b'{"type":"word","text":%s}' % json.dumps(text).encode()
    assert READER.decode_with_care(payload) == _Word(expected)
