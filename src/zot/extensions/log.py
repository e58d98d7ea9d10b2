"""What an extension complains about, and what zot has to say of it, in one file."""

from __future__ import annotations

import os
import stat

from zot.messages import timestamp
from zot.printable import printable
from zot.private import make_directory

#: A longer one is begun anew; so much of the end of the one before it is kept.
MAX_BYTES = 8 * 1024 * 1024
#: What stands before the name of one that is started after a crash; no name has a colon.
AGAIN = "again: "


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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
