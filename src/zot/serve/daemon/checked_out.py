"""What git has checked out in a directory. Reads git's files, and runs nothing: a repository can name programs."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

#: How much of a commit's name is shown.
_SHORT = 7
#: What stands in HEAD where git keeps its references in a table that we cannot read.
_UNREADABLE = "refs/heads/.invalid"


class CheckedOut(NamedTuple):
    """A branch, and a commit; each "" if there is none."""

    branch: str = ""
    commit: str = ""


def checked_out(directory: str) -> CheckedOut:
    """Return what is checked out where this directory is; a branch without a commit if nothing was committed yet."""
    try:
        if (git := _git_directory(directory)) is None:
            return CheckedOut()
        head = _line(os.path.join(git, "HEAD"))
    except OSError:
        return CheckedOut()
    name = head.removeprefix("ref: ")
    if name == head:
        return CheckedOut(commit=head[:_SHORT])
    if name == _UNREADABLE:
        return CheckedOut()
    return CheckedOut(name.removeprefix("refs/heads/"), _commit(git, name)[:_SHORT])


def _git_directory(directory: str) -> str | None:
    """Return where git keeps what it knows of the working tree around a directory; None if there is none."""
    while not os.path.exists(git := os.path.join(directory, ".git")):
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above
    if os.path.isdir(git):
        return git
    return os.path.join(directory, _line(git).removeprefix("gitdir: "))  # of a worktree, or a submodule


def _commit(git: str, name: str) -> str:
    """Return the commit that a reference names, wherever git keeps it; "" if there is none yet."""
    common = git
    with suppress(OSError):
        common = os.path.join(git, _line(os.path.join(git, "commondir")))  # Worktrees share their branches.
    for place in (git, common):
        with suppress(OSError):
            return _line(os.path.join(place, name))
    with suppress(OSError), open(os.path.join(common, "packed-refs"), encoding="utf-8", errors="replace") as file:
        for line in file:
            commit, _, named = line.rstrip("\n").partition(" ")
            if named == name:
                return commit
    return ""


def _line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4096).partition("\n")[0].strip()
