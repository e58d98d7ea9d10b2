"""Files that others put there, read without waiting for what never comes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

_SLICE_BYTES = 1024 * 1024
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def slices(path: str) -> Iterator[bytes]:
    """Yield the content of a file piece by piece. Raise OSError, also if it is a pipe, a device or the like."""
    fd = os.open(path, _OPEN)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        while data := os.read(fd, _SLICE_BYTES):
            yield data
    finally:
        os.close(fd)
