"""Stored answers of idempotent requests: the request, the runs that worked on it, and whether the answer was delivered.

Each function takes a connection and is called in its thread. Times are seconds of the journal's own `Clock`, which all
processes share and which never goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from zot.encoding import thread_safe_type
from zot.errors import JournalDamaged
from zot.journal.connection import Connection
from zot.journal.lease import boot_id
from zot.journal.queries import rows_of
from zot.store import Row, StoredReply, StoredRequest


def _uptime() -> float:
    """Return the seconds since the machine started, sleep included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock(msgspec.Struct, frozen=True):
    """The clock that ages are measured by. Setting the wall clock does not change it.

    It adds the machine's ``uptime`` to a start time stored once per ``boot``. The wall clock is used only across
    reboots, and never yields a time before the newest stored one.
    """

    boot: str = msgspec.field(default_factory=boot_id)
    uptime: Callable[[], float] = _uptime
    wall: Callable[[], float] = time.time

    def now(self, connection: Connection) -> float:
        """Return the time, in seconds."""
        query = "SELECT started FROM clock WHERE boot = ?"
        if self.boot and (found := connection.execute(query, (self.boot,)).fetchone()) is not None:
            return float(found[0]) + self.uptime()
        query = "SELECT max(began), max(answered), max(delivered) FROM answers"
        recorded: tuple[float | None, ...] = connection.execute(query).fetchone()
        return max([self.wall(), *(time for time in recorded if time is not None)])

    def anchor(self, connection: Connection) -> None:
        """Store the start time of this boot, unless it is stored."""
        query = "SELECT 1 FROM clock WHERE boot = ?"
        if self.boot and connection.execute(query, (self.boot,)).fetchone() is None:
            started = self.now(connection) - self.uptime()
            connection.execute("DELETE FROM clock")
            connection.execute("INSERT INTO clock (boot, started) VALUES (?, ?)", (self.boot, started))


class DatabaseClock:
    """The clock of a database server, which all machines share."""

    def now(self, connection: Connection) -> float:
        """Return the time, in seconds."""
        (now,) = connection.execute("SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)").fetchone()
        return float(now)

    def anchor(self, connection: Connection) -> None:
        """Do nothing: the server's clock needs no start time."""


class SessionAnswers:
    """The stored answers of one session (`store.Answers`), inside the transaction that acquires its lease."""

    def __init__(self, connection: Connection, clock: Clock | DatabaseClock, session: int) -> None:
        self._connection = connection
        self._clock = clock
        self._session = session

    def now(self) -> float:
        """Return the time, in seconds."""
        return self._clock.now(self._connection)

    def find(self, asked: StoredRequest) -> StoredReply | None:
        """Return the stored state of a request. Raise JournalDamaged."""
        self._clock.anchor(self._connection)
        return find(self._connection, asked)

    def begin(self, asked: StoredRequest, *, first_run: int, latest_run: int, forget_s: float) -> None:
        """Store that ``latest_run`` is about to begin for a request; forget those that began ``forget_s`` ago."""
        now = self.now()
        begin(self._connection, asked, first_run=first_run, latest_run=latest_run, now=now)
        forget(self._connection, before=now - forget_s)

    def rows_of(self, run: int) -> Sequence[Row]:
        """Return the rows of a run. Raise JournalDamaged."""
        return [row for _, row in rows_of(self._connection, self._session, run)]


_COLUMNS = ", ".join(StoredReply.__struct_fields__)
_WHERE = "session = ? AND key = ? AND request = ?"


def find(connection: Connection, asked: StoredRequest) -> StoredReply | None:
    """Return the stored state of a request. Raise JournalDamaged."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM answers WHERE {_WHERE}", _key(asked)).fetchone()
    return None if row is None else _kept(row)


def unreadable_answers(connection: Connection) -> Iterator[str]:
    """Yield a description of each entry that cannot be read."""
    (has_answers,) = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'answers'").fetchone()
    for row in connection.execute(f"SELECT {_COLUMNS} FROM answers") if has_answers else ():
        try:
            _kept(row)
        except JournalDamaged as problem:
            yield str(problem)


def _kept(row: Sequence[object]) -> StoredReply:
    try:
        return msgspec.convert(
            dict(zip(StoredReply.__struct_fields__, row, strict=True)), thread_safe_type(StoredReply)
        )
    except msgspec.ValidationError as problem:  # A damaged page may hold anything.
        raise JournalDamaged(f"the entry of a request cannot be read: {problem}") from problem


def begin(connection: Connection, asked: StoredRequest, *, first_run: int, latest_run: int, now: float) -> None:
    """Store that ``latest_run`` is about to begin for a request."""
    query = (
        "INSERT INTO answers (session, key, request, first_run, latest_run, began) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (session, key, request) DO UPDATE SET first_run = excluded.first_run,"
        " latest_run = excluded.latest_run, began = excluded.began, answer = NULL, answered = NULL, delivered = NULL"
    )
    connection.execute(query, (*_key(asked), first_run, latest_run, now))


def disown(connection: Connection, session: int, run: int) -> None:
    """Detach requests from ``run`` and later runs: those never began, and their numbers are given to other runs now."""
    query = "UPDATE answers SET latest_run = ? WHERE session = ? AND latest_run >= ?"
    connection.execute(query, (run - 1, session, run))


def keep(connection: Connection, asked: StoredRequest, answer: bytes, *, now: float) -> None:
    """Store the answer of a request. The first one counts."""
    query = f"UPDATE answers SET answer = ?, answered = ? WHERE {_WHERE} AND answer IS NULL"
    connection.execute(query, (answer, now, *_key(asked)))


def deliver(connection: Connection, asked: StoredRequest, *, now: float) -> None:
    """Store that the answer was delivered. The first time counts."""
    query = f"UPDATE answers SET delivered = ? WHERE {_WHERE} AND answer IS NOT NULL AND delivered IS NULL"
    connection.execute(query, (now, *_key(asked)))


def forget(connection: Connection, *, before: float) -> None:
    """Delete requests that began before a time."""
    connection.execute("DELETE FROM answers WHERE began < ?", (before,))


def _key(asked: StoredRequest) -> tuple[int, bytes, bytes]:
    return asked.session, asked.key, asked.request
