from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from zot.tools.base import ToolContext
from zot.tools.edit import Edit

from .calls import answer, refusal


def call(*pairs: tuple[str, str], path: str = "a.txt") -> dict[str, Any]:
    return {"path": path, "edits": [{"oldText": old, "newText": new} for old, new in pairs]}


@pytest.fixture
def twenty(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1, 21)))
    return path


async def test_one_line_is_changed_and_shown_with_its_neighbours(context: ToolContext, twenty: Path) -> None:
    before = twenty.read_text()
    assert await answer(Edit(), call(("line 10", "LINE TEN")), context) == (
        " line 7\n line 8\n line 9\n-line 10\n+LINE TEN\n line 11\n line 12\n line 13\n...\n"
    )
    assert twenty.read_text() == before.replace("line 10", "LINE TEN")


async def test_several_edits_are_made_together_whatever_their_order(context: ToolContext, twenty: Path) -> None:
    edits = call(("line 20", "last"), ("line 9\n", ""), ("line 2\n", "line 2\nline 2b\n"))
    assert await answer(Edit(), edits, context) == (
        " line 1\n line 2\n+line 2b\n line 3\n line 4\n line 5\n"
        " line 6\n line 7\n line 8\n-line 9\n line 10\n line 11\n line 12\n...\n"
        " line 17\n line 18\n line 19\n-line 20\n+last\n"
    )
    lines = ["line 1", "line 2", "line 2b", *(f"line {n}" for n in range(3, 20) if n != 9), "last"]
    assert twenty.read_text() == "".join(f"{line}\n" for line in lines)


async def test_all_edits_are_checked_against_the_original(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b\n")
    assert await answer(Edit(), call(("a", "b"), ("b", "a")), context) == "-a b\n+b a\n"
    assert (tmp_path / "a.txt").read_text() == "b a\n"


async def test_edits_that_touch_are_not_an_overlap(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert await answer(Edit(), call(("one\n", "1\n"), ("two\n", "2\n")), context) == "-one\n-two\n+1\n+2\n"
    assert (tmp_path / "a.txt").read_text() == "1\n2\n"


ENCODINGS = {
    "UTF-8": "zwölf\nneedle 東京\nend\n".encode(),
    "UTF-8 with BOM": b"\xef\xbb\xbfneedle\nend\n",
    "CRLF": b"one\r\nneedle\r\nend\r\n",
    "mixed line ends": b"one\r\nneedle\nthree\r\r\nfour\rfive\n",
    "no final newline": b"one\nneedle",
    "latin-1": "caf\xe9\nneedle \xff\nr\xe9sum\xe9\n".encode("latin-1"),
    "GB18030": "中文\nneedle 中\n".encode("gb18030"),
    "Shift JIS": "表示\nneedle ソ\n".encode("shift_jis"),
    "NUL and control characters": b"\0\x01\x0b\x0c\x1c\nneedle\n\x85\n",
}


@pytest.mark.parametrize("content", ENCODINGS.values(), ids=ENCODINGS.keys())
async def test_bytes_outside_the_match_stay_identical(content: bytes, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    await answer(Edit(), call(("needle", "thread")), context)
    assert (tmp_path / "a.txt").read_bytes() == content.replace(b"needle", b"thread")


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\ny\n", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb", "b", "x\ny", b"a\r\nx\r\ny"),
        (b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n"),
        (b"a\nb\nc\r\n", "a\nb", "x\ny", b"x\ny\nc\r\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\nb", b"x\r\nb\nc\n"),
        (b"a\r\nb\r\nc\r\n", "\nb\n", "\n", b"a\r\nc\r\n"),
        (b"a\nb\n", "b", "x\ny", b"a\nx\ny\n"),
        (b"one line", "line", "two\nlines", b"one two\nlines"),
    ],
)
async def test_line_ends_follow_the_lines_they_replace(
    content: bytes, old: str, new: str, expected: bytes, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    await answer(Edit(), call((old, new)), context)
    assert (tmp_path / "a.txt").read_bytes() == expected


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "at least one edit is required"),
        ([("", "x")], "edit 1: oldText must not be empty"),
        ([("line 3\n", "x"), ("line 5", "line 5")], "edit 2: oldText equals newText"),
        (
            [("line 1", "x")],
            "edit 1: oldText matches more than 10 times (lines 1, 10, 11, 12, 13, 14, 15, 16, 17, 18, ...); "
            "give more of the text around one of them",
        ),
        (
            [("2\n", "x")],
            "edit 1: oldText matches 2 times (lines 2, 12); give more of the text around one of them",
        ),
        (
            [("line 3\nline 4", "x"), ("line 9", "y"), ("4\nline 5\n", "z")],
            "edits 1 and 3 overlap; merge them into one edit",
        ),
        (
            [("line  7\n  line 8", "x")],
            "edit 1: oldText not found; it would match line 7 if whitespace were ignored. The file has there:\n"
            "line 7\nline 8",
        ),
        ([("lime 13", "x")], "edit 1: oldText not found; the nearest line is 13:\nline 13"),
        ([("something else", "x")], "edit 1: oldText not found; no line of the file is like it"),
        ([("\n\n\n", "x")], "edit 1: oldText not found; it is only whitespace"),
        ([("line 3", "\ud800")], "invalid arguments: edit 1 newText has a lone surrogate at character 0"),
    ],
)
async def test_a_refused_edit_says_why_and_changes_nothing(
    pairs: list[tuple[str, str]], text: str, context: ToolContext, twenty: Path
) -> None:
    before = twenty.read_bytes()
    assert await refusal(Edit(), call(*pairs), context) == text
    assert twenty.read_bytes() == before
    assert os.listdir(twenty.parent) == ["a.txt"]


async def test_one_edit_that_fails_stops_all_of_them(context: ToolContext, twenty: Path) -> None:
    before = twenty.read_bytes()
    assert await refusal(Edit(), call(("line 3\n", "x\n"), ("gone", "y")), context) == (
        "edit 2: oldText not found; no line of the file is like it"
    )
    assert twenty.read_bytes() == before


async def test_matches_that_overlap_each_other_are_several(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aaa\n")
    assert await refusal(Edit(), call(("aa", "b")), context) == (
        "edit 1: oldText matches 2 times (lines 1, 1); give more of the text around one of them"
    )


async def test_a_text_with_other_line_ends_than_the_file_is_shown_the_place(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert await refusal(Edit(), call(("one\r\ntwo", "x")), context) == (
        "edit 1: oldText not found; it would match line 1 if whitespace were ignored. The file has there:\none\ntwo"
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (call(("a", "b"), path="gone"), "cannot read gone: No such file or directory"),
        (call(("a", "b"), path="."), "cannot edit .: it is a directory"),
        ({"path": "a.txt"}, "invalid arguments: Object missing required field `edits`"),
        (
            {"path": "a.txt", "edits": [{"oldText": "a"}]},
            "invalid arguments: Object missing required field `newText` - at `$.edits[0]`",
        ),
        (
            {"path": "a.txt", "edits": [{"old_text": "a", "newText": "b"}]},
            "invalid arguments: Object contains unknown field `old_text` - at `$.edits[0]`",
        ),
        ({"path": "a.txt", "edits": "[]"}, "invalid arguments: Expected `array`, got `str` - at `$.edits`"),
    ],
)
async def test_what_cannot_be_done_is_explained(args: dict[str, Any], text: str, context: ToolContext) -> None:
    assert await refusal(Edit(), args, context) == text


async def test_mode_and_link_survive_an_edit(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "real.sh").write_text("echo old\n")
    (tmp_path / "real.sh").chmod(0o750)
    (tmp_path / "a.txt").symlink_to("real.sh")
    assert await answer(Edit(), call(("old", "new")), context) == "-echo old\n+echo new\n"
    assert (tmp_path / "a.txt").is_symlink()
    assert (tmp_path / "real.sh").read_text() == "echo new\n"
    assert stat.S_IMODE((tmp_path / "real.sh").stat().st_mode) == 0o750
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "real.sh"]


async def test_the_diff_of_a_long_line_is_short(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("needle" + "x" * 1_000_000 + "\n")
    assert await answer(Edit(), call(("needle", "thread")), context) == (
        f"-needle{'x' * 494}...\n+thread{'x' * 494}...\n"
    )


async def test_the_diff_of_many_lines_keeps_its_beginning_and_end(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("needle\n")
    new = [f"{n}\n" for n in range(3000)]
    rows = ["-needle\n", *(f"+{line}" for line in new)]
    left = rows[1000:-1000]
    assert await answer(Edit(), call(("needle\n", "".join(new))), context) == "".join(
        [*rows[:1000], f"[... {sum(map(len, left))} bytes, {len(left)} lines left out ...]\n", *rows[-1000:]]
    )
