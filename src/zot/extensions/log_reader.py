"""What the log of an extension tells: all of it, what comes, and what went wrong last."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import msgspec

from zot.extensions.log import AGAIN

_SLICE_BYTES = 64 * 1024
#: How much of the end of a log is looked at for a problem.
_TAIL_BYTES = 64 * 1024
_NOTE = re.compile(r"\[zot\] (\S+Z) (.*)")
#: What comes of a problem that was told before.
_AFTERMATH = re.compile(r"exited with |was killed|is not started again")


class Note(msgspec.Struct, frozen=True):
    """A line of zot's own in the log: when, and what."""

    at: str
    text: str


def read(path: str) -> Iterator[bytes]:
    """Yield what is in the log, piece by piece. Raise OSError."""
    with open(path, "rb") as file:
        while data := file.read(_SLICE_BYTES):
            yield data


def follow(path: str, wait: Callable[[], bool]) -> Iterator[bytes]:
    """Yield what is in the log and what is added, also when it is put aside and begun anew. Raise OSError.

    ``wait`` is called when there is nothing new; False from it is the end.
    """
    fd: int | None = None
    try:
        while True:
            if fd is None:
                fd = _opened(path)
            moved = fd is not None and _has_moved(path, fd)  # Before it is read: what was added until then counts.
            while fd is not None and (data := os.read(fd, _SLICE_BYTES)):
                yield data
            if moved and fd is not None:
                os.close(fd)
                fd = None
            elif not wait():
                return
    finally:
        if fd is not None:
            os.close(fd)


def problem(path: str) -> Note | None:
    """Return what went wrong in the last run that has ended, or since; None if nothing did, or nobody knows.

    A run lasts as long as its session: when it has crashed and is started again, it goes on.

    A run without a problem that has not ended says nothing about the one before, which may have crashed.
    """
    runs: list[list[Note]] = [[]]
    for note in _notes(path):
        if not note.text.startswith("starting "):
            runs[-1].append(note)
        elif not note.text.startswith(f"starting {AGAIN}"):
            runs.append([])
    for run in reversed(runs):
        if wrong := [note for note in run if note.text != "exited with 0"]:
            return _with_cause(wrong)
        if run:
            return None
    return None


def _with_cause(wrong: list[Note]) -> Note:
    """Return the last of these with what led to it: what is wrong is often ended for it, and that says nothing."""
    first = len(wrong) - 1
    while first and _AFTERMATH.match(wrong[first].text):
        first -= 1
    return Note(wrong[-1].at, "; ".join(note.text for note in wrong[first:]))


def note_in(line: str) -> Note | None:
    """Return what zot says in a line of a log; None if the extension said it."""
    found = _NOTE.fullmatch(line)
    return Note(found[1], found[2]) if found else None


def _notes(path: str) -> Iterator[Note]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:  # It has never run, or its log cannot be read: then nothing is known.
        return
    for line in text.split("\n"):
        if note := note_in(line):
            yield note


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:  # Between two files, or it has not run yet.
        return None


def _has_moved(path: str, fd: int) -> bool:
    """Tell if there is another log at ``path`` by now, or this one was begun anew."""
    here = os.fstat(fd)
    if os.lseek(fd, 0, os.SEEK_CUR) > here.st_size:
        return True
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)
