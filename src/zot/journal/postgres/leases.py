"""Leases in PostgreSQL: rows that expire by the database's clock unless they are renewed."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from zot.errors import LeaseLost
from zot.journal.connection import Connection
from zot.journal.postgres.connection import Address, DatabaseError, PostgresConnection

if TYPE_CHECKING:
    from zot.journal.postgres.record import PostgresRecord

log = logging.getLogger("zot")

#: Renewals per duration of a lease, and the shortest pause after a failed one.
_RENEWALS = 3
_RETRY_S = 0.2
_RENEW = """
UPDATE leases SET until = clock_timestamp() + make_interval(secs => ?)
FROM unnest(CAST(? AS bigint[]), CAST(? AS bigint[])) AS held (session, fence)
WHERE leases.session = held.session AND leases.fence = held.fence RETURNING leases.session"""


def end_frozen(connection: Connection, idle_s: float) -> None:
    """End the transactions in which other processes have done nothing for ``idle_s``: they are frozen or lost their
    network, and their locks hold up the writers of all others.

    The server's own limit for idle transactions does not begin after statements that were sent together.
    """
    query = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND usename = current_user AND application_name LIKE ? AND state = ?"
        " AND state_change < clock_timestamp() - make_interval(secs => ?)"
    )
    connection.execute(query, ("zot %", "idle in transaction", idle_s)).fetchall()


def taken_over(session_id: str) -> LeaseLost:
    """Return the error for a run whose session another worker has taken."""
    return LeaseLost(f"session {session_id!r} was taken over by another worker: this run ends here")


class LeaseKeeper:
    """The leases that this process holds, renewed by a thread while there are any. Usable from any thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._guard = threading.Condition()
        self._held: dict[int, PostgresRecord] = {}
        self._connection: PostgresConnection | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def held(self) -> frozenset[int]:
        """The sessions whose lease this process holds."""
        with self._guard:
            return frozenset(self._held)

    def add(self, record: PostgresRecord) -> None:
        """Renew the lease of a session from now on."""
        with self._guard:
            self._held[record.number] = record
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="zot leases", daemon=True)
                self._thread.start()
            self._guard.notify()

    def drop(self, record: PostgresRecord) -> None:
        """Stop to renew the lease of a session."""
        with self._guard:
            if self._held.get(record.number) is record:
                del self._held[record.number]

    def close(self) -> None:
        """Renew nothing more."""
        with self._guard:
            self._closed = True
            self._held.clear()
            self._guard.notify()
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        due = time.monotonic() + self._address.lease_s / _RENEWALS
        while True:
            with self._guard:
                while not self._closed and (left := due - time.monotonic()) > 0:
                    self._guard.wait(left)
                if self._closed:
                    break
                held = dict(self._held)
            due = time.monotonic() + self._address.lease_s / _RENEWALS
            if held and not self._renew(held):
                due = time.monotonic() + _RETRY_S
        if self._connection is not None:
            self._connection.close()

    def _renew(self, held: dict[int, PostgresRecord]) -> bool:
        """Renew leases, and tell those that are lost. False if the database does not answer."""
        began = time.monotonic()
        try:
            if self._connection is None or self._connection.is_lost:
                self._connection = self._address.connect("leases")
            fences = [record.fence for record in held.values()]
            found = self._connection.execute(_RENEW, (self._address.lease_s, [*held], fences)).fetchall()
        except DatabaseError as problem:
            log.warning("leases cannot be renewed: %s", problem)
            return False
        renewed = {number for (number,) in found}
        for number, record in held.items():
            record.in_loop(record.renewed, began) if number in renewed else record.in_loop(record.lose)
        return True
