"""The complete output of a command that said more than the model is shown, in a file that it can look into."""

from __future__ import annotations

import os

#: A command that never stops talking must not fill the disk.
MAX_SPILL_BYTES = 1 << 30


class Spill:
    """A file that is made when there is something to put in, readable by this user only.

    A disk that is full, or anything else that goes wrong, ends the file and not the command: ``problem`` says why
    the file ends early.
    """

    def __init__(self, directory: str, *, max_bytes: int = MAX_SPILL_BYTES) -> None:
        self.path = os.path.join(directory, f"bash-{os.urandom(8).hex()}.txt")
        self.problem: str | None = None
        self.written_bytes = 0
        self._max_bytes = max_bytes
        self._fd: int | None = None

    @property
    def exists(self) -> bool:
        """True if there is such a file, complete or not."""
        return self._fd is not None or self.written_bytes > 0

    def write(self, data: bytes) -> None:
        """Add ``data``; nothing any more once something went wrong.

        A direct call and not a thread: it goes to the page cache, and the reader of a pipe must not run ahead.
        """
        if self.problem is not None:
            return
        rest = memoryview(data)[: self._max_bytes - self.written_bytes]
        try:
            if self._fd is None:
                self._fd = _create(self.path)
            while rest:
                count = os.write(self._fd, rest)
                self.written_bytes += count
                rest = rest[count:]
        except OSError as exc:
            self.problem = exc.strerror or str(exc)
        if self.problem is None and self.written_bytes == self._max_bytes:
            self.problem = "the limit of a spill file"

    def close(self) -> None:
        """Nothing more will come. Safe any number of times."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def note(self) -> str:
        """Say where the output is, and how much of it."""
        if not self.exists:
            return f"the rest could not be kept: {self.problem}"
        if self.problem is not None:
            return f"only the first {self.written_bytes} bytes are in {self.path}: {self.problem}"
        return f"the complete output is in {self.path}"


def _create(path: str) -> int:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
