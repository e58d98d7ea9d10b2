"""Private files with atomic replacement and locks, and reading of untrusted paths without blocking."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from zot.encoding import explain
from zot.errors import ABSENT, NOT_ON_WINDOWS, ConfigError, MalformedFile, UserError

if TYPE_CHECKING:
    import hashlib

if sys.platform == "win32":
    # Every session needs this module. Without the check, `fcntl` or `os.O_NONBLOCK` would fail obscurely.
    raise ImportError(NOT_ON_WINDOWS)

T = TypeVar("T")

#: Exceptions that decoding bytes can raise, in any format: msgspec, tomllib, json, non-UTF-8 text, deep nesting.
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
#: Largest settings file.
MAX_BYTES = 16 * 1024 * 1024

_SLICE_BYTES = 1024 * 1024
_MAX_PIPED_BYTES = 64 * 1024 * 1024
#: Sufficient to open files inside, even of an unreadable directory.
OPEN_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
#: The kernel's own limit.
MAX_LINKS = 40
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

#: Longest wait for another zot process that changes the same file; it holds the lock for milliseconds.
LOCK_S = 5.0
_POLL_S = 0.002

#: A file changed more recently than this may change again without a different timestamp.
_UNSETTLED_NS = 1_000_000_000
#: The most results that a FileCache keeps.
_MAX_CACHED = 256


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


def is_there(path: str) -> bool:
    """True if a user's file exists, or a link of its name. Raise ConfigError if that cannot be determined."""
    try:
        os.lstat(path)
    except ABSENT:
        return False
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ConfigError(f"{path}: {reason}") from None
    return True


def decoded(data: bytes, decode: Callable[[bytes], T], place: str) -> T:
    """Return ``decode(data)``. Raise MalformedFile with ``place`` and the reason if decoding fails."""
    try:
        return decode(data)
    except UNDECODABLE as problem:
        raise MalformedFile(place, explain(problem)) from None


class FileCache(Generic[T]):
    """Results of ``load`` by path, each kept until its file changes. Usable from any thread; the least recently used
    result is evicted."""

    def __init__(self, load: Callable[[str], T]) -> None:
        self._load = load
        self._known: OrderedDict[str, tuple[tuple[int, ...], T]] = OrderedDict()

    def read(self, path: str) -> T:
        """Return the result for a file: do not modify it. Raise what ``load`` raises."""
        place = os.path.abspath(path)
        # Stat before reading: a change in between costs one more read and is never missed.
        known, seen = self._known.pop(place, None), _file_state(path)
        value = known[1] if known is not None and known[0] == seen else self._load(path)
        if seen is not None:
            self._known[place] = seen, value
            if len(self._known) > _MAX_CACHED:
                self._known.popitem(last=False)
        return value


def _file_state(path: str) -> tuple[int, ...] | None:
    """Return a file's identity and timestamps; None if a change might go unnoticed."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if found.st_mtime_ns > time.time_ns() - _UNSETTLED_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_content(path: str, *, pipe_silence_s: float | None = None) -> bytes:
    """Return the content of a file. Raise OSError as `read_chunks` does."""
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
    way = [os.open(directory, OPEN_DIRECTORY)]
    try:
        device = os.fstat(way[0]).st_dev
        left, links = _path_names(path), 0
        while left:
            name = left.pop()
            if name == "..":
                if len(way) == 1:
                    raise OSError(errno.EXDEV, "leads out of its directory", path)
                os.close(way.pop())
            elif (target := link_target(name, way[-1])) is not None:
                links += 1
                if links > MAX_LINKS or target.startswith("/"):
                    raise OSError(errno.ELOOP, "leads out of its directory", path)
                left += _path_names(target)
            elif left:
                way.append(os.open(name, OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=way[-1]))
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


def link_target(name: str, directory: int) -> str | None:
    """Return the target of a symbolic link; None if there is no link of this name. Raise OSError."""
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as problem:
        if problem.errno == errno.EINVAL:  # not a link
            return None
        raise


def _path_names(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def _piped(fd: int, path: str, silence_s: float) -> Iterator[bytes]:
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
    raise OSError(errno.ETIMEDOUT, f"a pipe without data for {silence_s:g} s", path)


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


def sha256(data: bytes = b"") -> hashlib._Hash:
    """Return the SHA-256 hash of ``data``, to which more can be added."""
    import hashlib  # Imported lazily: it loads OpenSSL, and few sessions read files or have images.

    return hashlib.sha256(data)


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


def open_private(path: str, flags: int) -> int:
    """Open a file; create a missing one with mode 0600, whatever the umask. Raise OSError."""
    flags |= os.O_CREAT | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def replace_file(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically; a link to it stays a link. Raise ConfigError."""
    try:
        write_file(os.path.realpath(path), data, mode=mode)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None


def write_file(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Create or replace a file atomically, with this mode, whatever the umask. Raise OSError."""
    temp = f"{path}.{os.urandom(8).hex()}"
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temp, path)
    except BaseException:
        os.unlink(temp)
        raise


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
    try:
        if not lock_within(descriptor, LOCK_S):
            raise ConfigError(f"{directory} has been locked by another zot for {LOCK_S:g} s; try again")
    except OSError as problem:
        raise ConfigError(f"{directory} cannot be locked: {problem.strerror}") from None


def lock_within(descriptor: int, limit_s: float) -> bool:
    """Wait until no other process holds the lock on an open file, and hold it. False after ``limit_s``. Raise OSError.

    Closing the descriptor releases the lock.
    """
    deadline = time.monotonic() + limit_s
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Hold the lock on an open file if no other process holds it. Raise OSError, as on a file system without locks."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
