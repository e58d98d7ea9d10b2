"""Log files of the daemon: rotation, the logging handler, and live subscriptions."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from typing import TYPE_CHECKING, Literal

from zot.files import lock_within, make_directory
from zot.messages import timestamp
from zot.serve.daemon.backlog import MAX_UNREAD_BYTES, Wire
from zot.text import printable
from zot.version import __version__
from zot.wire.jsonrpc import encode_notification

if TYPE_CHECKING:
    from zot.wire.daemon_types import LogEvent

#: Severity number from each level on.
_SEVERITIES: Sequence[tuple[int, Literal[1, 5, 9, 13, 17]]] = (
    (logging.ERROR, 17),
    (logging.WARNING, 13),
    (logging.INFO, 9),
    (logging.DEBUG, 5),
    (logging.NOTSET, 1),
)

MAX_BYTES = 10 * 1024 * 1024
FILES = 5
#: How long to wait for the lock.
_LOCK_S = 0.1
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


class LogFeed(logging.Handler):
    """Sends every log line to its subscribers. A slow one misses lines, without other consequences."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._wires: set[Wire] = set()
        self._numbers = count(1)

    def subscribe(self, wire: Wire) -> None:
        """Send the log to a client from now on."""
        self._wires.add(wire)

    def leave(self, wire: Wire) -> None:
        """End a subscription."""
        self._wires.discard(wire)

    def emit(self, record: logging.LogRecord) -> None:
        """Accept a record from any thread."""
        if self._wires and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, self._event(record))

    def _event(self, record: logging.LogRecord) -> LogEvent:
        # Imported lazily: `initialize` is answered before.
        from zot.wire.daemon_types import LogEvent, LogHappening, LogService

        return LogEvent(
            id=f"log_{next(self._numbers)}",
            timestamp=timestamp(record.created),
            severity_number=next(number for level, number in _SEVERITIES if record.levelno >= level),
            severity_text=record.levelname,
            event=LogHappening("daemon", record.name),
            service=LogService("zot", __version__),
            message=record.getMessage(),
        )

    def _send(self, event: LogEvent) -> None:
        line = encode_notification("logs/event", event)
        for wire in self._wires:
            if wire.unread < MAX_UNREAD_BYTES // 4:
                wire.send(line)


class LogFile:
    """Append-only file, private to its owner. Older lines are in ``path.1`` and so on, the oldest last.

    Several processes may write it; each holds `alone` for lines that belong together. Never raises: ``problem`` says
    why the last `append` failed.
    """

    def __init__(self, path: str, *, max_bytes: int = MAX_BYTES, files: int = FILES) -> None:
        self.path = path
        self.problem = ""
        self._max_bytes = max_bytes
        self._files = files
        self._descriptor = -1
        self._size = 0

    @property
    def is_as_we_left_it(self) -> bool:
        """False if another process wrote, moved or removed the file since our last write; also before the first."""
        try:
            return self._is_in_place() and os.fstat(self._descriptor).st_size == self._size
        except OSError:  # `append` reports the problem.
            return False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold a lock between processes; proceed without it after a short wait, so a stuck process blocks no other."""
        try:
            directory = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # No directory: no file to share.
            yield
            return
        try:
            with suppress(OSError):  # Not every file system supports locks.
                lock_within(directory, _LOCK_S)
            yield
        finally:
            os.close(directory)

    def append(self, lines: bytes) -> bool:
        """Append whole lines, or nothing. False if there is no room, or no file."""
        try:
            self._find_place(len(lines))
            self._write(lines)
        except OSError as problem:
            self.problem = problem.strerror or str(problem)
            return False
        self.problem = ""
        return True

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _find_place(self, size: int) -> None:
        """Open the file if necessary, and rotate it if ``size`` more bytes do not fit."""
        if self._is_in_place():
            self._size = os.fstat(self._descriptor).st_size
        else:
            self._open()
        if self._size and self._size + size > self._max_bytes:
            for path, older in reversed(_pairs(self.path, self._files)):
                # A crash in between leaves a gap in the numbers, which the next rotation closes.
                if os.path.lexists(path):
                    os.rename(path, older)
            self._open()

    def _is_in_place(self) -> bool:
        """False if the file was moved or removed, or is not open."""
        if self._descriptor < 0:
            return False
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        self.close()
        make_directory(os.path.dirname(self.path))
        descriptor = os.open(self.path, _OPEN, 0o600)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(descriptor)
            raise OSError(0, f"{self.path} is not a file of ours")
        self._descriptor, self._size = descriptor, found.st_size
        os.fchmod(descriptor, 0o600)
        if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
            self._write(b"\n")  # A process died in the middle of a line.

    def _write(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        if written < len(data):  # The disk is full: half a line is worse than none.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(0, "there is no room")
        self._size += written


def log_files(path: str, files: int = FILES) -> list[str]:
    """Return the existing files of a log, oldest first."""
    every = [path, *(older for _, older in _pairs(path, files))][::-1]
    return [one for one in every if os.path.isfile(one)]


def _pairs(path: str, files: int) -> list[tuple[str, str]]:
    """Return the renames of a rotation, newest first."""
    names = [path, *(f"{path}.{number}" for number in range(1, files))]
    return [*pairwise(names)]


class LogHandler(logging.Handler):
    """Writes log records to a file. Lines that cannot be written are counted and reported later."""

    def __init__(self, file: LogFile) -> None:
        super().__init__()
        self._file = file
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Never raises: a full disk must not stop the daemon."""
        line = self._line(record).encode("utf-8", "backslashreplace")
        if self._lost:
            line = f"{timestamp()} WARNING {self._lost} lines could not be written\n".encode() + line
        self._lost = 0 if self._file.append(line) else self._lost + 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            text = record.getMessage()
        except Exception as problem:  # A bad format or argument: logging must not raise in its caller.
            text = f"{record.msg if isinstance(record.msg, str) else '?'}: cannot be shown: {type(problem).__name__}"
        lines = [f"{timestamp(record.created)} {record.levelname} {printable(text)}"]
        if record.exc_info and record.exc_info[0] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            lines += [f"    {printable(line)}" for line in trace.split("\n")]
        return "\n".join(lines) + "\n"
