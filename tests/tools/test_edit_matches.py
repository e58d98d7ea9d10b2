"""Matches of an edit, and hints for near misses."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from zot.tools.diff import apply
from zot.tools.edit import FileText
from zot.tools.text_encoding import UTF_8, Encoding

UTF_16 = Encoding("UTF-16 LE", "utf-16-le", unit=2)
ENCODINGS = st.sampled_from([UTF_8, UTF_16])


@st.composite
def files(draw: st.DrawFn) -> str:
    """A text with line ends of both kinds."""
    lines = draw(st.lists(st.text("ab\u0a00\u0100", max_size=3), max_size=8))
    ends = draw(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(lines), max_size=len(lines)))
    return "".join(line + end for line, end in zip(lines, ends, strict=True)) + draw(st.sampled_from(["", "ab"]))


@given(files(), ENCODINGS, st.text("ab\n", max_size=6), st.data())
def test_a_change_replaces_the_text_and_nothing_else(
    text: str, encoding: Encoding, new: str, data: st.DataObject
) -> None:
    plain = text.replace("\r\n", "\n")
    start = data.draw(st.integers(0, len(plain)))
    old = plain[start : data.draw(st.integers(start, len(plain)))]
    assume(old and old != new)
    file = FileText(encoding.encode(text), encoding)
    found = list(file.matches(old))
    assert [plain_position(file, match.start) for match in found] == places(plain, old)
    for match in found:
        change = file.change(match, old, new)
        at = plain_position(file, match.start)
        assert match.start <= change.start <= change.end <= match.end
        changed = encoding.decode(apply(file.data, [change]))
        assert changed.replace("\r\n", "\n") == plain[:at] + new + plain[at + len(old) :]


@given(files(), ENCODINGS)
def test_lines_in_common_keep_their_bytes(text: str, encoding: Encoding) -> None:
    plain = text.replace("\r\n", "\n")
    assume(plain)
    file = FileText(encoding.encode(text), encoding)
    [match] = file.matches(plain)
    change = file.change(match, plain, f"new\n{plain}")
    assert (change.start, change.end) == (0, 0)
    assert encoding.decode(change.new).rstrip("\r\n") == "new"


def plain_position(file: FileText, position: int) -> int:
    return len(file.encoding.decode(file.data[:position]).replace("\r\n", "\n"))


def places(text: str, wanted: str) -> list[int]:
    return [at for at in range(len(text)) if text.startswith(wanted, at)]
