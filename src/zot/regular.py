"""Files that others put there, read without waiting for what never comes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

_SLICE_BYTES = 1024 * 1024
_MAX_PIPED_BYTES = 64 * 1024 * 1024
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def content(path: str, *, pipe_silence_s: float | None = None) -> bytes:
    """Return the content of a file. Raise OSError as `slices` does."""
    return b"".join(slices(path, pipe_silence_s=pipe_silence_s))


def slices(path: str, *, pipe_silence_s: float | None = None) -> Iterator[bytes]:
    """Yield the content of a file piece by piece. Raise OSError, also if it is a pipe, a device or the like.

    With ``pipe_silence_s`` a pipe is read, too, unless nobody writes into it for so long.
    """
    fd = os.open(path, _OPEN)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) and pipe_silence_s is not None:
            yield from _piped(fd, path, pipe_silence_s)
            return
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        while data := os.read(fd, _SLICE_BYTES):
            yield data
    finally:
        os.close(fd)


def _piped(fd: int, path: str, silence_s: float) -> Iterator[bytes]:
    import select  # Few pipes are read.

    poll, size = select.poll(), 0
    poll.register(fd, select.POLLIN)
    while poll.poll(silence_s * 1000):
        data = os.read(fd, _SLICE_BYTES)
        if not data:
            return
        size += len(data)
        if size > _MAX_PIPED_BYTES:
            raise OSError(errno.EFBIG, f"a pipe with more than {_MAX_PIPED_BYTES // 1024**2} MiB", path)
        yield data
    raise OSError(errno.ETIMEDOUT, f"a pipe into which nobody has written for {silence_s:g} s", path)
