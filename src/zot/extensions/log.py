"""Log file of an extension or an MCP server: writing, reading, following."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable, Iterator

import msgspec

from zot.files import make_directory
from zot.messages import timestamp
from zot.text import printable

#: A longer log is rotated; this much of its end is kept.
MAX_BYTES = 8 * 1024 * 1024
#: Pauses between checks whether a program has filled its log: after the start, with a full log, and at most. A program
#: that fills it at each check is ended after this many bytes.
_MIN_PAUSE_S = 0.25
_FULL_PAUSE_S = 1.0
_MAX_PAUSE_S = 4.0
_MAX_FLOOD_BYTES = 64 * 1024 * 1024
#: Marks a restart after a crash in the log; names have no colon.
AGAIN = "again: "
#: Limits of the excerpt from standard error that is shown after a failure.
_LAST_LINES = 3
_LAST_CHARACTERS = 200
_LAST_BYTES = 16 * 1024
_SLICE_BYTES = 64 * 1024
#: Bytes at the end of a log that are searched for a problem.
_TAIL_BYTES = 64 * 1024
_NOTE = re.compile(r"\[zot\] (\S+Z) (.*)")
#: Consequences of a problem that was noted before.
_CONSEQUENCES = re.compile(r"exited with |was killed|is not started again")


def log_path(home: str, name: str, kind: str = "ext") -> str:
    return os.path.join(home, "logs", f"{kind}-{name}.log")


class Log:
    """Log of the program ``name``, by default an extension; discards everything without a writable ``home``."""

    def __init__(self, home: str | None, name: str, *, kind: str = "ext") -> None:
        self._path = log_path(home, name, kind) if home is not None else None

    def open(self) -> int:
        """Return a descriptor that appends to the log, or of /dev/null if that fails. The caller closes it."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            if self._path is not None:
                make_directory(os.path.dirname(self._path))
                self.keep_short()
                fd = os.open(self._path, flags, 0o600)
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    return fd
                os.close(fd)
        except OSError:  # The extension runs without a log.
            pass
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def path(self) -> str | None:
        return self._path

    def end(self) -> int:
        """Return its size."""
        try:
            return 0 if self._path is None else os.stat(self._path).st_size
        except OSError:
            return 0

    def last_words(self, since: int) -> list[str]:
        """Return the last lines that the extension itself wrote after ``since``, printable and short."""
        if self._path is None:
            return []
        try:
            with open(self._path, "rb", opener=_regular) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(since if since <= size else 0, size - _LAST_BYTES))  # it may have been rotated
                text = file.read(_LAST_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        lines = [printable(line.strip()) for line in text.split("\n") if not line.startswith("[zot] ")]
        return [shortened(line) for line in lines if line.strip("^~ ")][-_LAST_LINES:]  # no traceback markers

    def note(self, text: str) -> None:
        """Append a line from zot."""
        fd = self.open()
        try:
            os.write(fd, f"[zot] {timestamp()} {printable(text)}\n".encode())
        except OSError:  # A full disk must not stop the session.
            pass
        finally:
            os.close(fd)

    async def watch(self) -> str:
        """Keep the log short while a program writes to it directly. Return the problem once the program floods it."""
        pause_s, flood = _MIN_PAUSE_S, 0
        while flood <= _MAX_FLOOD_BYTES:
            await asyncio.sleep(pause_s)
            size = self.end()
            self.keep_short()
            flood = flood + size if size > MAX_BYTES else 0
            pause_s = min(_FULL_PAUSE_S if flood else _MAX_PAUSE_S, 2 * pause_s)
        return f"wrote more than {_MAX_FLOOD_BYTES} bytes to standard error within a few seconds"

    def keep_short(self) -> None:
        """Rotate a log that is too long. Open descriptors stay valid."""
        try:
            if self._path is not None and os.lstat(self._path).st_size > MAX_BYTES:
                _rotate(self._path)
        except OSError:  # Missing, or not writable.
            pass


def _rotate(path: str) -> None:
    """Copy the end of a log aside and truncate it: it cannot be renamed, because an extension has it open."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        is_file, size = stat.S_ISREG(os.fstat(fd).st_mode), os.fstat(fd).st_size
        if is_file:
            end = os.pread(fd, MAX_BYTES, max(0, size - MAX_BYTES))
            with open(f"{path}.1", "wb", opener=_private) as aside:
                aside.write(end)
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _regular(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)


def shortened(line: str) -> str:
    """Return a line short enough for a notice."""
    return line if len(line) <= _LAST_CHARACTERS else f"{line[:_LAST_CHARACTERS]}..."


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class Note(msgspec.Struct, frozen=True):
    """Line from zot in the log."""

    at: str
    text: str


def read(path: str) -> Iterator[bytes]:
    """Yield the log in pieces. Raise OSError."""
    with open(path, "rb") as file:
        while data := file.read(_SLICE_BYTES):
            yield data


def follow(path: str, wait: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the log and additions to it, across rotations. Raise OSError.

    Calls ``wait`` when there is nothing new, and ends when that returns False.
    """
    fd: int | None = None
    try:
        while True:
            if fd is None:
                fd = _opened(path)
            # Before the read, which thus includes everything added until the rotation.
            moved = fd is not None and _has_moved(path, fd)
            while fd is not None and (data := os.read(fd, _SLICE_BYTES)):
                yield data
            if moved and fd is not None:
                os.close(fd)
                fd = None
            elif not wait():
                return
    finally:
        if fd is not None:
            os.close(fd)


def problem(path: str) -> Note | None:
    """Return the problem of the last run that has ended, or of a later one; None if there is none, or no log.

    A run lasts as long as its session, across restarts after crashes. A run without a problem that has not ended is
    skipped: the one before may have crashed.
    """
    runs: list[list[Note]] = [[]]
    for note in _notes(path):
        if not note.text.startswith("starting "):
            runs[-1].append(note)
        elif not note.text.startswith(f"starting {AGAIN}"):
            runs.append([])
    for run in reversed(runs):
        if wrong := [note for note in run if note.text != "exited with 0"]:
            return _with_cause(wrong)
        if run:
            return None
    return None


def _with_cause(wrong: list[Note]) -> Note:
    """Return the last note joined with its causes: the end of a broken extension alone explains nothing."""
    first = len(wrong) - 1
    while first and _CONSEQUENCES.match(wrong[first].text):
        first -= 1
    return Note(wrong[-1].at, "; ".join(note.text for note in wrong[first:]))


def note_in(line: str) -> Note | None:
    """Return the note in a line of a log; None if the extension wrote the line."""
    found = _NOTE.fullmatch(line)
    return Note(found[1], found[2]) if found else None


def _notes(path: str) -> Iterator[Note]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:  # Never run, or unreadable.
        return
    for line in text.split("\n"):
        if note := note_in(line):
            yield note


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:  # Rotated just now, or never run.
        return None


def _has_moved(path: str, fd: int) -> bool:
    """Return whether ``path`` is another file by now, or was truncated."""
    here = os.fstat(fd)
    if os.lseek(fd, 0, os.SEEK_CUR) > here.st_size:
        return True
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)
