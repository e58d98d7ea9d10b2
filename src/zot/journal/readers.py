"""Reading beside the loop: a few threads, each with a connection of its own. Readers wait for nobody."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from zot.errors import StoreFailed
from zot.journal.schema import connect, explained

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

_THREADS = 2


class Readers:
    """Threads that read one file. They start when they are first needed."""

    def __init__(self, path: str, opened: Callable[[str], sqlite3.Connection] = connect) -> None:
        self._path = path
        self._opened = opened
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._guard = threading.Lock()
        self._closed = False
        self._connections: list[sqlite3.Connection] = []

    async def run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with a connection, in one of the threads. It sees one state of the file. Raise StoreFailed."""
        return await asyncio.get_running_loop().run_in_executor(self._started(), self._perform, action)

    def close(self) -> None:
        """Interrupt those who read, and close the connections."""
        with self._guard:
            self._closed = True
            for connection in self._connections:
                connection.interrupt()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        while self._connections:
            connection = self._connections.pop()
            # The interruption lasts until the next statement, and would keep the file from being tidied up on closing.
            # If the error of a reader still holds its statement, it lasts longer: the file is then tidied up later.
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA query_only").fetchall()
            connection.close()

    def _started(self) -> ThreadPoolExecutor:
        """Return the threads. What they need is loaded with the first: a new session has nothing to read."""
        from concurrent.futures import ThreadPoolExecutor

        with self._guard:
            if self._closed:
                raise StoreFailed(f"the journal {self._path} is closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="zot journal reader")
            return self._pool

    def _perform(self, action: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                return action(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            raise explained(problem, self._path) from problem

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._opened(self._path)
            connection.execute("PRAGMA query_only = ON")
            with self._guard:
                self._connections.append(connection)
        return connection
