"""Directories and files for their owner's eyes only."""

from __future__ import annotations

import os
from collections.abc import Iterable

from zot.errors import UserError


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
