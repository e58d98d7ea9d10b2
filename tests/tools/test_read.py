from __future__ import annotations

import asyncio
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from zot.messages import ImageBlock
from zot.tools.base import ToolContext
from zot.tools.read import Read

from .calls import PATIENCE_S, answer, refusal


async def read(path: str, context: ToolContext, **window: int) -> str:
    return await answer(Read(), {"path": path, **window}, context)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"one\ntwo\nthree\n", "one\ntwo\nthree\n"),
        (b"one\ntwo", "one\ntwo\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo\r\n"),
        (b"\n", "\n"),
        (b"\xef\xbb\xbfone\n", "one\n"),
        ("zwölf\u2028\n".encode(), "zwölf\u2028\n"),
        (b"caf\xe9\n", "caf\ufffd\n"),
        (b"", "[the file is empty]"),
    ],
)
async def test_a_small_text_file_is_its_lines(content: bytes, text: str, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert await read("a.txt", context) == text


async def test_paths_may_be_absolute_or_lead_upward(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("here\n")
    (tmp_path / "sub").mkdir()
    assert await read(str(tmp_path / "a.txt"), context) == "here\n"
    assert await read("sub/../a.txt", context) == "here\n"


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ({"offset": 2, "limit": 2}, "two\nthree\n[lines 2-3 of 5; go on with offset=4]\n"),
        ({"limit": 1}, "one\n[lines 1-1 of 5; go on with offset=2]\n"),
        ({"offset": 4}, "four\nfive\n"),
        ({"offset": 5, "limit": 9}, "five\n"),
        ({"offset": 6}, "[the file has only 5 lines]"),
        ({"offset": 99}, "[the file has only 5 lines]"),
    ],
)
@pytest.mark.parametrize("last_line_end", ["\n", ""])
async def test_a_window_shows_its_lines_and_how_to_go_on(
    window: dict[str, int], text: str, last_line_end: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\nfive" + last_line_end)
    assert await read("a.txt", context, **window) == text


async def test_the_default_window_is_two_thousand_lines(context: ToolContext, tmp_path: Path) -> None:
    lines = [f"{n}\n" for n in range(1, 8124)]
    (tmp_path / "a.txt").write_text("".join(lines))
    expected = "".join(lines[:2000]) + "[lines 1-2000 of 8123; go on with offset=2001]\n"
    assert await read("a.txt", context) == expected


async def test_a_window_is_at_most_fifty_kibibytes_of_whole_lines(context: ToolContext, tmp_path: Path) -> None:
    lines = ["x" * 99 + "\n"] * 1000
    (tmp_path / "a.txt").write_text("".join(lines))
    expected = "".join(lines[:512]) + "[lines 1-512 of 1000; go on with offset=513]\n"
    assert await read("a.txt", context, limit=900) == expected


async def test_following_the_notes_reads_the_whole_file(context: ToolContext, tmp_path: Path) -> None:
    content = "".join(f"{n} {'é' * (n * 7919 % 300)}\n" for n in range(5000))
    (tmp_path / "a.txt").write_text(content)
    parts, offset = [], 1
    while offset:
        text, note = re.fullmatch(r"(.*?)(\[.*\]\n)?", await read("a.txt", context, offset=offset), re.S).groups()  # type: ignore[union-attr]
        parts.append(text)
        offset = int(note.rpartition("=")[2].rstrip("]\n")) if note else 0
    assert "".join(parts) == content
    assert len(parts) > 10


async def test_a_line_longer_than_the_window_is_cut_between_characters(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" + "é" * 40000 + "\nnext\n")
    expected = "x" + "é" * 25599 + "\n[line 1 is cut after 51200 bytes; lines 1-1 of 2; go on with offset=2]\n"
    assert await read("a.txt", context) == expected
    assert await read("a.txt", context, offset=2) == "next\n"


async def test_the_end_of_a_large_file_is_reached_in_little_memory(context: ToolContext, tmp_path: Path) -> None:
    path = large_file(tmp_path, hole_bytes=60_000_000)
    await read("large", context, offset=1)
    tracemalloc.start()
    try:
        text = await read("large", context, offset=202)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text == "last\n"
    assert peak_bytes < 2_000_000 < path.stat().st_size


async def test_other_work_goes_on_while_a_large_file_is_read(context: ToolContext, tmp_path: Path) -> None:
    large_file(tmp_path, hole_bytes=60_000_000)
    call = asyncio.create_task(Read().run({"path": "large", "offset": 202}, context))
    turns = 0
    async with asyncio.timeout(PATIENCE_S):
        while not call.done() and turns < 100:
            turns += 1
            await asyncio.sleep(0)
    assert turns == 100
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_the_lines_of_a_huge_file_are_not_counted(context: ToolContext, tmp_path: Path) -> None:
    path = large_file(tmp_path, hole_bytes=300_000_000)
    size = path.stat().st_size
    expected = f"{'x' * 99}\n[lines 1-1 of a file of {size} bytes; go on with offset=2]\n"
    assert await read("large", context, limit=1) == expected


def large_file(tmp_path: Path, *, hole_bytes: int) -> Path:
    """200 lines of text, a line of nothing that takes no space on disk, and a last line."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write((b"x" * 99 + b"\n") * 200)
        file.seek(hole_bytes, os.SEEK_CUR)
        file.write(b"\nlast\n")
    return path


async def test_a_binary_file_is_described_instead_of_dumped(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x7fELF\0" + b"x" * 95)
    assert await refusal(Read(), {"path": "a.bin"}, context) == "a.bin is a binary file of 100 bytes"


@pytest.mark.parametrize(
    ("magic", "mime_type"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "image/png"),
        (b"\xff\xd8\xff\xe0\0\0", "image/jpeg"),
        (b"GIF89a\0\0", "image/gif"),
        (b"GIF87a\0\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_an_image_is_known_by_its_content(
    magic: bytes, mime_type: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "picture.txt").write_bytes(magic + bytes(100_000))
    assert await Read().run({"path": "picture.txt"}, context) == (ImageBlock(mime_type, magic + bytes(100_000)),)


async def test_an_image_beyond_the_limit_is_refused(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    os.truncate(tmp_path / "a.png", 5_000_001)
    text = await refusal(Read(), {"path": "a.png"}, context)
    assert text == "a.png is an image of 5000001 bytes; at most 5000000 can be shown"
    os.truncate(tmp_path / "a.png", 5_000_000)
    [block] = await Read().run({"path": "a.png"}, context)
    assert isinstance(block, ImageBlock)
    assert len(block.data) == 5_000_000


async def test_a_directory_is_listed_in_order(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "d" / "sub").mkdir(parents=True)
    for name in (b"b.txt", b"a.txt", b".hidden", b"caf\xe9"):
        Path(os.fsdecode(os.fsencode(tmp_path / "d") + b"/" + name)).touch()
    (tmp_path / "d" / "link").symlink_to("sub")
    assert await read("d", context) == ".hidden\na.txt\nb.txt\ncaf\ufffd\nlink/\nsub/\n"
    assert await read("d", context, offset=2, limit=2) == "a.txt\nb.txt\n[entries 2-3 of 6; go on with offset=4]\n"
    assert await read("d", context, offset=7) == "[the directory has only 6 entries]"
    assert await read("d/sub", context) == "[the directory is empty]"


async def test_a_long_listing_is_cut(context: ToolContext, tmp_path: Path) -> None:
    for number in range(501):
        os.mknod(tmp_path / f"{number:03}")
    expected = "".join(f"{n:03}\n" for n in range(500)) + "[entries 1-500 of 501; go on with offset=501]\n"
    assert await read(".", context, limit=5000) == expected


async def test_what_cannot_be_read_to_an_end_is_refused(context: ToolContext, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert await refusal(Read(), {"path": "pipe"}, context) == "cannot read pipe: not a regular file"
    assert await refusal(Read(), {"path": "/dev/zero"}, context) == "cannot read /dev/zero: not a regular file"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"path": "gone.txt"}, "cannot read gone.txt: No such file or directory"),
        ({"path": "loop"}, "cannot read loop: Too many levels of symbolic links"),
        ({"path": ""}, "path must not be empty"),
        ({"path": "a\0b"}, "path must not contain a NUL character"),
        ({"path": "\ud800"}, "path cannot be a file name: surrogates not allowed"),
        ({}, "invalid arguments: Object missing required field `path`"),
        ({"path": 1}, "invalid arguments: Expected `str`, got `int` - at `$.path`"),
        ({"path": "a", "offset": 0}, "invalid arguments: Expected `int` >= 1 - at `$.offset`"),
        ({"path": "a", "limit": "5"}, "invalid arguments: Expected `int | null`, got `str` - at `$.limit`"),
        ({"path": "a", "line": 5}, "invalid arguments: Object contains unknown field `line`"),
    ],
)
async def test_what_cannot_be_done_is_explained(
    args: dict[str, Any], text: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert await refusal(Read(), args, context) == text


async def test_null_counts_as_absent(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    assert await answer(Read(), {"path": "a.txt", "offset": None, "limit": None}, context) == "one\n"


async def test_no_call_keeps_a_descriptor(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0")
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    await read(".", context)
    await refusal(Read(), {"path": "a.bin"}, context)
    await refusal(Read(), {"path": "pipe"}, context)
    assert os.listdir("/proc/self/fd") == before
