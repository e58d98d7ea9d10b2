"""Users' files: read without waiting for a pipe or a device, decoded with one list of what can go wrong."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from zot.errors import ConfigError, MalformedFile

T = TypeVar("T")

#: What decoding bytes can raise, in any format: msgspec, tomllib and json, text that is not UTF-8, and deep nesting.
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
#: No file of settings is longer.
MAX_BYTES = 16 * 1024 * 1024

_SLICE_BYTES = 1024 * 1024
_MAX_PIPED_BYTES = 64 * 1024 * 1024
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def load(
    path: str,
    decode: Callable[[bytes], T],
    *,
    check: Callable[[os.stat_result], None] | None = None,
    max_bytes: int = MAX_BYTES,
) -> T:
    """Return a user's file, decoded. Without such a file raise FileNotFoundError or NotADirectoryError.

    Raise MalformedFile if it cannot be decoded, another ConfigError if it cannot be read or is longer than
    ``max_bytes``, and whatever ``check`` raises about the status of the opened file.
    """
    try:
        data = b"".join(slices(path, check=check, max_bytes=max_bytes))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    return decoded(data, decode, path)


def decoded(data: bytes, decode: Callable[[bytes], T], place: str) -> T:
    """Return ``decode(data)``. If that fails, raise MalformedFile, which names ``place`` and the reason."""
    try:
        return decode(data)
    except UNDECODABLE as problem:
        raise MalformedFile(place, _reason(problem)) from None


def _reason(problem: BaseException) -> str:
    match problem:
        case RecursionError():
            return "nested too deeply"
        case UnicodeDecodeError():
            return f"not UTF-8, at byte {problem.start}"
        case _:
            return str(problem)


def content(path: str, *, pipe_silence_s: float | None = None) -> bytes:
    """Return the content of a file. Raise OSError as `slices` does."""
    return b"".join(slices(path, pipe_silence_s=pipe_silence_s))


def slices(
    path: str,
    *,
    pipe_silence_s: float | None = None,
    check: Callable[[os.stat_result], None] | None = None,
    max_bytes: int | None = None,
) -> Iterator[bytes]:
    """Yield the content of a file piece by piece. Raise OSError, also if it is a pipe, a device or the like.

    With ``pipe_silence_s`` a pipe is read, too, unless nobody writes into it for so long. ``check`` may refuse the file
    by its status. A file that is longer than ``max_bytes`` is an OSError (EFBIG).
    """
    fd = os.open(path, _OPEN)
    try:
        # The status of the opened file, not of its name: a link may lead anywhere, and may change meanwhile.
        status = os.fstat(fd)
        if check is not None:
            check(status)
        mode = status.st_mode
        if stat.S_ISFIFO(mode) and pipe_silence_s is not None:
            yield from _piped(fd, path, pipe_silence_s)
            return
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        size = 0
        while data := os.read(fd, _SLICE_BYTES):
            size += len(data)
            if max_bytes is not None and size > max_bytes:
                raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", path)
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
