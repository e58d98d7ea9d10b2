"""A damaged file: what is readable of it goes into a fresh one; the old one is kept aside."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress

from zot.errors import StoreFailed
from zot.journal.database import PAGE_BYTES, connect, explained, migrate, prepare
from zot.journal.rescue import rescue


def salvage(path: str) -> list[str]:
    """Replace the file by what is readable of it; return what was lost, in words. Whoever calls this has it alone.

    Raise StoreFailed if that cannot be done; then the file is what it was.
    """
    copy, fresh = f"{path}.copy", f"{path}.new"
    try:
        _remove(copy, fresh)
        _copy(path, copy)
        _give_a_beginning(copy)
        lost = _refill(copy, fresh)
        aside = _free_name(f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
        _swap(path, fresh, aside)
    except OSError as problem:
        raise StoreFailed(f"{path} is damaged, and what is readable cannot be saved: {problem}") from problem
    except sqlite3.Error as problem:
        raise StoreFailed(f"{path} is damaged; saving what is readable: {explained(problem, fresh)}") from problem
    finally:
        _remove(copy, fresh)
    return [f"{path} was damaged; what could be read is in a new file, the old one is {aside}", *lost]


def _copy(path: str, copy: str) -> None:
    """Copy the file and what was written ahead of it, so that reading it cannot make it worse."""
    prepare(copy)
    shutil.copyfile(path, copy)
    with suppress(FileNotFoundError):
        prepare(f"{copy}-wal")
        shutil.copyfile(f"{path}-wal", f"{copy}-wal")


def _give_a_beginning(copy: str) -> None:
    """The first page says where everything is. One that makes no sense is replaced by that of an empty journal."""
    try:
        with closing(connect(copy)) as old:
            for table in ("sessions", "chunks", "blobs"):
                old.execute(f"SELECT 1 FROM {table} LIMIT 0").fetchone()
    except sqlite3.Error:
        model = f"{copy}.model"
        with closing(connect(model)) as empty:
            migrate(empty, model)
            empty.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with open(model, "rb") as source, open(copy, "r+b") as target:
            page = bytearray(source.read(PAGE_BYTES))
            # The header's count of pages; 0 lets SQLite look at the length of the file.
            page[28:32] = bytes(4)
            target.write(page)
        _remove(model)


def _refill(copy: str, fresh: str) -> list[str]:
    prepare(fresh)
    with closing(connect(fresh)) as new:
        migrate(new, fresh)
        new.execute("BEGIN")
        try:
            with closing(connect(copy)) as old:
                lost = rescue(old, new)
        except sqlite3.Error as problem:
            if new.in_transaction:
                new.execute("ROLLBACK")
                new.execute("BEGIN")
            lost = [f"nothing could be read: {problem}"]
        new.execute("COMMIT")
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return lost


def _swap(path: str, fresh: str, aside: str) -> None:
    os.link(path, aside)
    with suppress(FileNotFoundError):  # it would be taken for the new file's
        os.rename(f"{path}-wal", f"{aside}-wal")
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")
    os.replace(fresh, path)


def _free_name(name: str) -> str:
    number, free = 1, name
    while os.path.exists(free):
        number += 1
        free = f"{name}-{number}"
    return free


def _remove(*paths: str) -> None:
    for path in paths:
        for name in (path, f"{path}-wal", f"{path}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(name)
