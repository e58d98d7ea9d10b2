"""The doorbell: a NOTIFY that says which sessions have new rows. The rows themselves are read from the tables."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from zot.journal.postgres.connection import Address, DatabaseError, PostgresConnection

log = logging.getLogger("zot")

#: The channel of new rows. A message has pairs of a session's number and its newest row: "7:120 9:4".
ROWS = "zot_rows"
#: Rings closer to each other than this become one: every NOTIFY takes a lock that all writers of the server share.
_APART_S = 0.01
#: A message is shorter than 8000 bytes.
_MAX_SESSIONS = 180
_RETRY_S = 0.5
_LISTEN_S = 0.5


class Doorbell:
    """Rings for sessions with new rows, from a thread of its own. A lost ring does no harm: listeners also poll."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._guard = threading.Condition()
        self._newest: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def ring(self, newest: Mapping[int, int]) -> None:
        """Ring for sessions, given their newest rows. Never blocks."""
        with self._guard:
            self._newest.update(newest)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="zot doorbell", daemon=True)
                self._thread.start()
            self._guard.notify()

    def close(self) -> None:
        """Ring for the remaining sessions, and stop."""
        with self._guard:
            self._closed = True
            self._guard.notify()
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        connection: PostgresConnection | None = None
        while True:
            with self._guard:
                while not self._newest and not self._closed:
                    self._guard.wait()
                if not self._newest:
                    break
                some = [self._newest.popitem() for _ in range(min(len(self._newest), _MAX_SESSIONS))]
            try:
                if connection is None or connection.is_lost:
                    connection = self._address.connect("doorbell")
                    # Every NOTIFY commits; a ring need not survive a crash.
                    connection.execute("SET synchronous_commit = off")
                message = " ".join(f"{number}:{seq}" for number, seq in some)
                connection.execute("SELECT pg_notify(?, ?)", (ROWS, message))
            except DatabaseError as problem:
                log.debug("the doorbell is out of order: %s", problem)
                if self._closed:
                    break
                with self._guard:
                    self._newest = {**dict(some), **self._newest}
                time.sleep(_RETRY_S)
            else:
                time.sleep(_APART_S)
        if connection is not None:
            connection.close()


class Listener:
    """Hears the rings of all processes, in a thread of its own.

    Needs a connection to the server itself, or a pooler in session mode: otherwise nothing is heard.
    """

    def __init__(self, address: Address, channel: str, heard: Callable[[str], None]) -> None:
        """``heard`` is called in the thread with each message, and with "" whenever messages may have been missed."""
        self._address = address
        self._channel = channel
        self._heard = heard
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zot listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to listen."""
        self._closed.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                connection = self._address.connect("listener")
                try:
                    connection.execute(f"LISTEN {self._channel}")
                    self._heard("")
                    while not self._closed.is_set():
                        for message in connection.raw.notifies(timeout=_LISTEN_S):
                            self._heard(message.payload)
                            if self._closed.is_set():
                                break
                finally:
                    connection.close()
            except DatabaseError as problem:
                log.debug("the doorbell cannot be heard: %s", problem)
                self._closed.wait(_RETRY_S)
