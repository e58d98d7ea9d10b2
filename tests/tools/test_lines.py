from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zot.tools.text_encoding import count_ends, find

CODECS = st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "utf-32-le"])
#: In UTF-16 the halves of these look like line ends, where they meet.
TEXTS = st.text("a\n\u0a00\u000a\u0100\u0a0a", max_size=30)


@given(TEXTS, CODECS)
def test_line_ends_in_bytes_are_those_of_their_text(text: str, codec: str) -> None:
    assert count_ends(text.encode(codec), "\n".encode(codec)) == text.count("\n")


def test_a_match_begins_at_a_multiple_of_the_unit() -> None:
    data = b"x\n\0x\n\0x\n\0x"
    assert find(data, b"\n\0", 2) == 4
    assert find(data, b"\n\0", 2, 5) == -1
