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
from zot.tools.file_access import LockedPaths, UnrestrictedPaths
from zot.tools.read import Read

from .calls import PATIENCE_S, answer, refusal
from .pictures import KINDS, image, whole


async def read(path: str, context: ToolContext, **window: int) -> str:
    return await answer(Read(), {"path": path, **window}, context)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"one\ntwo\nthree\n", "one\ntwo\nthree\n"),
        (b"one\ntwo", "one\ntwo\n"),
        (b"\n", "\n"),
        ("zwölf\u2028\n".encode(), "zwölf\u2028\n"),
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
        ({"offset": 2, "limit": 2}, "two\nthree\n[lines 2-3 of 5; continue with offset=4]\n"),
        ({"limit": 1}, "one\n[lines 1-1 of 5; continue with offset=2]\n"),
        ({"offset": 4}, "four\nfive\n"),
        ({"offset": 5, "limit": 9}, "five\n"),
        ({"offset": 6}, "[the file has only 5 lines]"),
        ({"offset": 99}, "[the file has only 5 lines]"),
    ],
)
@pytest.mark.parametrize("last_line_end", ["\n", ""])
async def test_a_window_shows_its_lines_and_how_to_continue(
    window: dict[str, int], text: str, last_line_end: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\nfive" + last_line_end)
    assert await read("a.txt", context, **window) == text


async def test_the_default_window_is_two_thousand_lines(context: ToolContext, tmp_path: Path) -> None:
    lines = [f"{n}\n" for n in range(1, 8124)]
    (tmp_path / "a.txt").write_text("".join(lines))
    expected = "".join(lines[:2000]) + "[lines 1-2000 of 8123; continue with offset=2001]\n"
    assert await read("a.txt", context) == expected


async def test_a_window_is_at_most_fifty_kibibytes_of_whole_lines(context: ToolContext, tmp_path: Path) -> None:
    lines = ["x" * 99 + "\n"] * 1000
    (tmp_path / "a.txt").write_text("".join(lines))
    expected = "".join(lines[:512]) + "[lines 1-512 of 1000; continue with offset=513]\n"
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


KEPT = "edit keeps this, write does not"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"one\r\ntwo\r\n", f"one\ntwo\n[CRLF line ends: {KEPT}]\n"),
        (b"one\r\ntwo", f"one\ntwo\n[CRLF line ends: {KEPT}]\n"),
        (b"one\r\ntwo\n", f"one\r\ntwo\n[CRLF and LF line ends: {KEPT}]\n"),
        (b"one\rtwo\n", "one\rtwo\n"),
        (b"\xef\xbb\xbfone\n", f"one\n[UTF-8 with BOM: {KEPT}]\n"),
        (b"caf\xe9\n", f"café\n[not UTF-8, shown as Latin-1, which is a guess: {KEPT}]\n"),
        (b"\x80 5\n", f"€ 5\n[not UTF-8, shown as Windows-1252, which is a guess: {KEPT}]\n"),
        ("東京\n".encode() + b"\xff\n", f"東京\n\ufffd\n[UTF-8 with invalid bytes: {KEPT}]\n"),
        (
            "\ufeffzwölf 東京 😀\r\n".encode("utf-16-le"),
            f"zwölf 東京 😀\n[UTF-16 LE with BOM, CRLF line ends: {KEPT}]\n",
        ),
        ("\ufeffone\n".encode("utf-16-be"), f"one\n[UTF-16 BE with BOM: {KEPT}]\n"),
        ("plain\ntext\n".encode("utf-16-le"), f"plain\ntext\n[UTF-16 LE: {KEPT}]\n"),
        ("plain\ntext\n".encode("utf-16-be"), f"plain\ntext\n[UTF-16 BE: {KEPT}]\n"),
        ("\ufeffone\n".encode("utf-32-le"), f"one\n[UTF-32 LE with BOM: {KEPT}]\n"),
    ],
)
async def test_other_encodings_and_line_ends_are_named(
    content: bytes, text: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert await read("a.txt", context) == text


async def test_only_the_encoding_of_the_window_is_named(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"plain\n" * 3000 + b"caf\xe9\n")
    assert await read("a.txt", context, limit=1) == "plain\n[lines 1-1 of 3001; continue with offset=2]\n"
    assert (await read("a.txt", context, offset=3001)).startswith("café\n[not UTF-8")


async def test_windows_of_utf_16_are_cut_at_its_line_ends(context: ToolContext, tmp_path: Path) -> None:
    # U+0A00 and U+000A look like each other when one is off by one byte.
    lines = ["a\u0a41\u0100\n", "\u0a00\u0a00\n", "b\n"]
    (tmp_path / "a.txt").write_bytes("".join(["\ufeff", *lines]).encode("utf-16-le"))
    note = f"[UTF-16 LE with BOM: {KEPT}]\n"
    more = "[lines 2-2 of 3; continue with offset=3]\n"
    assert await read("a.txt", context, offset=2, limit=1) == lines[1] + note + more
    assert await read("a.txt", context, offset=3) == lines[2] + note


async def test_a_long_line_is_cut_between_characters(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" + "é" * 40000 + "\nnext\n")
    assert await read("a.txt", context) == (
        f"x{'é' * 2047}[... this line has 75906 bytes more; offset=1 limit=1 shows 50 KiB of it]\nnext\n"
    )
    assert await read("a.txt", context, limit=1) == (
        f"x{'é' * 25599}[... this line has 28802 bytes more]\n[lines 1-1 of 2; continue with offset=2]\n"
    )
    assert await read("a.txt", context, offset=2) == "next\n"


async def test_a_line_of_just_the_most_bytes_is_shown_whole(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 4095 + "\n" + "y" * 4096 + "\n")
    hint = "offset=2 limit=1 shows 50 KiB of it"
    assert await read("a.txt", context) == f"{'x' * 4095}\n{'y' * 4096}[... this line has 1 bytes more; {hint}]\n"


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


async def test_the_event_loop_runs_while_a_large_file_is_read(context: ToolContext, tmp_path: Path) -> None:
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
    expected = f"{'x' * 99}\n[lines 1-1 of a file of {size} bytes; continue with offset=2]\n"
    assert await read("large", context, limit=1) == expected


def large_file(tmp_path: Path, *, hole_bytes: int) -> Path:
    """200 lines of text, a line of nothing that takes no space on disk, and a last line."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write((b"x" * 99 + b"\n") * 200)
        file.seek(hole_bytes, os.SEEK_CUR)
        file.write(b"\nlast\n")
    return path


@pytest.mark.parametrize(
    ("content", "described"),
    [
        (b"\x7fELF\x02\x01\x01\0" + b"x" * 92, " (ELF program or library) of 100 bytes"),
        (b"%PDF-1.7\nall of it could be read as text\n", " (PDF document) of 41 bytes"),
        (b"PK\x03\x04\x14\0\0\0", " (zip archive, or a document in one) of 8 bytes"),
        (b"name".ljust(257, b"\0") + b"ustar\0", " (tar archive) of 263 bytes"),
        (b"\0\x01\x02\x03\x04", " of 5 bytes"),
        (bytes(range(1, 256)) * 2, " of 510 bytes"),
        (b"a C string\0", " of 11 bytes"),
        (b"another one\0", " of 12 bytes"),
        (bytes(range(0, 64, 2)) + bytes(64), " of 96 bytes"),
    ],
)
async def test_a_binary_file_is_described_instead_of_dumped(
    content: bytes, described: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    expected = f"a.bin is a binary file{described}; look into it with bash"
    assert await refusal(Read(), {"path": "a.bin"}, context) == expected


@pytest.mark.parametrize("content", [b"BM is how this begins\n", b"MZ\n", b"ID3 tags are for music\n"])
async def test_text_that_begins_as_a_binary_file_may_is_shown(
    content: bytes, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert await read("a.txt", context) == content.decode()


@pytest.mark.parametrize(("mime_type", "data"), [(kind, whole(kind, 640, 480)) for kind in KINDS])
async def test_an_image_is_known_by_its_content(
    mime_type: str, data: bytes, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "picture.txt").write_bytes(data + bytes(100_000))
    assert await Read().run({"path": "picture.txt"}, context) == (ImageBlock(mime_type, data + bytes(100_000)),)


LIMITS = "at most 8000 pixels a side and 3750000 bytes can be shown. Make a smaller copy with bash and read that"


async def test_an_image_with_too_many_bytes_is_described(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(whole("image/png", 640, 480))
    os.truncate(tmp_path / "a.png", 3_750_001)
    assert await refusal(Read(), {"path": "a.png"}, context) == (
        f"a.png is a PNG image of 640 x 480 pixels and 3750001 bytes; {LIMITS}"
    )
    os.truncate(tmp_path / "a.png", 3_750_000)
    [block] = await Read().run({"path": "a.png"}, context)
    assert isinstance(block, ImageBlock)
    assert len(block.data) == 3_750_000


async def test_an_image_with_too_many_pixels_is_described(context: ToolContext, tmp_path: Path) -> None:
    data = image("image/jpeg", 100, 8001)
    (tmp_path / "a.jpg").write_bytes(data)
    assert await refusal(Read(), {"path": "a.jpg"}, context) == (
        f"a.jpg is a JPEG image of 100 x 8001 pixels and {len(data)} bytes; {LIMITS}"
    )


async def test_a_damaged_image_is_not_shown_to_a_service_that_would_refuse_it(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.gif").write_bytes(b"GIF89a\0")
    assert await refusal(Read(), {"path": "a.gif"}, context) == (
        "a.gif is a GIF image whose header is damaged; it cannot be shown"
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_an_image_that_was_cut_off_is_not_shown(kind: str, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(whole(kind, 64, 48)[:-1])
    assert (await refusal(Read(), {"path": "a"}, context)).endswith("that is damaged or incomplete; it cannot be shown")


async def test_a_directory_is_listed_in_order(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "d" / "sub").mkdir(parents=True)
    for name in (b"b.txt", b"a.txt", b".hidden", b"caf\xe9"):
        Path(os.fsdecode(os.fsencode(tmp_path / "d") + b"/" + name)).touch()
    (tmp_path / "d" / "link").symlink_to("sub")
    assert await read("d", context) == ".hidden\na.txt\nb.txt\ncaf\\xe9\nlink -> sub\nsub/\n"
    assert await read("d", context, offset=2, limit=2) == "a.txt\nb.txt\n[entries 2-3 of 6; continue with offset=4]\n"
    assert await read("d", context, offset=7) == "[the directory has only 6 entries]"
    assert await read("d/sub", context) == "[the directory is empty]"


async def test_names_in_a_listing_take_one_line_each_and_are_escaped(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a\nb\x1b[2J\u202e").touch()
    (tmp_path / "d" / "link").symlink_to("x\ny")
    assert await read("d", context) == "a\\nb\\x1b[2J\\u202e\nlink -> x\\ny\n"


async def test_no_limit_exceeds_what_a_model_is_shown(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n" * 60_000)
    text = await answer(Read(), {"path": "a.txt", "limit": 60_000}, context)
    assert text == "\n" * 2000 + "[lines 1-2000 of 60000; continue with offset=2001]\n"


@pytest.mark.parametrize(
    "content", ["é\n".encode("latin-1") * 20_000, "東京\n".encode("utf-16") * 10_000, b"\xff\n\xc3\xa9\xc3\xa9" * 9000]
)
async def test_the_budget_counts_shown_bytes_and_not_bytes_read(
    content: bytes, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    text = await answer(Read(), {"path": "a.txt"}, context)
    assert len(text.encode()) < 51_500


async def test_a_growing_file_is_read_up_to_its_first_size(context: ToolContext, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("line\n" * 1_000_000)

    async def grow() -> None:
        with path.open("a") as file:
            for _ in range(100):
                file.write("line\n" * 100_000)
                file.flush()
                await asyncio.sleep(0)

    growing = asyncio.get_running_loop().create_task(grow())
    try:
        assert (await read("a.txt", context, limit=1)).endswith("[lines 1-1 of 1000000; continue with offset=2]\n")
    finally:
        growing.cancel()


async def test_a_line_too_far_into_the_file_is_not_looked_for(context: ToolContext, tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.write(b"x\n" * 10_000)
        file.truncate(1 << 34)
    read = Read(max_skipped_bytes=1024 * 1024)
    assert await refusal(read, {"path": "a.txt", "offset": 1_000_000}, context) == (
        f"these lines are not within the first 1 MiB of the file, which has {1 << 34} bytes; "
        "look for them with bash, for example with sed -n"
    )


@pytest.mark.parametrize(
    "text", ["RIFF is a format\n", "OggS of text\n", "fLaC\n", "GIF89a is a format\n", "wOF2 fonts\n", "%PDF- files\n"]
)
async def test_text_about_a_format_is_text(text: str, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert await read("a.txt", context) == text


async def test_a_long_listing_is_cut(context: ToolContext, tmp_path: Path) -> None:
    for number in range(501):
        os.mknod(tmp_path / f"{number:03}")
    expected = "".join(f"{n:03}\n" for n in range(500)) + "[entries 1-500 of 501; continue with offset=501]\n"
    assert await read(".", context, limit=5000) == expected


async def test_endless_files_are_refused(context: ToolContext, tmp_path: Path) -> None:
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
        ({}, "invalid arguments: path is missing"),
        ({"path": 1}, "invalid arguments: path must be a string, not a whole number"),
        ({"path": "a", "offset": 0}, "invalid arguments: offset must be a whole number of at least 1"),
        ({"path": "a", "limit": "5"}, "invalid arguments: limit must be a whole number, not a string"),
        ({"path": "a", "line": 5}, "invalid arguments: line is unknown"),
    ],
)
async def test_errors_are_explained(args: dict[str, Any], text: str, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert await refusal(Read(), args, context) == text


async def test_null_counts_as_absent(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    assert await answer(Read(), {"path": "a.txt", "offset": None, "limit": None}, context) == "one\n"


async def test_no_call_keeps_a_descriptor(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0")
    (tmp_path / "link").symlink_to("a.bin")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    await read(".", context)
    for paths in (UnrestrictedPaths(), LockedPaths(str(tmp_path))):
        for path in ("a.bin", "pipe", "link", "loop", "gone", "gone/x", "n" * 300, "a.bin/x"):
            await refusal(Read(paths), {"path": path}, context)
    assert os.listdir("/proc/self/fd") == before
