"""The read tool: any window of a text file, an image, or what is in a directory."""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
from typing import Annotated, Any

import msgspec

from zot.errors import ToolFailed
from zot.messages import ImageBlock, TextBlock, ToolSpec
from zot.tools.arguments import decode_args
from zot.tools.base import Output, ToolContext
from zot.tools.excerpt import MAX_BYTES, MAX_LINES, decode_start, end_of_line
from zot.tools.files import open_to_read, read_at, resolve

MAX_IMAGE_BYTES = 5_000_000
MAX_ENTRIES = 500
#: Beyond this many bytes behind the window we do not count lines: it would cost more than knowing is worth.
MAX_COUNTED_BYTES = 256 * 1024 * 1024
#: Files are read in slices, and between them other work and an abort get their turn. A thread could not be
#: stopped, and a slice this small costs less than handing it to one.
SLICE_BYTES = 256 * 1024
#: A file with a NUL character in this much of its beginning is binary.
_PROBE_BYTES = 8 * 1024

_PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class ReadArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    offset: _PositiveInt | None = None
    limit: _PositiveInt | None = None


class Read:
    """Shows files to the model."""

    spec = ToolSpec(
        name="read",
        description=(
            "Read a file. Text is returned as it is, at most "
            f"{MAX_LINES} lines or {MAX_BYTES // 1024} KiB at a time; a note at the end says how to go on. "
            "PNG, JPEG, GIF and WebP images are returned as images. For a directory its entries are listed."
        ),
        schema={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File or directory, absolute or relative to the cwd"},
                "offset": {"type": "integer", "minimum": 1, "description": "First line to read, counted from 1"},
                "limit": {"type": "integer", "minimum": 1, "description": f"How many lines, {MAX_LINES} by default"},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    )
    read_only = True

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return one window of the file. Raise ToolFailed if it is missing, binary or too large an image."""
        wanted = decode_args(args, ReadArgs)
        first, limit = wanted.offset or 1, wanted.limit or MAX_LINES
        fd = open_to_read(resolve(wanted.path, context.cwd), wanted.path)
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                return (TextBlock(_listing(fd, first, limit)),)
            probe = read_at(fd, _PROBE_BYTES, 0)
            if mime_type := _image_type(probe):
                return (ImageBlock(mime_type, _image(fd, wanted.path)),)
            if b"\0" in probe:
                raise ToolFailed(f"{wanted.path} is a binary file of {os.fstat(fd).st_size} bytes")
            return (TextBlock(await _window(fd, first, limit)),)
        finally:
            os.close(fd)


def _image_type(probe: bytes) -> str | None:
    if probe.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if probe.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if probe.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if probe.startswith(b"RIFF") and probe[8:12] == b"WEBP":
        return "image/webp"
    return None


def _image(fd: int, shown: str) -> bytes:
    size = os.fstat(fd).st_size
    if size > MAX_IMAGE_BYTES:
        raise ToolFailed(f"{shown} is an image of {size} bytes; at most {MAX_IMAGE_BYTES} can be shown")
    return read_at(fd, size, 0)


def _listing(fd: int, first: int, limit: int) -> str:
    with os.scandir(fd) as entries:
        names = sorted(_entry_name(entry) for entry in entries)
    if not names:
        return "[the directory is empty]"
    if first > len(names):
        return f"[the directory has only {len(names)} entries]"
    shown = names[first - 1 : first - 1 + min(limit, MAX_ENTRIES)]
    last = first - 1 + len(shown)
    more = f"[entries {first}-{last} of {len(names)}; go on with offset={last + 1}]\n" if last < len(names) else ""
    return "".join(f"{name}\n" for name in shown) + more


def _entry_name(entry: os.DirEntry[str]) -> str:
    # File names are bytes; what is not UTF-8 in them cannot be sent to anyone.
    name = os.fsencode(entry.name).decode(errors="replace")
    return f"{name}/" if entry.is_dir() else name


async def _window(fd: int, first: int, limit: int) -> str:
    start, skipped = await _skip_lines(fd, first - 1)
    block = read_at(fd, MAX_BYTES + 1, start)
    if not block:
        return f"[the file has only {skipped} lines]" if start else "[the file is empty]"
    end = _window_end(block, limit)
    whole_lines = end == len(block) or block[end - 1 : end] == b"\n"
    last = first - 1 + _count_lines(block[:end])
    shown = block[:end] if start else block[:end].removeprefix(codecs.BOM_UTF8)
    text = shown.decode(errors="replace") if whole_lines else decode_start(shown)
    if not text.endswith("\n"):
        text += "\n"
    if end == len(block):
        return text
    return text + await _note(fd, start + end, first, last, whole_lines=whole_lines)


def _window_end(block: bytes, limit: int) -> int:
    """Return where to cut a block that is one byte longer than the budget if the file goes on."""
    end = end_of_line(block[:MAX_BYTES], limit)
    if end != -1:
        return end
    if len(block) <= MAX_BYTES:
        return len(block)
    return block.rfind(b"\n", 0, MAX_BYTES) + 1 or MAX_BYTES


async def _note(fd: int, end: int, first: int, last: int, *, whole_lines: bool) -> str:
    """Return what to say below a window that ends at byte ``end`` in the middle of the file."""
    size = os.fstat(fd).st_size
    if size - end > MAX_COUNTED_BYTES:
        total = f"a file of {size} bytes"
    else:
        total = str(last + await _lines_behind(fd, end) - (not whole_lines))
    cut = "" if whole_lines else f"line {last} is cut after {MAX_BYTES} bytes; "
    return f"[{cut}lines {first}-{last} of {total}; go on with offset={last + 1}]\n"


async def _skip_lines(fd: int, count: int) -> tuple[int, int]:
    """Return where the line behind ``count`` lines begins; in a shorter file its end, and how many lines it has."""
    position = skipped = 0
    unended = False
    while skipped < count and (data := os.pread(fd, SLICE_BYTES, position)):
        found = data.count(b"\n")
        if skipped + found >= count:
            return position + end_of_line(data, count - skipped), count
        skipped += found
        position += len(data)
        unended = not data.endswith(b"\n")
        await asyncio.sleep(0)
    return position, skipped + unended


async def _lines_behind(fd: int, position: int) -> int:
    lines, unended = 0, False
    while data := os.pread(fd, SLICE_BYTES, position):
        lines += data.count(b"\n")
        unended = not data.endswith(b"\n")
        position += len(data)
        await asyncio.sleep(0)
    return lines + unended


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n"))
