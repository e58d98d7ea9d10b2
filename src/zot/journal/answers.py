"""Answers that may be asked for again: to which request each belongs, which runs made it, and if it ever got out.

Each function takes a connection and is called in its thread. Times are seconds of the clock, which processes share.
"""

from __future__ import annotations

import sqlite3

import msgspec

from zot.errors import JournalDamaged
from zot.learned import learned


class Asked(msgspec.Struct, frozen=True):
    """What makes two requests the same: the number of their session, the key they came with, and what they say."""

    session: int
    key: bytes
    request: bytes


class Kept(msgspec.Struct, frozen=True):
    """What is known of a request. Its prompt was said in ``first_run``; runs up to ``latest_run`` went on with it."""

    first_run: int
    latest_run: int
    began: float
    answer: bytes | None
    answered: float | None
    delivered: float | None


_SAME = "session = ? AND key = ? AND request = ?"


def find(connection: sqlite3.Connection, asked: Asked) -> Kept | None:
    """Return what is known of a request. Raise JournalDamaged."""
    names = Kept.__struct_fields__
    row = connection.execute(f"SELECT {', '.join(names)} FROM answers WHERE {_SAME}", _place(asked)).fetchone()
    try:
        return None if row is None else msgspec.convert(dict(zip(names, row, strict=True)), learned(Kept))
    except msgspec.ValidationError as problem:  # a damaged page may hold anything
        raise JournalDamaged(f"the entry of a request cannot be read: {problem}") from problem


def begin(connection: sqlite3.Connection, asked: Asked, *, first_run: int, latest_run: int, now: float) -> None:
    """Remember that ``latest_run`` is about to begin for a request."""
    query = (
        "INSERT OR REPLACE INTO answers (session, key, request, first_run, latest_run, began) VALUES (?, ?, ?, ?, ?, ?)"
    )
    connection.execute(query, (*_place(asked), first_run, latest_run, now))


def disown(connection: sqlite3.Connection, session: int, run: int) -> None:
    """Take back what was said of ``run`` and later ones: they never began, and somebody else has these numbers now."""
    query = "UPDATE answers SET latest_run = ? WHERE session = ? AND latest_run >= ?"
    connection.execute(query, (run - 1, session, run))


def keep(connection: sqlite3.Connection, asked: Asked, answer: bytes, *, now: float) -> None:
    """Remember the answer of a request. The first one counts."""
    query = f"UPDATE answers SET answer = ?, answered = ? WHERE {_SAME} AND answer IS NULL"
    connection.execute(query, (answer, now, *_place(asked)))


def deliver(connection: sqlite3.Connection, asked: Asked, *, now: float) -> None:
    """Remember that the answer got out. The first time counts."""
    query = f"UPDATE answers SET delivered = ? WHERE {_SAME} AND answer IS NOT NULL AND delivered IS NULL"
    connection.execute(query, (now, *_place(asked)))


def forget(connection: sqlite3.Connection, *, before: float) -> None:
    """Remove what began before a time."""
    connection.execute("DELETE FROM answers WHERE began < ?", (before,))


def _place(asked: Asked) -> tuple[int, bytes, bytes]:
    return asked.session, asked.key, asked.request
