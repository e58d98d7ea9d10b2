"""What an extension complains about, and what zot has to say of it, in one file."""

from __future__ import annotations

import os
import stat

from zot.messages import timestamp
from zot.private import make_directory
from zot.text import printable

#: A longer one is begun anew; so much of the end of the one before it is kept.
MAX_BYTES = 8 * 1024 * 1024
#: What stands before the name of one that is started after a crash; no name has a colon.
AGAIN = "again: "
#: How much of what an extension wrote last is shown when it fails.
_LAST_LINES = 3
_LAST_CHARACTERS = 200
_LAST_BYTES = 16 * 1024


def log_path(home: str, name: str) -> str:
    """Return where the log of the extension ``name`` is."""
    return os.path.join(home, "logs", f"ext-{name}.log")


class Log:
    """The log of the extension ``name``, or none at all without a ``home`` that can be written to."""

    def __init__(self, home: str | None, name: str) -> None:
        self._path = log_path(home, name) if home is not None else None

    def open(self) -> int:
        """Return a descriptor that appends to it; of nothing if it cannot be written. The caller closes it."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            if self._path is not None:
                make_directory(os.path.dirname(self._path))
                self.keep_short()
                fd = os.open(self._path, flags, 0o600)
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    return fd
                os.close(fd)
        except OSError:  # The extension can do without.
            pass
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def path(self) -> str | None:
        """Where it is; None if there is none."""
        return self._path

    def end(self) -> int:
        """Return how long it is."""
        try:
            return 0 if self._path is None else os.stat(self._path).st_size
        except OSError:
            return 0

    def last_words(self, since: int) -> list[str]:
        """Return the last lines that the extension itself has written from ``since`` on, fit to be shown."""
        if self._path is None:
            return []
        try:
            with open(self._path, "rb", opener=_regular) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(since if since <= size else 0, size - _LAST_BYTES))  # it may have been begun anew
                text = file.read(_LAST_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        lines = [printable(line.strip()) for line in text.split("\n") if not line.startswith("[zot] ")]
        return [shortened(line) for line in lines if line.strip("^~ ")][-_LAST_LINES:]  # without a traceback's marks

    def note(self, text: str) -> None:
        """Write a line of our own."""
        fd = self.open()
        try:
            os.write(fd, f"[zot] {timestamp()} {printable(text)}\n".encode())
        except OSError:  # A full disk is no reason to stop.
            pass
        finally:
            os.close(fd)

    def keep_short(self) -> None:
        """Begin it anew if it has become too long. Whoever has it open goes on writing into it."""
        try:
            if self._path is not None and os.lstat(self._path).st_size > MAX_BYTES:
                _begin_anew(self._path)
        except OSError:  # It is not there yet, or is not ours to shorten.
            pass


def _begin_anew(path: str) -> None:
    """Put the end of a log aside and empty it. It cannot be renamed, because an extension has it open."""
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
    """Return a line that is not too long for a notice."""
    return line if len(line) <= _LAST_CHARACTERS else f"{line[:_LAST_CHARACTERS]}..."


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
