from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zot.tools.lines import count_ends, find, line_end, line_start, rfind, split

CODECS = st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "utf-32-le"])
#: In UTF-16 the halves of these look like line ends, where they meet.
TEXTS = st.text("a\n\u0a00\u000a\u0100\u0a0a", max_size=30)


@given(TEXTS, CODECS)
def test_lines_of_bytes_are_the_lines_of_their_text(text: str, codec: str) -> None:
    data, lf = text.encode(codec), "\n".encode(codec)
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    assert [line.decode(codec) for line in split(data, lf)] == [line for line in lines if line]
    assert count_ends(data, lf) == text.count("\n")


@given(TEXTS, CODECS, st.data())
def test_the_ends_of_a_line_are_found_from_anywhere_in_it(text: str, codec: str, data: st.DataObject) -> None:
    lf = "\n".encode(codec)
    at = data.draw(st.integers(0, len(text)))
    position = len(text[:at].encode(codec))
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at) + 1 or len(text)
    assert line_start(text.encode(codec), lf, position) == len(text[:start].encode(codec))
    assert line_end(text.encode(codec), lf, position) == len(text[:end].encode(codec))


def test_what_is_found_stands_at_a_multiple_of_the_unit() -> None:
    data = b"x\n\0x\n\0x\n\0x"
    assert find(data, b"\n\0", 2) == 4
    assert rfind(data, b"\n\0", 2, 0, len(data)) == 4
    assert find(data, b"\n\0", 2, 5) == -1
    assert rfind(data, b"\n\0", 2, 0, 4) == -1
