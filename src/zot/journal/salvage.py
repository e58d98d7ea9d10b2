"""A damaged file: what is readable of it goes into a fresh one; the old one is kept aside."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from glob import escape, glob

from zot.errors import StoreFailed
from zot.journal.pages import read_pages, rows_in
from zot.journal.rescue import rescue
from zot.journal.schema import connect, explained, is_there, migrate, prepare, replacement
from zot.messages import timestamp


def salvage(path: str) -> list[str]:
    """Replace the file by what is readable of it; return what was lost, in words. Whoever calls this has it alone.

    Raise StoreFailed if that cannot be done; then the file is what it was.
    """
    fresh = f"{path}.new"
    try:
        _remove(fresh)
        lost = _refill(path, fresh)
        aside = _free_name(f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
        os.link(path, aside)
        os.rename(fresh, replacement(path))
        finish(path)
    except OSError as problem:
        raise StoreFailed(f"{path} is damaged, and what is readable cannot be saved: {problem}") from problem
    except sqlite3.Error as problem:
        raise StoreFailed(f"{path} is damaged; saving what is readable: {explained(problem, fresh)}") from problem
    finally:
        _remove(fresh)
    return [f"{path} was damaged; what could be read is in a new file, the old one is {aside}", *lost]


def finish(path: str) -> None:
    """Put the new file, if one is ready, in the place of the damaged one. Whoever calls this has it alone.

    A process that dies here leaves the rest to the next one, which must not open the old file: what was written ahead
    of it may be elsewhere already. Raise StoreFailed.
    """
    ready = replacement(path)
    if not is_there(ready):
        return
    try:
        for aside in glob(f"{escape(path)}.damaged-*"):
            if os.path.samefile(path, aside):
                with suppress(FileNotFoundError):  # it would be taken for the new file's
                    if os.path.getsize(f"{path}-wal"):
                        os.rename(f"{path}-wal", f"{aside}-wal")
                    else:
                        os.unlink(f"{path}-wal")
        with suppress(FileNotFoundError):
            os.unlink(f"{path}-shm")
        os.replace(ready, path)
    except OSError as problem:
        raise StoreFailed(f"{path} is damaged, and what is readable cannot take its place: {problem}") from problem


def _refill(path: str, fresh: str) -> list[str]:
    pages = read_pages(_contents(path), _contents(f"{path}-wal"))
    prepare(fresh)
    with closing(connect(fresh)) as new:
        migrate(new, fresh)
        new.execute("BEGIN")
        lost = rescue(rows_in(pages), new, now=timestamp())
        new.execute("COMMIT")
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return lost


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _free_name(name: str) -> str:
    number, free = 1, name
    while os.path.exists(free):
        number += 1
        free = f"{name}-{number}"
    return free


def _remove(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(name)
