from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zot.tools.text_encoding import LATIN_1, UTF_8, Encoding, from_units, to_units

WIDE = [
    Encoding("UTF-16 LE", "utf-16-le", unit=2),
    Encoding("UTF-16 BE", "utf-16-be", unit=2),
    Encoding("UTF-32 LE", "utf-32-le", unit=4),
    Encoding("UTF-32 BE", "utf-32-be", unit=4),
]


@pytest.mark.parametrize("encoding", [UTF_8, LATIN_1, *WIDE[:2]])
@given(data=st.binary(max_size=20))
def test_bytes_of_any_kind_round_trip(data: bytes, encoding: Encoding) -> None:
    whole = data[: len(data) // encoding.unit * encoding.unit]
    units = to_units(data, encoding)
    assert len(units) == len(whole) // encoding.unit
    assert from_units(units, encoding) == whole


@pytest.mark.parametrize("encoding", [UTF_8, *WIDE])
@given(
    text=st.text("a\n\r\u0a00\u0100\u0a0a\ufeff😀", max_size=20),
    wanted=st.text("a\n\u0a00\u0a0a", min_size=1, max_size=2),
)
def test_a_match_in_units_equals_a_match_in_the_text(text: str, wanted: str, encoding: Encoding) -> None:
    units = to_units(encoding.encode(text), encoding)
    assert units.count(to_units(encoding.encode(wanted), encoding)) == text.count(wanted)
    assert encoding.decode(from_units(units, encoding)) == text


def test_an_invalid_character_takes_one_unit_too() -> None:
    assert to_units(b"a\0\0\0\xff\xff\xff\xff\0\xd8\0\0b\0\0\0c", WIDE[2]) == "a\ufffd\ufffdb"
