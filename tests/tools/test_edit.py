from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from zot.tools.base import MAX_HASHED_BYTES, ReadState, ToolContext
from zot.tools.edit import MAX_FILE_BYTES, Edit
from zot.tools.read import Read
from zot.tools.write import Write

from .calls import answer, refusal
from .meddled import Meddled


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
        "@@ -7,7 +7,7 @@\n line 7\n line 8\n line 9\n-line 10\n+LINE TEN\n line 11\n line 12\n line 13\n"
    )
    assert twenty.read_text() == before.replace("line 10", "LINE TEN")


async def test_several_edits_are_made_together_whatever_their_order(context: ToolContext, twenty: Path) -> None:
    edits = call(("line 20", "last"), ("line 9\n", ""), ("line 2\n", "line 2\nline 2b\n"))
    assert await answer(Edit(), edits, context) == (
        "@@ -1,12 +1,12 @@\n line 1\n line 2\n+line 2b\n line 3\n line 4\n line 5\n"
        " line 6\n line 7\n line 8\n-line 9\n line 10\n line 11\n line 12\n"
        "@@ -17,4 +17,4 @@\n line 17\n line 18\n line 19\n-line 20\n+last\n"
    )
    lines = ["line 1", "line 2", "line 2b", *(f"line {n}" for n in range(3, 20) if n != 9), "last"]
    assert twenty.read_text() == "".join(f"{line}\n" for line in lines)


async def test_all_edits_are_checked_against_the_original(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b\n")
    assert await answer(Edit(), call(("a", "b"), ("b", "a")), context) == "@@ -1 +1 @@\n-a b\n+b a\n"
    assert (tmp_path / "a.txt").read_text() == "b a\n"


async def test_edits_that_touch_are_not_an_overlap(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert (
        await answer(Edit(), call(("one\n", "1\n"), ("two\n", "2\n")), context)
        == "@@ -1,2 +1,2 @@\n-one\n-two\n+1\n+2\n"
    )
    assert (tmp_path / "a.txt").read_text() == "1\n2\n"


ENCODINGS = {
    "UTF-8": "zwölf\nneedle 東京\nend\n".encode(),
    "UTF-8 with BOM": b"\xef\xbb\xbfneedle\nend\n",
    "UTF-8 with invalid bytes": "東京\nneedle\n".encode() + b"\xff\n",
    "CRLF": b"one\r\nneedle\r\nend\r\n",
    "mixed line ends": b"one\r\nneedle\nthree\r\r\nfour\rfive\n",
    "no final newline": b"one\nneedle",
    "latin-1": "caf\xe9\nneedle \xff\nr\xe9sum\xe9\n".encode("latin-1"),
    "GB18030": "中文\nneedle 中\n".encode("gb18030"),
    "Shift JIS": "表示\nneedle ソ\n".encode("shift_jis"),
    "NUL and control characters": b"\0\x01\x0b\x0c\x1c\nneedle\n\x85\n",
}
WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


@pytest.mark.parametrize("content", ENCODINGS.values(), ids=ENCODINGS.keys())
async def test_bytes_outside_the_match_stay_identical(content: bytes, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    await answer(Edit(), call(("needle", "thread")), context)
    assert (tmp_path / "a.txt").read_bytes() == content.replace(b"needle", b"thread")


@pytest.mark.parametrize("text", ["\ufeffzwölf\r\nneedle 東京 😀\r\nend", "\ufeffa\nneedle\r\n\u0a00\u0100\n"])
@pytest.mark.parametrize("codec", WIDE)
async def test_bytes_outside_the_match_stay_identical_in_wide_encodings(
    text: str, codec: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(codec))
    await answer(Edit(), call(("needle", "thread é\nand more")), context)
    expected = text.replace("needle", "thread é\r\nand more")
    assert (tmp_path / "a.txt").read_bytes() == expected.encode(codec)


@pytest.mark.parametrize("codec", WIDE[:2])
async def test_utf_16_is_edited_without_its_mark_too(codec: str, context: ToolContext, tmp_path: Path) -> None:
    text = "one\nneedle\nthree\n"
    (tmp_path / "a.txt").write_bytes(text.encode(codec))
    assert (
        await answer(Edit(), call(("one\nneedle", "one\nthread")), context)
        == "@@ -1,3 +1,3 @@\n one\n-needle\n+thread\n three\n"
    )
    assert (tmp_path / "a.txt").read_bytes() == text.replace("needle", "thread").encode(codec)


async def test_in_utf_16_only_whole_characters_match(context: ToolContext, tmp_path: Path) -> None:
    # The bytes of U+6100 U+0061 hold those of "a" at an odd place, too.
    content = "\ufeffx\u6100\u0061\n\u0a00\u0a00\n".encode("utf-16-be")
    (tmp_path / "a.txt").write_bytes(content)
    assert await answer(Edit(), call(("a", "b")), context) == "@@ -1,2 +1,2 @@\n-x\u6100a\n+x\u6100b\n \u0a00\u0a00\n"
    assert (tmp_path / "a.txt").read_bytes() == "\ufeffx\u6100b\n\u0a00\u0a00\n".encode("utf-16-be")


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"caf\xe9 \xfc\n", "é", "è ", b"caf\xe8  \xfc\n"),
        (b"\x93q\x94\n", "“q”", "„q“", b"\x84q\x93\n"),
        # The model saw the first part, which is UTF-8; far below there are other bytes.
        ("é\n".encode() + b"\xe9\xe8\xe7\n" * 9, "é\n", "è\n", "è\n".encode() + b"\xe9\xe8\xe7\n" * 9),
    ],
)
async def test_text_is_looked_for_and_written_in_the_encoding_of_the_file(
    content: bytes, old: str, new: str, expected: bytes, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    await answer(Edit(), call((old, new)), context)
    assert (tmp_path / "a.txt").read_bytes() == expected


async def test_text_that_the_encoding_cannot_hold_is_refused(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    assert await refusal(Edit(), call(("caf", "€")), context) == (
        "edit 1: newText has '€' (U+20AC), which cannot be written in Latin-1, as the file seems to be"
    )
    assert await refusal(Edit(), call(("€", "$")), context) == (
        "edit 1: oldText not found; the file seems to be Latin-1, which has no '€' (U+20AC)"
    )
    assert (tmp_path / "a.txt").read_bytes() == b"caf\xe9\n"


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
        # What both texts have in common keeps its own line ends.
        (b"a\r\nb\nc\r\nd\n", "a\nb\nc\nd\n", "a\nB\nc\nd\n", b"a\r\nB\nc\r\nd\n"),
        (b"a\r\nb\nc\n", "a\nb\n", "a\nnew\nb\n", b"a\r\nnew\r\nb\nc\n"),
        (b"a\nb\r\nc\r\n", "b\nc", "c", b"a\nc\r\n"),
        (b"a\r\nb\r\n", "a\n", "new\na\n", b"new\r\na\r\nb\r\n"),
        (b"a\r\nb\n", "b\n", "b\nnew\n", b"a\r\nb\nnew\n"),
        (b"a\nb\r\nc\r\n", "a\nb\nc\n", "c\nb\na\n", b"c\nb\na\n"),
        (b"xa\r\nby\nz\n", "a\nb", "a\nB", b"xa\r\nBy\nz\n"),
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
        (
            [("Line 9\n", "x")],
            "edit 1: oldText not found; it would match line 9 if case were ignored. The file has there:\nline 9",
        ),
        (
            [("LINE   11\n\tLine12", "x")],
            "edit 1: oldText not found; it would match line 11 if whitespace and case were ignored. "
            "The file has there:\nline 11\nline 12",
        ),
        (
            [("line 4\n  line 5\nline six\nline 7\n", "x")],
            "edit 1: oldText not found; the closest place begins at line 4, where line 6 differs.\n"
            "The file has: line 6\noldText has:  line six",
        ),
        (
            [("ine 19\nline 20\nline 21\nlast line", "x")],
            "edit 1: oldText not found; the closest place begins at line 19, where line 21 differs.\n"
            "The file has: nothing\noldText has:  line 21",
        ),
        (
            [("header\nline 1\nline 2\n", "x")],
            "edit 1: oldText not found; the closest place begins at line 1, where line 1 differs.\n"
            "The file has: nothing\noldText has:  header",
        ),
        (
            [("line 1\n\nline 3\n", "x")],
            "edit 1: oldText not found; the closest place begins at line 1, where line 2 differs.\n"
            "The file has: line 2\noldText has:  nothing",
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


async def test_an_edit_with_other_line_ends_than_the_file_is_shown_the_place(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert await refusal(Edit(), call(("one\r\ntwo", "x")), context) == (
        "edit 1: oldText not found; it would match line 1 if line ends were ignored. The file has there:\none\ntwo"
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (call(("a", "b"), path="gone"), "cannot read gone: No such file or directory"),
        (call(("a", "b"), path="."), "cannot edit .: it is a directory"),
        ({"path": "a.txt"}, "invalid arguments: edits is missing"),
        (
            {"path": "a.txt", "edits": [{"oldText": "a"}]},
            "invalid arguments: edits[0].newText is missing",
        ),
        (
            {"path": "a.txt", "edits": [{"old_text": "a", "newText": "b"}]},
            "invalid arguments: edits[0].old_text is unknown",
        ),
        ({"path": "a.txt", "edits": "[]"}, "invalid arguments: edits must be a list, not a string"),
    ],
)
async def test_errors_are_explained(args: dict[str, Any], text: str, context: ToolContext) -> None:
    assert await refusal(Edit(), args, context) == text


@pytest.mark.parametrize(
    ("shown", "old", "new"),
    [(b"caf\xe9\n", "café", "cafè"), (b"\x93q\x94\n", "“q”", "„q“"), (b"\xe9\xff\n", "éÿ", "x")],
)
async def test_text_of_a_file_with_mixed_bytes_is_found_as_read_shows_it(
    shown: bytes, old: str, new: str, context: ToolContext, tmp_path: Path
) -> None:
    rest = "東京\n".encode() * 100
    (tmp_path / "a.txt").write_bytes(shown + rest)
    assert old in await answer(Read(), {"path": "a.txt", "limit": 1}, context)
    await answer(Edit(), call((old, new)), context)
    codec = "cp1252" if old == "“q”" else "latin-1"
    assert (tmp_path / "a.txt").read_bytes() == shown.replace(old.encode(codec), new.encode(codec)) + rest


async def test_an_edit_that_changes_nothing_says_so(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\r\n")
    assert await answer(Edit(), call(("a\nb", "a\r\nb")), context) == "[that is what the file already had]\n"


MIB = 1024 * 1024
LARGE = {
    "mixed line ends": (b"\n\r\n" * (2 * MIB) + b"needle\nb\n", "\nneedle\n", "x\n"),
    "UTF-16 whose halves look like line ends": (
        "\ufeff".encode("utf-16-le") + b"\0\n" * (2 * MIB) + "needle\n".encode("utf-16-le"), "needle", "x\n",
    ),
    "a large replacement": (b"needle\n", "needle\n", "abc\n" * MIB),
}  # fmt: skip


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE.keys())
async def test_a_large_edit_takes_little_time(
    large: tuple[bytes, str, str], context: ToolContext, tmp_path: Path
) -> None:
    content, old, new = large
    (tmp_path / "a.txt").write_bytes(content)
    began = time.process_time()
    await answer(Edit(), call((old, new)), context)
    assert time.process_time() - began < 2


async def test_an_abort_takes_effect_between_many_edits(context: ToolContext, tmp_path: Path) -> None:
    content = b"".join(b"line %d\r\nother %d\n" % (n, n) for n in range(60_000))
    (tmp_path / "a.txt").write_bytes(content)
    pairs = [(f"line {n}\nother {n}\n", "x\n") for n in range(20_000, 40_000)]
    task = asyncio.get_running_loop().create_task(Edit().run(call(*pairs), context))
    for _ in range(5):
        await asyncio.sleep(0)
    began = time.process_time()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.process_time() - began < 1
    assert (tmp_path / "a.txt").read_bytes() == content


STALE = "a.txt has changed since you last saw it; read it again before you edit it"


async def test_a_file_that_changed_since_it_was_read_is_not_edited(context: ToolContext, twenty: Path) -> None:
    seen = ReadState()
    read, edit = Read(seen=seen), Edit(seen=seen)
    await answer(read, {"path": "a.txt", "limit": 1}, context)
    twenty.write_text(twenty.read_text().replace("line 20", "theirs!"))
    before = twenty.read_text()
    assert await refusal(edit, call(("line 3\n", "mine\n")), context) == STALE
    assert await refusal(edit, call(("line 3\n", "mine\n"), path=str(twenty)), context) == STALE.replace(
        "a.txt", str(twenty)
    )
    assert twenty.read_text() == before
    await answer(read, {"path": "a.txt"}, context)
    await answer(edit, call(("line 3\n", "mine\n")), context)
    assert twenty.read_text() == before.replace("line 3\n", "mine\n")


async def test_zot_s_own_changes_are_not_foreign(context: ToolContext, twenty: Path) -> None:
    seen = ReadState()
    await answer(Read(seen=seen), {"path": "a.txt"}, context)
    await answer(Edit(seen=seen), call(("line 3\n", "three\n")), context)
    await answer(Edit(seen=seen), call(("three\n", "3\n")), context)
    await answer(Write(seen=seen), {"path": "a.txt", "content": "all new\n"}, context)
    await answer(Edit(seen=seen), call(("all", "not so")), context)
    assert twenty.read_text() == "not so new\n"


async def test_the_same_content_written_again_is_not_a_change(context: ToolContext, twenty: Path) -> None:
    seen = ReadState()
    await answer(Read(seen=seen), {"path": "a.txt"}, context)
    content = twenty.read_text()
    twenty.unlink()
    twenty.write_text(content)
    os.utime(twenty, ns=(1, 1))
    await answer(Edit(seen=seen), call(("line 3\n", "three\n")), context)
    assert twenty.read_text() == content.replace("line 3\n", "three\n")


async def test_a_file_never_read_is_edited_and_still_not_seen(context: ToolContext, twenty: Path) -> None:
    seen = ReadState()
    await answer(Edit(seen=seen), call(("line 3\n", "three\n")), context)
    twenty.write_text("formatted\n")
    await answer(Edit(seen=seen), call(("formatted", "again")), context)
    assert twenty.read_text() == "again\n"


async def test_a_large_file_is_known_by_its_size_and_time(context: ToolContext, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"needle\n" + b"x" * MAX_HASHED_BYTES)
    seen = ReadState()
    await answer(Read(seen=seen), {"path": "a.txt", "limit": 1}, context)
    await answer(Edit(seen=seen), call(("needle", "thread")), context)
    await answer(Edit(seen=seen), call(("thread", "cotton")), context)
    os.utime(path, ns=(1, 1))
    assert await refusal(Edit(seen=seen), call(("cotton", "wool")), context) == STALE


async def test_a_large_file_that_was_changed_and_set_back_in_time_is_noticed(
    context: ToolContext, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"needle\n" + b"x" * MAX_HASHED_BYTES)
    seen = ReadState()
    await answer(Read(seen=seen), {"path": "a.txt", "limit": 1}, context)
    about = path.stat()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"theirs")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert await refusal(Edit(seen=seen), call(("needle", "thread")), context) == STALE


async def test_a_file_in_a_directory_that_was_put_in_the_place_of_another_is_not_the_one_seen(
    context: ToolContext, tmp_path: Path
) -> None:
    for name in ("d", "e"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"needle of {name}\n")
    seen = ReadState()
    await answer(Read(seen=seen), {"path": "d/a.txt"}, context)
    (tmp_path / "d").rename(tmp_path / "old")
    (tmp_path / "e").rename(tmp_path / "d")
    edit = call(("needle", "thread"), path="d/a.txt")
    assert await refusal(Edit(seen=seen), edit, context) == STALE.replace("a.txt", "d/a.txt")


async def test_a_change_between_reading_and_writing_is_not_lost(context: ToolContext, twenty: Path) -> None:
    for meddle, left in ((lambda: twenty.write_text("theirs\n"), ["a.txt"]), (twenty.unlink, [])):
        twenty.write_text("line 3\n")
        assert await refusal(Edit(Meddled(meddle)), call(("line 3\n", "three\n")), context) == (
            "a.txt was changed by another program at the same time; read it again"
        )
        assert os.listdir(twenty.parent) == left


async def test_a_file_too_large_for_memory_is_refused(context: ToolContext, tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert await refusal(Edit(), call(("a", "b")), context) == (
        f"cannot edit a.txt: it has {MAX_FILE_BYTES + 1} bytes and the limit is {MAX_FILE_BYTES}; "
        "change it with bash, for example with sed"
    )


@pytest.mark.parametrize("last", ["x = 1\n", "x = 1\r\n"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
async def test_a_miss_in_a_large_repetitive_file_is_explained_at_once(
    line_end: str, last: str, context: ToolContext, tmp_path: Path
) -> None:
    # A search that restarts after every matching line would take hours.
    (tmp_path / "a.txt").write_text(f"x = 1{line_end}" * 200_000 + last, newline="")
    began = time.process_time()
    text = await refusal(Edit(), call(("x = 1\n" * 20_000 + "y", "z")), context)
    assert text == "edit 1: oldText not found; the nearest line is 1:\nx = 1"
    assert time.process_time() - began < 5


async def test_a_miss_in_a_large_file_of_many_lines_is_explained_at_once(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"v{n} = {n}\n" for n in range(100_000)))
    began = time.process_time()
    text = await refusal(Edit(), call(("v99 == 99", "z")), context)
    assert text == "edit 1: oldText not found; the nearest line is 100:\nv99 = 99"
    assert time.process_time() - began < 5


async def test_a_note_about_the_file_follows_the_diff(context: ToolContext, twenty: Path) -> None:
    os.link(twenty, twenty.parent / "other")
    text = await answer(Edit(), call(("line 20", "last")), context)
    assert text == (
        "@@ -17,4 +17,4 @@\n line 17\n line 18\n line 19\n-line 20\n+last\n"
        "[it had 1 other hard links, which keep the old content]\n"
    )


async def test_mode_and_link_survive_an_edit(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "real.sh").write_text("echo old\n")
    (tmp_path / "real.sh").chmod(0o750)
    (tmp_path / "a.txt").symlink_to("real.sh")
    assert await answer(Edit(), call(("old", "new")), context) == "@@ -1 +1 @@\n-echo old\n+echo new\n"
    assert (tmp_path / "a.txt").is_symlink()
    assert (tmp_path / "real.sh").read_text() == "echo new\n"
    assert stat.S_IMODE((tmp_path / "real.sh").stat().st_mode) == 0o750
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "real.sh"]


async def test_the_diff_of_a_long_line_is_short(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("needle" + "x" * 1_000_000 + "\n")
    assert await answer(Edit(), call(("needle", "thread")), context) == (
        f"@@ -1 +1 @@\n-needle{'x' * 494}...\n+thread{'x' * 494}...\n"
    )


async def test_the_diff_of_many_lines_keeps_its_beginning_and_end(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("needle\n")
    new = [f"{n}\n" for n in range(3000)]
    rows = ["@@ -1 +1,3000 @@\n", "-needle\n", *(f"+{line}" for line in new)]
    left = rows[1000:-1000]
    assert await answer(Edit(), call(("needle\n", "".join(new))), context) == "".join(
        [*rows[:1000], f"[... {sum(map(len, left))} bytes, {len(left)} lines left out ...]\n", *rows[-1000:]]
    )
