"""Connections to PostgreSQL that the journal's queries can use, and the meaning of their errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import cache
from itertools import count, islice
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from zot.errors import ConfigError, StoreFailed
from zot.journal.connection import Cursor, Values

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as problem:
    raise ConfigError("sessions in PostgreSQL need the extra fleet: pip install 'zot-agent[fleet]'") from problem

T = TypeVar("T")

#: How long a lease lasts without a renewal, unless the address says otherwise.
LEASE_S = 10.0
_MIN_LEASE_S, _MAX_LEASE_S = 0.5, 3600.0
_CONNECT_S = 10
#: How many rows a scan fetches at a time.
_SCANNED = 64
_names = count(1)

#: The errors after which a connection is of no use: the server was restarted, or the network failed.
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
#: The errors of a transaction that has not happened and may be tried again.
AGAIN = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
DatabaseError = psycopg.Error


class Address(msgspec.Struct, frozen=True):
    """The address of a database: as libpq understands it, as it may be shown, and our own parameters in it."""

    info: str
    shown: str
    lease_s: float = LEASE_S

    def connect(self, purpose: str) -> PostgresConnection:
        """Return a new connection. Raise psycopg.Error."""
        # Statements are not prepared: a pooler may give every transaction another server connection.
        opened = psycopg.connect(
            self.info,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=_CONNECT_S,
            application_name=f"zot {purpose}",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=10_000,
        )
        return PostgresConnection(opened)


def parsed(address: str) -> Address:
    """Return an address, such as postgresql://user@host/sessions?lease_s=5. Raise ConfigError."""
    parts = urlsplit(address)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    lease = given.pop("lease_s", "")
    info = urlunsplit(parts._replace(query=urlencode(given)))
    try:
        known = conninfo_to_dict(info)
    except psycopg.ProgrammingError as problem:
        # Without the text of the problem: it may quote the password.
        raise ConfigError("the address of the database cannot be understood: see libpq's connection URIs") from problem
    try:
        lease_s = float(lease) if lease else LEASE_S
    except ValueError:
        lease_s = -1.0
    if not _MIN_LEASE_S <= lease_s <= _MAX_LEASE_S:
        raise ConfigError(f"lease_s must be from {_MIN_LEASE_S:g} to {_MAX_LEASE_S:g} seconds, not {lease}")
    host, port = known.get("host", ""), known.get("port", "")
    shown = f"postgresql://{host}{f':{port}' if port else ''}/{known.get('dbname', '')}"
    return Address(info, shown, lease_s)


class PostgresConnection:
    """A connection that takes the journal's queries (`journal.connection.Connection`)."""

    #: Whether a session's lease holds, as a column.
    leased = "EXISTS (SELECT 1 FROM leases WHERE leases.session = sessions.number AND leases.until > clock_timestamp())"

    def __init__(self, opened: psycopg.Connection[Any]) -> None:
        self.raw = opened
        self._beginning = ""

    def begin(self, options: str = "") -> None:
        """Begin a transaction, in one round trip with its first statement. End it with `end`."""
        self._beginning = f"BEGIN {options}"

    def end(self, how: str = "ROLLBACK") -> None:
        """End the transaction, if it has begun and the connection is not lost."""
        if not self._beginning and not self.is_lost:
            self.raw.execute(how.encode())
        self._beginning = ""

    def execute(self, query: str, values: Values = ()) -> Cursor:
        """Run a statement."""
        return self.together((query, values))

    def together(self, *statements: tuple[str, Values]) -> Cursor:
        """Run statements in one round trip; return the result of the last."""
        beginning, self._beginning = self._beginning, ""
        cursor = self.raw.cursor(binary=True)
        if not beginning and len(statements) == 1:
            return _run(cursor, statements[0])
        with self.raw.pipeline():
            if beginning:
                self.raw.execute(beginning.encode())
            for statement in statements[:-1]:
                _run(self.raw.cursor(binary=True), statement)
            _run(cursor, statements[-1])
        return cursor

    def executemany(self, query: str, values: Iterable[Values]) -> Cursor:
        """Run a statement once for each of ``values``."""
        cursor = self.raw.cursor()
        cursor.executemany(_translated(query), [[*map(_storable, some)] for some in values])
        return cursor

    def scan(self, query: str, values: Values = ()) -> Cursor:
        """Run a query in a transaction; its rows are fetched as they are read. The first come with its answer."""
        name = f"zot_{next(_names)}"
        declaring = f"DECLARE {name} NO SCROLL CURSOR FOR {query}", values
        return _Scan(self, name, self.together(declaring, (f"FETCH {_SCANNED} FROM {name}", ())))

    @property
    def is_lost(self) -> bool:
        """True if the connection cannot be used any more."""
        return self.raw.closed or self.raw.broken

    def close(self) -> None:
        """Close the connection."""
        self.raw.close()


class _Scan:
    """The rows of a query, fetched some at a time. The end of the transaction closes it."""

    rowcount = -1

    def __init__(self, connection: PostgresConnection, name: str, fetched: Cursor) -> None:
        self._connection = connection
        self._name = name
        self._rows = self._all(fetched)

    def _all(self, fetched: Cursor) -> Iterator[Any]:
        while rows := fetched.fetchall():
            yield from rows
            if len(rows) < _SCANNED:
                return
            fetched = self._connection.execute(f"FETCH {_SCANNED} FROM {self._name}")

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchmany(self, size: int = 1, /) -> list[Any]:
        return [*islice(self._rows, size)]

    def fetchall(self) -> list[Any]:
        return [*self._rows]

    def close(self) -> None:
        self._rows = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self._rows


def _run(cursor: psycopg.Cursor[Any], statement: tuple[str, Values]) -> psycopg.Cursor[Any]:
    query, values = statement
    return cursor.execute(_translated(query), [*map(_storable, values)])


@cache
def _translated(query: str) -> str:
    return query.replace("%", "%%").replace("?", "%s")


def _storable(value: Any) -> Any:
    """Return a value as PostgreSQL takes it: text has no NUL there."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) and "\0" in value else value


def explained(problem: psycopg.Error, shown: str) -> StoreFailed:
    """Return the error for the user: the problem, and the remedy."""
    reason = str(problem).strip().partition("\n")[0].strip()[:300]
    match problem:
        case psycopg.errors.InsufficientPrivilege():
            return StoreFailed(f"{shown} refuses ({reason}): grant its role what docs/how-to/fleet.md lists")
        case psycopg.errors.UndefinedTable():
            return StoreFailed(f"{shown} has no tables of zot ({reason}): open it once with a role that may make them")
        case psycopg.errors.DiskFull():
            return StoreFailed(f"the disk of {shown} is full: free some space, then resume")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return StoreFailed(
                f"{shown} cannot be reached ({reason}): check the address and the server, then try again"
            )
        case _:
            return StoreFailed(f"{shown} cannot be used ({reason})")


class Connections:
    """One connection for each thread, opened when it is first needed and again after it was lost."""

    def __init__(self, address: Address, purpose: str) -> None:
        self._address = address
        self._purpose = purpose
        self._own = threading.local()
        self._guard = threading.Lock()
        self._all: set[PostgresConnection] = set()

    def read(self, action: Callable[[PostgresConnection], T], result: Future[T]) -> None:
        """Set ``result`` to what ``action`` reads, in one transaction, or to StoreFailed. A lost connection is replaced
        once.

        The result is set before the transaction ends: no caller waits for that.
        """
        if not result.set_running_or_notify_cancel():
            return
        for attempt in (1, 2):
            try:
                connection = self._connection()
                try:
                    connection.begin("ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    result.set_result(action(connection))
                finally:
                    connection.end()
            except psycopg.Error as problem:
                if result.done():  # Only the end failed: the next reader gets another connection.
                    return
                if attempt == 1 and isinstance(problem, LOST):
                    continue
                result.set_exception(explained(problem, self._address.shown))
            except BaseException as problem:  # Raised where the result is awaited.
                result.set_exception(problem)
            return

    def _connection(self) -> PostgresConnection:
        connection: PostgresConnection | None = getattr(self._own, "connection", None)
        if connection is None or connection.is_lost:
            fresh = self._own.connection = self._address.connect(self._purpose)
            with self._guard:
                self._all = {one for one in self._all if not one.is_lost} | {fresh}
            return fresh
        return connection

    def close(self) -> None:
        """Interrupt what runs, and close all connections."""
        with self._guard:
            for connection in self._all:
                connection.raw.cancel_safe(timeout=1.0)
                connection.close()
            self._all.clear()
