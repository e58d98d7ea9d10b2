"""Directories and files that only their owner can read, and changes that no other process interrupts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from zot.errors import ConfigError, UserError

#: How long to wait for another zot that changes the same file; it holds the lock for milliseconds.
LOCK_S = 5.0
_LOOK_AGAIN_S = 0.02


def make_directory(path: str) -> None:
    """Make a directory, and those above it that are missing, for us alone whatever the umask. Raise OSError.

    One that exists stays as it is.
    """
    if not path or os.path.isdir(path):
        return
    make_directory(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:  # somebody was faster, or it is no directory: who uses it will be told
        return
    os.chmod(path, 0o700)  # The umask may have taken away our own rights, too.


def write_new(path: str, pieces: Iterable[bytes]) -> None:
    """Write a new file; it does not stay if it is not complete. Raise UserError if that cannot be done."""
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
    """Replace a file, whole or not at all; a link to it stays a link. Raise ConfigError."""
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
def exclusive(directory: str) -> Iterator[None]:
    """Hold the lock on a directory, which is made if it is missing. Raise ConfigError after LOCK_S without it."""
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
            time.sleep(_LOOK_AGAIN_S)
        except OSError as problem:
            raise ConfigError(f"{directory} cannot be locked: {problem.strerror}") from None
        else:
            return
