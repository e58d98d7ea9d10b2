"""Opening recorded sessions: an SQLite file by its path, or a PostgreSQL database by its address."""

from __future__ import annotations

from zot.journal import schema
from zot.journal.recorded_sessions import SessionJournal


def is_address(path: str) -> bool:
    """True if a journal is a database, not a file."""
    return path.startswith(("postgresql://", "postgres://"))


def is_there(path: str) -> bool:
    """True if a journal exists; a database is asked when it is opened. Raise StoreFailed."""
    return is_address(path) or schema.is_there(path)


async def open_journal(path: str) -> SessionJournal:
    """Open a journal, creating it if needed; close it as often as it was opened. Raise StoreFailed."""
    if is_address(path):
        from zot.journal.postgres.journal import PostgresJournal  # Imported lazily: it needs the extra `fleet`.

        return await PostgresJournal.open(path)
    from zot.journal.journal import Journal  # Imported lazily: a database needs none of it.

    return await Journal.open(path)
