"""The read tool: a window of a text file, an image, or a directory listing."""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from zot.errors import ToolFailed
from zot.files import link_target
from zot.messages import ImageBlock, TextBlock
from zot.text import printable
from zot.tools.base import Output, ReadState, ToolContext, decode_args, version
from zot.tools.file_access import Paths, UnrestrictedPaths, read_at
from zot.tools.images import (
    MAX_IMAGE_BYTES,
    MAX_IMAGE_SIDE,
    image_name,
    image_size,
    image_type,
    is_complete,
    is_surely_binary,
    kind_of,
)
from zot.tools.specs import MAX_BYTES, MAX_LINES, READ
from zot.tools.text_encoding import (
    LATIN_1,
    PROBE_BYTES,
    UTF_8,
    WINDOWS_1252,
    Encoding,
    count_ends,
    detect,
    detect_narrow,
    find,
)

if TYPE_CHECKING:
    from zot.tools.documents import OpenDocuments

#: Longer lines are cut, unless only one line is requested.
MAX_LINE_BYTES = 4096
MAX_ENTRIES = 500
#: Limit of entries read from a large directory, in arbitrary order.
MAX_LISTED_ENTRIES = 100_000
#: Limit of bytes after the window in which lines are counted: more is not worth the cost.
MAX_COUNTED_BYTES = 256 * 1024 * 1024
#: Limit of bytes before the window.
MAX_SKIPPED_BYTES = 1024 * 1024 * 1024
#: Files are read in slices, yielding to the event loop between them. A thread could not be cancelled, and a slice
#: this small costs less than handing it to one.
SLICE_BYTES = 256 * 1024
_PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class ReadArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    offset: _PositiveInt | None = None
    limit: _PositiveInt | None = None


class Read:
    """Shows files within ``paths`` to the model, and notes their versions in ``seen``."""

    spec = READ
    read_only = True

    def __init__(
        self,
        paths: Paths | None = None,
        seen: ReadState | None = None,
        documents: OpenDocuments | None = None,
        *,
        max_skipped_bytes: int = MAX_SKIPPED_BYTES,
    ) -> None:
        self._paths = UnrestrictedPaths() if paths is None else paths
        self._seen = ReadState() if seen is None else seen
        self._documents = documents
        self._max_skipped_bytes = max_skipped_bytes

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return one window of the file. Raise ToolFailed for a missing or binary file, or an unsuitable image."""
        wanted = decode_args(args, ReadArgs)
        first, limit = wanted.offset or 1, min(wanted.limit or MAX_LINES, MAX_LINES)
        with self._paths.find(wanted.path, context.cwd) as found:
            place = found if self._documents is None else await self._documents.locate(found)
            with place.open() as fd:
                if stat.S_ISDIR(os.fstat(fd).st_mode):
                    return (TextBlock(_listing(fd, first, limit)),)
                start = read_at(fd, PROBE_BYTES, 0)
                if mime_type := image_type(start):
                    return (ImageBlock(mime_type, _image(fd, mime_type, wanted.path)),)
                encoding = _encoding(fd, start, wanted.path)
                # Version first: a change during the read counts as unseen.
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
        more = f"[lines {first}-{window.last} of {total}; continue with offset={window.last + 1}]\n"
        return window.text() + (more if window.last < window.total or not is_counted else "")

    async def _fill(self, window: Window, fd: int, size: int) -> bool:
        """Read as far as needed; True if all lines were counted.

        Ignores growth of the file during the read. Files of the kernel report a size of 0.
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
    """Return the image. Raise ToolFailed if a service would refuse it, and with it the rest of the conversation."""
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
    """Return the encoding of a text file. Raise ToolFailed for a binary one, with its kind."""
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
    more = f"[entries {first}-{last} of {total}; continue with offset={last + 1}]\n" if last < len(names) else ""
    return "".join(f"{name}\n" for name in shown) + more


def _entry_name(entry: os.DirEntry[str], directory: int) -> str:
    """Return the listed form of a name. Does not follow links: their targets may be out of bounds."""
    name = printable(entry.name)
    if entry.is_symlink() and (target := link_target(entry.name, directory)) is not None:
        return f"{name} -> {printable(target)}"
    return f"{name}/" if entry.is_dir(follow_symlinks=False) else name


class _Phase(Enum):
    SKIPPING = "before the window"
    TAKING = "in the window"
    COUNTING = "after the window"


class _Line(NamedTuple):
    """Beginning of a line, and its whole length with its line end."""

    kept: bytes
    length: int


class Window:
    """The lines ``first`` to ``first + limit - 1`` of a text, or as many of them as fit.

    Feed it the text from the beginning, in pieces that end between characters, then read its properties.
    """

    def __init__(self, encoding: Encoding, *, first: int, limit: int) -> None:
        self._encoding = encoding
        self._lf = encoding.encode("\n")
        self._first = first
        self._limit = limit
        self._most_of_a_line = MAX_BYTES if limit == 1 else MAX_LINE_BYTES
        self._phase = _Phase.SKIPPING if first > 1 else _Phase.TAKING
        self._lines: list[_Line] = []
        self._bytes = 0
        self._kept = bytearray()
        self._length = 0
        #: Number of terminated lines, and whether an unterminated one follows.
        self._ended = 0
        self._unended = False

    @property
    def is_full(self) -> bool:
        """True once further data is only counted."""
        return self._phase is _Phase.COUNTING

    @property
    def is_before(self) -> bool:
        """True until the window begins."""
        return self._phase is _Phase.SKIPPING

    @property
    def total(self) -> int:
        """Number of lines so far, an unterminated last one included."""
        return self._ended + self._unended

    @property
    def last(self) -> int:
        """Number of the last line in the window."""
        return self._first - 1 + len(self._lines)

    def feed(self, data: bytes) -> None:
        """Add the next piece."""
        position = 0
        if self._phase is _Phase.SKIPPING:
            position = self._skip(data)
        if self._phase is _Phase.TAKING:
            position = self._take(data, position)
        if self._phase is _Phase.COUNTING:
            self._ended += count_ends(data[position:], self._lf)
        if data:
            self._unended = not data.endswith(self._lf)

    def finish(self) -> None:
        """Mark the end of the text."""
        if self._phase is _Phase.TAKING and self._length:
            self._end_line()

    def text(self) -> str:
        """Return the lines, each with a line end, followed by remarks about encoding and line ends."""
        encoding = self._encoding
        if encoding.unit == 1 and not encoding.bom:
            encoding = detect_narrow(b"".join(_whole_characters(line) for line in self._lines))
        shown = [self._show(line, number, encoding) for number, line in enumerate(self._lines, self._first)]
        crlf = encoding.encode("\r\n")
        ends = {line.kept.endswith(crlf) for line in self._lines if line.kept.endswith(self._lf)}
        if ends == {True}:  # edit matches them by LF, too
            shown = [text[:-2] + "\n" if text.endswith("\r\n") else text for text in shown]
        return "".join(shown) + _remark(encoding, ends)

    def _skip(self, data: bytes) -> int:
        """Skip lines before the window; return the position in ``data`` where it begins, or the end."""
        found = count_ends(data, self._lf)
        if self._ended + found < self._first - 1:
            self._ended += found
            return len(data)
        position = 0
        while self._ended < self._first - 1:
            position = find(data, self._lf, len(self._lf), position) + len(self._lf)
            self._ended += 1
        self._phase = _Phase.TAKING
        return position

    def _take(self, data: bytes, position: int) -> int:
        """Add lines until the window is full; return the position after the last one."""
        while self._phase is _Phase.TAKING and position < len(data):
            at = find(data, self._lf, len(self._lf), position)
            end = len(data) if at == -1 else at + len(self._lf)
            self._kept += data[position : min(end, position + self._most_of_a_line - len(self._kept))]
            self._length += end - position
            position = end
            if at != -1:
                self._ended += 1
                self._end_line()
        return position

    def _end_line(self) -> None:
        # The limit applies to the shown UTF-8, which may be longer than the file's encoding.
        shown_bytes = len(self._encoding.decode(bytes(self._kept)).encode())
        if self._lines and self._bytes + shown_bytes > MAX_BYTES:
            self._phase = _Phase.COUNTING
            return
        self._lines.append(_Line(bytes(self._kept), self._length))
        self._bytes += shown_bytes
        self._kept.clear()
        self._length = 0
        if len(self._lines) == self._limit:
            self._phase = _Phase.COUNTING

    def _show(self, line: _Line, number: int, encoding: Encoding) -> str:
        kept = line.kept.removeprefix(encoding.bom) if number == 1 else line.kept
        if line.length == len(line.kept):
            text = encoding.decode(kept)
            return text if text.endswith("\n") else f"{text}\n"
        more = line.length - len(line.kept)
        hint = "" if self._limit == 1 else f"; offset={number} limit=1 shows {MAX_BYTES // 1024} KiB of it"
        return f"{encoding.decode_start(kept)}[... this line has {more} bytes more{hint}]\n"


def _whole_characters(line: _Line) -> bytes:
    """Return the kept part of a line without a character cut at its end."""
    if line.length == len(line.kept):
        return line.kept
    return line.kept[: codecs.utf_8_decode(line.kept, "replace", False)[1]]


def _remark(encoding: Encoding, ends: set[bool]) -> str:
    """Describe deviations from UTF-8 with LF; ``ends`` has True for CRLF and False for LF line ends."""
    parts = []
    if encoding in (LATIN_1, WINDOWS_1252):
        parts.append(f"not UTF-8, shown as {encoding.name}, which is a guess")
    elif encoding is not UTF_8:
        parts.append(encoding.name)
    if True in ends:
        parts.append("CRLF line ends" if ends == {True} else "CRLF and LF line ends")
    return f"[{', '.join(parts)}: edit keeps this, write does not]\n" if parts else ""
