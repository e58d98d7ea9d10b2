"""The read tool: any window of a text file, an image, or what is in a directory."""

from __future__ import annotations

import asyncio
import os
import stat
from itertools import islice
from typing import Annotated, Any

import msgspec

from zot.errors import ToolFailed
from zot.messages import ImageBlock, TextBlock
from zot.text import printable
from zot.tools.arguments import decode_args
from zot.tools.base import Output, ToolContext
from zot.tools.files import read_at
from zot.tools.images import MAX_IMAGE_BYTES, MAX_IMAGE_SIDE, image_name, image_size, image_type, is_complete
from zot.tools.magic import is_surely_binary, kind_of
from zot.tools.paths_part import Anywhere, Paths, link_target
from zot.tools.read_state import Seen, version
from zot.tools.specs import MAX_LINES, READ
from zot.tools.text_encoding import PROBE_BYTES, Encoding, detect
from zot.tools.window import Window

MAX_ENTRIES = 500
#: Of a larger directory only so many entries are looked at, in no order.
MAX_LISTED_ENTRIES = 100_000
#: Beyond this many bytes behind the window we do not count lines: it would cost more than knowing is worth.
MAX_COUNTED_BYTES = 256 * 1024 * 1024
#: Lines that begin further behind are not looked for.
MAX_SKIPPED_BYTES = 1024 * 1024 * 1024
#: Files are read in slices, and between them other work and an abort get their turn. A thread could not be
#: stopped, and a slice this small costs less than handing it to one.
SLICE_BYTES = 256 * 1024

_PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class ReadArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    offset: _PositiveInt | None = None
    limit: _PositiveInt | None = None


class Read:
    """Shows files to the model: those that ``paths`` leads to. ``seen`` is told which version it saw."""

    spec = READ
    read_only = True

    def __init__(
        self, paths: Paths | None = None, seen: Seen | None = None, *, max_skipped_bytes: int = MAX_SKIPPED_BYTES
    ) -> None:
        self._paths = Anywhere() if paths is None else paths
        self._seen = Seen() if seen is None else seen
        self._max_skipped_bytes = max_skipped_bytes

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return one window of the file. Raise ToolFailed if it is missing, binary or too large an image."""
        wanted = decode_args(args, ReadArgs)
        first, limit = wanted.offset or 1, min(wanted.limit or MAX_LINES, MAX_LINES)
        with self._paths.find(wanted.path, context.cwd) as place, place.open() as fd:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                return (TextBlock(_listing(fd, first, limit)),)
            start = read_at(fd, PROBE_BYTES, 0)
            if mime_type := image_type(start):
                return (ImageBlock(mime_type, _image(fd, mime_type, wanted.path)),)
            encoding = _encoding(fd, start, wanted.path)
            # The version first: what changes while we read was not seen.
            seen = await version(fd)
            text = await self._window(fd, encoding, first, limit)
            self._seen.note(place.keys, seen)
            return (TextBlock(text),)

    async def _window(self, fd: int, encoding: Encoding, first: int, limit: int) -> str:
        window, size = Window(encoding, first=first, limit=limit), os.fstat(fd).st_size
        is_counted = await self._fill(window, fd, size)
        window.finish()
        if not window.total:
            return "[the file is empty]"
        if window.last < first:
            return f"[the file has only {window.total} lines]"
        total = str(window.total) if is_counted else f"a file of {size} bytes"
        more = f"[lines {first}-{window.last} of {total}; go on with offset={window.last + 1}]\n"
        return window.text() + (more if window.last < window.total or not is_counted else "")

    async def _fill(self, window: Window, fd: int, size: int) -> bool:
        """Read until nothing more is worth knowing; True if all lines were counted.

        A file that grows meanwhile is read as far as it went. One of the system has no size before it is read.
        """
        position, end = 0, size or self._max_skipped_bytes
        while data := read_at(fd, min(SLICE_BYTES, end - position), position):
            window.feed(data)
            position += len(data)
            if window.is_full and size - position > MAX_COUNTED_BYTES:
                return False
            if window.is_before and position > self._max_skipped_bytes:
                raise ToolFailed(
                    f"these lines are not within the first {self._max_skipped_bytes >> 20} MiB of the file, which has "
                    f"{size} bytes; look for them with bash, for example with sed -n"
                )
            await asyncio.sleep(0)
        return True


def _image(fd: int, mime_type: str, shown: str) -> bytes:
    """Return the image. Raise ToolFailed if a service would refuse it, and with it the conversation from then on."""
    about = f"{shown} is a {image_name(mime_type)} image"
    size_bytes = os.fstat(fd).st_size
    data = read_at(fd, min(size_bytes, MAX_IMAGE_BYTES), 0)
    size = image_size(data, mime_type)
    if size is None:
        raise ToolFailed(f"{about} whose header is damaged; it cannot be shown")
    if max(size) > MAX_IMAGE_SIDE or size_bytes > MAX_IMAGE_BYTES:
        raise ToolFailed(
            f"{about} of {size.width} x {size.height} pixels and {size_bytes} bytes; at most {MAX_IMAGE_SIDE} pixels "
            f"a side and {MAX_IMAGE_BYTES} bytes can be shown. Make a smaller copy with bash and read that"
        )
    if not is_complete(data, mime_type):
        raise ToolFailed(f"{about} that is damaged or incomplete; it cannot be shown")
    return data


def _encoding(fd: int, start: bytes, shown: str) -> Encoding:
    """Return how a file is text. Raise ToolFailed, saying what it is instead, if it is none."""
    size = os.fstat(fd).st_size
    encoding = None if is_surely_binary(start) else detect(start, is_whole=size <= len(start))
    if encoding is None:
        kind = kind_of(start)
        known = f" ({kind})" if kind else ""
        raise ToolFailed(f"{shown} is a binary file{known} of {size} bytes; look into it with bash")
    return encoding


def _listing(fd: int, first: int, limit: int) -> str:
    with os.scandir(fd) as entries:
        names = sorted(_entry_name(entry, fd) for entry in islice(entries, MAX_LISTED_ENTRIES))
        total = f"more than {len(names)}" if next(entries, None) else str(len(names))
    if not names:
        return "[the directory is empty]"
    if first > len(names):
        return f"[the directory has only {total} entries]"
    shown = names[first - 1 : first - 1 + min(limit, MAX_ENTRIES)]
    last = first - 1 + len(shown)
    more = f"[entries {first}-{last} of {total}; go on with offset={last + 1}]\n" if last < len(names) else ""
    return "".join(f"{name}\n" for name in shown) + more


def _entry_name(entry: os.DirEntry[str], directory: int) -> str:
    """Return a name as the listing shows it. What a link leads to is not looked at: it may be out of bounds."""
    name = printable(entry.name)
    if entry.is_symlink() and (target := link_target(entry.name, directory)) is not None:
        return f"{name} -> {printable(target)}"
    return f"{name}/" if entry.is_dir(follow_symlinks=False) else name
