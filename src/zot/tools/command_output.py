"""Output of a command: streamed, cut to a budget for the model, spilled whole to a file."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress

from zot.files import make_directory, try_lock
from zot.tools.base import CallReporter
from zot.tools.process import Child
from zot.tools.specs import MAX_BYTES, MAX_LINES
from zot.tools.text_encoding import UTF_8, Utf8

_CONTINUATION = bytes(range(0x80, 0xC0))
#: Limit for endless output, which must not fill the disk.
MAX_SPILL_BYTES = 1 << 30
#: Limits of the removal of stale directories: its duration, and their minimum age, lest one be in use soon.
_SWEEP_S = 0.1
_UNTOUCHED_S = 60.0
_PREFIX = "bash-"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
#: Output within this time of the last update is merged into the next one.
_GATHER_S = 0.05
_GATHER_CHARS = 64 * 1024


class Excerpt:
    """Beginning and end of a byte stream, within a budget. Does no I/O; its memory is bounded."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> None:
        self._half_bytes = max_bytes // 2
        self._half_lines = max_lines // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._bytes = 0
        self._lines = 0

    @property
    def is_complete(self) -> bool:
        """True while the whole stream fits into the budget."""
        return not self.overflows_with(b"")

    def overflows_with(self, data: bytes) -> bool:
        """Return whether the stream exceeds the budget once ``data`` is added."""
        lines = self._lines + data.count(b"\n")
        return self._bytes + len(data) > 2 * self._half_bytes or lines > 2 * self._half_lines

    def whole(self) -> bytes:
        """Return the whole stream; only while it is complete."""
        return bytes(self._head + self._tail)

    def feed(self, data: bytes) -> None:
        """Add the next part of the stream."""
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        room = self._half_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Trimming rarely keeps the cost linear when data arrives byte by byte.
        if len(self._tail) > 4 * self._half_bytes:
            del self._tail[: -self._half_bytes]

    def skip(self, size: int, lines: int) -> None:
        """Count a part that is known to be omitted: far from both ends of the stream."""
        self._bytes += size
        self._lines += lines

    def text(self, whereabouts: str | None = None) -> str:
        """Return the excerpt, invalid UTF-8 replaced, with a note about the omission and its ``whereabouts``."""
        if self._bytes > 2 * self._half_bytes:
            head, tail = bytes(self._head), bytes(self._tail[-self._half_bytes :])
        else:
            head = tail = self.whole()
            if self.is_complete:
                return head.decode(errors="replace")
        head, tail = _first_lines(head, self._half_lines), _last_lines(tail, self._half_lines)
        left_bytes = self._bytes - len(head) - len(tail)
        left_lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        gap = "" if head.endswith(b"\n") else "\n"
        place = "" if whereabouts is None else f"; {whereabouts}"
        note = f"{gap}[... {left_bytes} bytes, {left_lines} lines left out{place} ...]\n"
        return UTF_8.decode_start(head) + note + tail.decode(errors="replace")


def end_of_line(data: bytes, count: int) -> int:
    """Return the position after the ``count``-th line end in ``data``; -1 if there are fewer."""
    position = 0
    for _ in range(count):
        position = data.find(b"\n", position) + 1
        if position == 0:
            return -1
    return position


def _first_lines(data: bytes, count: int) -> bytes:
    end = end_of_line(data, count)
    if end == -1:
        end = data.rfind(b"\n") + 1
        # Whole lines read best, but cutting a single overlong line would lose everything.
        if end <= len(data) // 2:
            return data
    return data[:end]


def _last_lines(data: bytes, count: int) -> bytes:
    start = len(data)
    for _ in range(count + 1):
        start = data.rfind(b"\n", 0, start)
        if start == -1:
            break
    if start == -1:
        start = data.find(b"\n")
        if not -1 < start < len(data) // 2:
            return data.lstrip(_CONTINUATION)
    return data[start + 1 :]


class Spills:
    """Spill files of one session, in a directory below ``root`` that holds nothing else.

    The creator closes it. An exclusive kernel lock on the directory marks it as in use. The first file of a session
    removes unlocked directories, left by killed processes.
    """

    def __init__(self, root: str, key: str, *, now: Callable[[], float] = time.time) -> None:
        self.directory = os.path.join(root, key)
        self._root = root
        self._now = now
        self._lock: int | None = None

    def new(self) -> Spill:
        """Return a new file, created with its first byte."""
        return Spill(os.path.join(self.directory, f"{_PREFIX}{os.urandom(8).hex()}.txt"), prepare=self._prepare)

    @property
    def holds(self) -> bool:
        """True if there may be files."""
        return self._lock is not None

    def close(self) -> None:
        """Remove the directory and its files. Idempotent."""
        if self._lock is not None:
            with suppress(OSError):  # removed by another process, or it contains foreign files
                _remove(self.directory, self._lock)
            os.close(self._lock)
            self._lock = None

    def _prepare(self) -> None:
        """Create and lock the directory, once. Raise OSError."""
        if self._lock is not None:
            return
        make_directory(self.directory)
        self._lock = _open(self.directory)
        _take(self._lock)
        self._sweep()

    def _sweep(self) -> None:
        """Remove unlocked directories beside this one."""
        deadline = time.monotonic() + _SWEEP_S
        for name in os.listdir(self._root):
            if time.monotonic() < deadline:
                with suppress(OSError):  # not a directory, or of another user: it stays
                    self._sweep_one(os.path.join(self._root, name))

    def _sweep_one(self, directory: str) -> None:
        fd = _open(directory)
        try:
            # A new directory may not be locked yet.
            if os.fstat(fd).st_mtime < self._now() - _UNTOUCHED_S and _take(fd):
                _remove(directory, fd)
        finally:
            os.close(fd)


class Spill:
    """Private file, created with its first byte.

    Calls ``prepare`` before that. A full disk or another error ends the file, not the command: ``problem`` says why
    the file is incomplete.
    """

    def __init__(
        self, path: str, *, max_bytes: int = MAX_SPILL_BYTES, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self.problem: str | None = None
        self.written_bytes = 0
        self._max_bytes = max_bytes
        self._prepare = prepare
        self._fd: int | None = None

    @property
    def exists(self) -> bool:
        """True if the file exists, complete or not."""
        return self._fd is not None or self.written_bytes > 0

    def write(self, data: bytes) -> None:
        """Append ``data``; does nothing after a problem.

        Synchronous on purpose: it writes to the page cache, and the reader of the pipe must not run ahead.
        """
        if self.problem is not None:
            return
        rest = memoryview(data)[: self._max_bytes - self.written_bytes]
        try:
            if self._fd is None:
                self._prepare()
                self._fd = os.open(self.path, _CREATE, 0o600)
                os.fchmod(self._fd, 0o600)
            while rest:
                count = os.write(self._fd, rest)
                self.written_bytes += count
                rest = rest[count:]
        except OSError as exc:
            self.problem = exc.strerror or str(exc)
        if self.problem is None and self.written_bytes == self._max_bytes:
            self.problem = "the limit of a spill file"

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def note(self) -> str:
        """Return where the output is, and how much of it."""
        if not self.exists:
            return f"the rest could not be kept: {self.problem}"
        if self.problem is not None:
            return f"only the first {self.written_bytes} bytes are in {self.path}: {self.problem}"
        return f"the complete output is in {self.path}"


def _open(directory: str) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _take(directory: int) -> bool:
    """Lock an open directory; False if another process holds the lock, or the file system has no locks."""
    try:
        return try_lock(directory)
    except OSError:
        return False


def _remove(path: str, directory: int) -> None:
    """Remove an open directory with its spill files. Foreign files in it stay."""
    for name in os.listdir(directory):
        if name.startswith(_PREFIX):
            os.unlink(name, dir_fd=directory)
    os.rmdir(path)


class OutputCollector:
    """Collector of one command's output, in bounded memory."""

    def __init__(self, child: Child, reporter: CallReporter, spill: Spill | None) -> None:
        self._child = child
        self._reporter = reporter
        self._spill = spill
        self._text = Utf8()
        self._excerpt = Excerpt()
        self._gathered: list[str] = []
        self._gathered_chars = 0
        self._show_at = 0.0

    async def listen(self) -> None:
        """Collect until the command has exited and its output is read."""
        while (data := await self._next()) != b"":
            if data is not None:
                self._take(data)
            await self._show_if_due()
        self._gather(self._text.decode(b"", final=True))
        await self._show()

    def close(self) -> None:
        """Close the spill file. Idempotent."""
        if self._spill is not None:
            self._spill.close()

    def text(self) -> str:
        """Return the output as a separate paragraph; "" if there was none."""
        whereabouts = None if self._spill is None else self._spill.note()
        output = self._excerpt.text(whereabouts)
        if not output:
            return ""
        ending = "" if output.endswith("\n") else "\n"
        flag = "" if self._text.is_valid else "[not all of it is UTF-8: � stands for what is not]\n"
        return f"\n{output}{ending}{flag}"

    async def _next(self) -> bytes | None:
        """Return the next output, b"" at the end, None when collected output is due to be shown."""
        if not self._gathered:
            return await self._child.read()
        try:
            async with asyncio.timeout_at(self._show_at):
                return await self._child.read()
        except TimeoutError:
            return None

    def _take(self, data: bytes) -> None:
        if self._spill is not None and self._excerpt.overflows_with(data):
            if self._excerpt.is_complete:
                self._spill.write(self._excerpt.whole())
            self._spill.write(data)
        self._excerpt.feed(data)
        self._gather(self._text.decode(data))

    def _gather(self, text: str) -> None:
        if text:
            self._gathered.append(text)
            self._gathered_chars += len(text)

    async def _show_if_due(self) -> None:
        if self._gathered_chars >= _GATHER_CHARS or asyncio.get_running_loop().time() >= self._show_at:
            await self._show()

    async def _show(self) -> None:
        if self._gathered:
            text = "".join(self._gathered)
            self._gathered.clear()
            self._gathered_chars = 0
            await self._reporter.progress(text)
            self._show_at = asyncio.get_running_loop().time() + _GATHER_S
