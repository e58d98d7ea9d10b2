"""The writer to PostgreSQL: one statement for all waiting rows, each session checked against its fence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from zot.errors import StoreFailed
from zot.journal.chunks import join
from zot.journal.postgres.connection import AGAIN, LOST, Address, DatabaseError, PostgresConnection, explained
from zot.journal.postgres.leases import taken_over
from zot.journal.queries import SessionSummary, add_uses
from zot.journal.writer_thread import Append, Task, WriterThread
from zot.messages import timestamp

if TYPE_CHECKING:
    from zot.journal.postgres.record import PostgresRecord

log = logging.getLogger("zot")

#: The most appends in one statement, so that the first are not delayed by later ones.
_MAX_GROUP = 512
#: How long a database that is gone is waited for, and the pause between two attempts.
_GONE_S = 25.0
_RETRY_S = 0.1
#: Appends with images share this lock with each other; deleting unused images excludes them.
BLOBS = 0x7A6F7402

#: The rows of a session go in only if its lease is still ours and no other row came first: all of them or none.
_APPEND = """
WITH asked AS (
    SELECT * FROM unnest(
        CAST(? AS bigint[]), CAST(? AS bigint[]), CAST(? AS bigint[]), CAST(? AS bigint[]), CAST(? AS boolean[]),
        CAST(? AS bigint[]), CAST(? AS text[]), CAST(? AS bytea[]), CAST(? AS bytea[]), CAST(? AS bytea[])
    ) AS one (number, fence, first, following, touched, messages, words, totals, cwd, mark)
), held AS (
    UPDATE sessions SET next_seq = asked.following,
        updated = CASE WHEN touched THEN greatest(updated, ?) ELSE updated END,
        messages = sessions.messages + asked.messages,
        title = CASE title WHEN '' THEN words ELSE title END,
        totals = coalesce(asked.totals, sessions.totals), cwd = coalesce(asked.cwd, sessions.cwd),
        owner = CASE WHEN owner = mark THEN '' ELSE owner END
    FROM asked
    WHERE sessions.number = asked.number AND sessions.fence = asked.fence AND sessions.next_seq = asked.first
    RETURNING sessions.number
), written AS (
    INSERT INTO chunks (session, kind, first, count, run, crc, body)
    SELECT * FROM unnest(
        CAST(? AS bigint[]), CAST(? AS smallint[]), CAST(? AS bigint[]), CAST(? AS bigint[]), CAST(? AS bigint[]),
        CAST(? AS bigint[]), CAST(? AS bytea[])
    ) AS one (session, kind, first, count, run, crc, body)
    WHERE session IN (SELECT number FROM held)
)
SELECT number FROM held"""
_WRITTEN = """
SELECT number FROM sessions JOIN unnest(CAST(? AS bigint[]), CAST(? AS bigint[]), CAST(? AS bigint[]))
    AS one (session, fence, following) ON number = session
WHERE sessions.fence = one.fence AND sessions.next_seq = one.following"""


class PostgresWriter(WriterThread):
    """Writes to one database, from one thread, in the order of the queue. A lost connection is replaced."""

    def __init__(self, address: Address, *, written: Callable[[dict[int, int]], None]) -> None:
        """``written`` is called in the thread with the newest row of each session, after a commit."""
        super().__init__(address.shown)
        self._address = address
        self._has_written = written
        self._connection: PostgresConnection | None = None
        self._thread.start()

    def sync(self) -> Future[None]:
        """Make everything queued before survive a loss of power: every commit does."""
        return self.run(lambda _: None)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _take(self) -> list[Append | Task]:
        group = [self._queue.popleft()]
        if isinstance(group[0], Append):
            while self._queue and len(group) < _MAX_GROUP and isinstance(self._queue[0], Append):
                group.append(self._queue.popleft())
        return group

    def _work(self, group: Sequence[Append | Task]) -> None:
        for task in group:
            if isinstance(task, Task):
                self._perform(task)
        appends = [one for one in group if isinstance(one, Append) and one.sender.broken is None]
        if appends:
            self._commit(appends)

    def _perform(self, task: Task) -> None:
        """Run a task in a transaction. It is tried again as long as it certainly has not happened."""
        if not task.future.set_running_or_notify_cancel():
            return
        deadline = time.monotonic() + _GONE_S
        while True:
            committing = False
            try:
                connection = self._connected(deadline)
                connection.begin()
                try:
                    result = task.action(connection)
                    committing = True
                    connection.end("COMMIT")
                except BaseException:
                    connection.end()
                    raise
            except DatabaseError as problem:
                is_open = isinstance(problem, LOST) and not committing
                if (is_open or isinstance(problem, AGAIN)) and time.monotonic() < deadline and not self._closing:
                    continue
                task.future.set_exception(explained(problem, self._path))
            except Exception as problem:  # Raised where the future is awaited.
                task.future.set_exception(problem)
            else:
                task.future.set_result(result)
            return

    def _connected(self, deadline: float) -> PostgresConnection:
        """Return the connection, a new one if it was lost. Raise psycopg.Error after the deadline."""
        while self._connection is None or self._connection.is_lost:
            try:
                self._connection = self._address.connect("writer")
            except DatabaseError:
                if time.monotonic() > deadline or self._closing:
                    raise
                time.sleep(_RETRY_S)
        return self._connection

    def _commit(self, appends: Sequence[Append]) -> None:
        deadline = time.monotonic() + _GONE_S
        is_certain = True
        while True:
            try:
                held = self._append(self._connected(deadline), appends, is_certain=is_certain)
            except DatabaseError as problem:
                is_certain = is_certain and not isinstance(problem, LOST)
                if isinstance(problem, LOST + AGAIN) and time.monotonic() < deadline and not self._closing:
                    continue
                self._fail(appends, explained(problem, self._path))
                return
            except StoreFailed as problem:
                self._fail(appends, problem)
                return
            break
        stored = [one for one in appends if one.sender.number in held]
        self._notify_stored(stored)
        for sender in {one.sender for one in appends if one.sender.number not in held}:
            self._fail([one for one in appends if one.sender is sender], taken_over(sender.id))
        if stored:
            self._has_written({one.sender.number: one.last for one in stored})

    def _append(self, connection: PostgresConnection, appends: Sequence[Append], *, is_certain: bool) -> set[int]:
        """Write appends in one transaction; return the sessions whose lease is still ours.

        After a commit whose outcome is not ``is_certain``, those count whose rows are there already.
        """
        summaries: dict[int, SessionSummary] = {}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        fences: dict[int, int] = {}
        for one in appends:
            sender = cast("PostgresRecord", one.sender)
            first.setdefault(sender.number, one.chunks[0].first)
            last[sender.number], fences[sender.number] = one.last, sender.fence
            if one.summary is not None:
                summaries.setdefault(sender.number, SessionSummary()).extend(one.summary)
        numbers, following = [*first], [seq + 1 for seq in last.values()]
        if not is_certain:
            found = connection.execute(_WRITTEN, (numbers, [*fences.values()], following))
            there = {number for (number,) in found}
            left = [one for one in appends if one.sender.number not in there]
            return there | (self._append(connection, left, is_certain=True) if left else set())
        told = [summaries.get(number, SessionSummary()).values() for number in numbers]
        chunks = join([chunk for one in appends for chunk in one.chunks])
        values = (
            numbers, [*fences.values()], [*first.values()], following, [number in summaries for number in numbers],
            *([summary[column] for summary in told] for column in range(5)), timestamp(),
            [one.session for one in chunks], [one.kind for one in chunks], [one.first for one in chunks],
            [one.count for one in chunks], [one.run for one in chunks], [one.crc for one in chunks],
            [one.body for one in chunks],
        )  # fmt: skip
        with_blobs = [one for one in appends if one.blobs]
        if not with_blobs:
            return {number for (number,) in connection.execute(_APPEND, values)}
        connection.begin()
        try:
            connection.execute("SELECT pg_advisory_xact_lock_shared(?)", (BLOBS,))
            held = {number for (number,) in connection.execute(_APPEND, values)}
            for one in with_blobs:
                if one.sender.number in held:
                    query = "INSERT INTO blobs (hash, data) VALUES (?, ?) ON CONFLICT DO NOTHING"
                    connection.executemany(query, one.blobs.items())
                    add_uses(connection, one.sender.number, one.chunks[0].first, one.blobs)
            connection.end("COMMIT")
        except BaseException:
            connection.end()
            raise
        return held
