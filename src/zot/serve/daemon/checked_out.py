"""Branch and commit of a git working tree, read from its files. No git is run."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

from zot.files import read_chunks

#: Length of an abbreviated commit id.
_SHORT = 7
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MAX_PACKED_BYTES = 16 << 20
#: Placeholder in HEAD of a repository with reftables, which we cannot read.
_UNREADABLE = "refs/heads/.invalid"


class CheckedOut(NamedTuple):
    """A branch and a commit; each "" if there is none."""

    branch: str = ""
    commit: str = ""


def checked_out(directory: str) -> CheckedOut:
    """Return the branch and commit of the working tree around ``directory``; no commit before the first one.

    The repository may be hostile: only regular files are read, and only references inside it.
    """
    try:
        if (git := _git_directory(directory)) is None:
            return CheckedOut()
        head = _line(os.path.join(git, "HEAD"))
    except OSError:
        return CheckedOut()
    name = head.removeprefix("ref: ")
    if name == head:
        return CheckedOut(commit=head[:_SHORT] if _COMMIT.fullmatch(head) else "")
    if name == _UNREADABLE or not _is_reference(name):
        return CheckedOut()
    commit = _commit(git, name)
    return CheckedOut(name.removeprefix("refs/heads/"), commit[:_SHORT] if _COMMIT.fullmatch(commit) else "")


def _is_reference(name: str) -> bool:
    """True if git would accept the name of a reference, as far as that keeps it inside the repository."""
    parts = name.split("/")
    return (
        parts[0] == "refs"
        and len(parts) > 1
        and name.isprintable()
        and not any(not part or part.startswith(".") or ".." in part for part in parts)
    )


def _git_directory(directory: str) -> str | None:
    """Return the git directory of the working tree around ``directory``; None if there is none."""
    while not os.path.exists(git := os.path.join(directory, ".git")):
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above
    if os.path.isdir(git):
        return git
    return os.path.join(directory, _line(git).removeprefix("gitdir: "))  # A worktree or a submodule.


def _commit(git: str, name: str) -> str:
    """Return the commit of a reference, loose or packed; "" if there is none yet."""
    common = git
    with suppress(OSError):
        common = os.path.join(git, _line(os.path.join(git, "commondir")))  # Worktrees share their branches.
    for place in (git, common):
        with suppress(OSError):
            return _line(os.path.join(place, name))
    with suppress(OSError):
        packed = b"".join(read_chunks(os.path.join(common, "packed-refs"), max_bytes=_MAX_PACKED_BYTES))
        for line in packed.decode("utf-8", "replace").split("\n"):
            commit, _, named = line.partition(" ")
            if named == name:
                return commit
    return ""


def _line(path: str) -> str:
    """Return the first line of a regular file. Raise OSError, also for a pipe or a device, and never wait."""
    data = next(read_chunks(path), b"")
    return data[:4096].decode("utf-8", "replace").partition("\n")[0].strip()
