"""What an extension complains about, and what zot has to say of it, in one file."""

from __future__ import annotations

import os
import stat

from zot.messages import timestamp
from zot.printable import printable
from zot.private import make_directory

#: A longer one is put aside when the extension is started next; one before it is kept.
MAX_BYTES = 8 * 1024 * 1024


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
                self._rotate(self._path)
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

    def _rotate(self, path: str) -> None:
        if os.path.lexists(path) and os.lstat(path).st_size > MAX_BYTES:
            os.replace(path, f"{path}.1")
