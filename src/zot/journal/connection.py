"""Connections to a database of sessions: what the queries of this package need of SQLite and of PostgreSQL.

Queries are written in SQL that both understand, with `?` for values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

Values: TypeAlias = Sequence[Any]


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of rows that were changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchmany(self, size: int = ..., /) -> list[Any]:
        """Return the next rows."""

    def fetchall(self) -> list[Any]:
        """Return all further rows."""

    def close(self) -> None:
        """Release the rows that were not read."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""


class Connection(Protocol):
    """A connection, used by one thread at a time."""

    def execute(self, query: str, values: Values = ..., /) -> Cursor:
        """Run a statement."""

    def executemany(self, query: str, values: Iterable[Values], /) -> Cursor:
        """Run a statement once for each of ``values``."""
