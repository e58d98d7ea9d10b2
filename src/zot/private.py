"""Directories for their owner's eyes only."""

from __future__ import annotations

import os


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
