"""Private files with atomic replacement and locks, and reading of untrusted paths without blocking."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from zot.errors import ConfigError, MalformedFile, UserError

T = TypeVar("T")

#: Exceptions that decoding bytes can raise, in any format: msgspec, tomllib, json, non-UTF-8 text, deep nesting.
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
#: Largest settings file.
MAX_BYTES = 16 * 1024 * 1024

_SLICE_BYTES = 1024 * 1024
_MAX_PIPED_BYTES = 64 * 1024 * 1024
_OPEN_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
#: The kernel's own limit.
_MAX_LINKS = 40
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

#: Longest wait for another zot process that changes the same file; it holds the lock for milliseconds.
LOCK_S = 5.0
_POLL_S = 0.02


def load(
    path: str,
    decode: Callable[[bytes], T],
    *,
    check: Callable[[os.stat_result], None] | None = None,
    max_bytes: int = MAX_BYTES,
) -> T:
    """Return a user's file, decoded. Raise FileNotFoundError or NotADirectoryError if there is none.

    Raise MalformedFile if it cannot be decoded, another ConfigError if it cannot be read or is longer than
    ``max_bytes``, and any error that ``check`` raises about the status of the opened file.
    """
    try:
        data = b"".join(read_chunks(path, check=check, max_bytes=max_bytes))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    return decoded(data, decode, path)


def decoded(data: bytes, decode: Callable[[bytes], T], place: str) -> T:
    """Return ``decode(data)``. Raise MalformedFile with ``place`` and the reason if decoding fails."""
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


def read_content(path: str, *, pipe_silence_s: float | None = None) -> bytes:
    """Return the content of a file. Raise OSError as `slices` does."""
    return b"".join(read_chunks(path, pipe_silence_s=pipe_silence_s))


def read_chunks(
    path: str,
    *,
    pipe_silence_s: float | None = None,
    check: Callable[[os.stat_result], None] | None = None,
    max_bytes: int | None = None,
) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raise OSError, also for pipes, devices and the like.

    With ``pipe_silence_s``, read a pipe too, and raise OSError after that time without data. ``check`` may refuse
    the file by its status. A file longer than ``max_bytes`` raises OSError (EFBIG).
    """
    fd = os.open(path, _OPEN)
    try:
        # Status of the descriptor, not of the path: a link may lead anywhere and may change meanwhile.
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


def open_beneath(directory: str, path: str) -> int:
    """Open a regular file in ``directory`` for reading, wherever links in ``path`` lead as long as they stay inside.

    Every name is opened by the descriptor of its directory and without following links; links are read here. So a link
    that is put in the way meanwhile is not followed. Raise OSError: for what leads out, lies on another file system,
    such as that of processes, or is no regular file.
    """
    way = [os.open(directory, _OPEN_DIRECTORY)]
    try:
        device = os.fstat(way[0]).st_dev
        left, links = _path_names(path), 0
        while left:
            name = left.pop()
            if name == "..":
                if len(way) == 1:
                    raise OSError(errno.EXDEV, "leads out of its directory", path)
                os.close(way.pop())
            elif (target := _link_target(name, way[-1])) is not None:
                links += 1
                if links > _MAX_LINKS or target.startswith("/"):
                    raise OSError(errno.ELOOP, "leads out of its directory", path)
                left += _path_names(target)
            elif left:
                way.append(os.open(name, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=way[-1]))
            else:
                return _open_regular(name, way[-1], device)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    finally:
        for fd in way:
            os.close(fd)


def _open_regular(name: str, directory: int, device: int) -> int:
    # Of the directory, not of the file: on layered file systems a file may have the number of its layer.
    if os.fstat(directory).st_dev != device:
        raise OSError(errno.EXDEV, "leads to another file system", name)
    fd = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=directory)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", name)


def _link_target(name: str, directory: int) -> str | None:
    """Return the target of a symbolic link; None if it is none. Raise OSError."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as problem:
        if problem.errno == errno.EINVAL:  # not a link
            return None
        raise


def _path_names(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def _piped(fd: int, path: str, silence_s: float) -> Iterator[bytes]:
    import select  # Imported lazily: pipes are rare.

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


def make_directory(path: str) -> None:
    """Create a directory and its missing parents with mode 0700, whatever the umask. Raise OSError.

    An existing directory is left unchanged.
    """
    if not path or os.path.isdir(path):
        return
    make_directory(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:  # created meanwhile, or not a directory: using it will fail
        return
    os.chmod(path, 0o700)  # The umask may have removed our own permissions.


def write_new(path: str, pieces: Iterable[bytes]) -> None:
    """Write a new file; remove it if writing fails. Raise UserError."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            try:
                file.writelines(pieces)
                file.flush()
            except BaseException:
                os.unlink(path)
                raise
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror}") from None


def replace_file(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically; a link to it stays a link. Raise ConfigError."""
    target = os.path.realpath(path)
    temp = f"{target}.{os.urandom(8).hex()}"
    try:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)  # whatever the umask
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(temp, target)
        except BaseException:
            os.unlink(temp)
            raise
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None


@contextmanager
def directory_lock(directory: str) -> Iterator[None]:
    """Hold the lock on a directory, creating it if missing. Raise ConfigError after LOCK_S."""
    try:
        make_directory(directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        raise ConfigError(f"{directory}: {problem.strerror}") from None
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: str) -> None:
    import fcntl

    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(f"{directory} has been locked by another zot for {LOCK_S:g} s; try again") from None
            time.sleep(_POLL_S)
        except OSError as problem:
            raise ConfigError(f"{directory} cannot be locked: {problem.strerror}") from None
        else:
            return
