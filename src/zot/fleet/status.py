"""The state of a fleet, as the database has it."""

from __future__ import annotations

import msgspec

from zot.journal.connection import Connection


class PoolStatus(msgspec.Struct, frozen=True):
    """A pool: prompts that wait and that run, and how long the oldest has waited, in seconds."""

    name: str
    waiting: int
    running: int
    oldest_s: float


class FleetStatus(msgspec.Struct, frozen=True):
    """A fleet: the age of each worker's last heartbeat, the pools, and the sessions.

    ``leased`` sessions run; ``abandoned`` ones were left by a process that is gone, and wait to be taken over.
    ``requests`` wait for a worker. ``takeover_lag_s`` and ``request_lag_s`` are how long the longest of these has
    waited.
    """

    workers: tuple[float, ...]
    pools: tuple[PoolStatus, ...]
    sessions: int
    leased: int
    abandoned: int
    requests: int
    takeover_lag_s: float
    request_lag_s: float


_POOLS = """
SELECT queue_name, count(*) FILTER (WHERE status = 'todo'), count(*) FILTER (WHERE status = 'doing'),
    CAST(coalesce(extract(epoch FROM clock_timestamp() - min(deferred.at) FILTER (WHERE status = 'todo')), 0)
        AS double precision)
FROM procrastinate_jobs LEFT JOIN procrastinate_events AS deferred
    ON deferred.job_id = procrastinate_jobs.id AND deferred.type = 'deferred'
WHERE status IN ('todo', 'doing') GROUP BY queue_name ORDER BY queue_name"""
_SESSIONS = """
SELECT count(*), count(*) FILTER (WHERE until > clock_timestamp()),
    count(*) FILTER (WHERE owner <> '' AND (until IS NULL OR until <= clock_timestamp())),
    CAST(coalesce(extract(epoch FROM clock_timestamp() -
        min(until) FILTER (WHERE owner <> '' AND until <= clock_timestamp())), 0) AS double precision)
FROM sessions LEFT JOIN leases ON leases.session = sessions.number"""
_REQUESTS = """
SELECT count(*), CAST(coalesce(extract(epoch FROM clock_timestamp() - min(made)), 0) AS double precision)
FROM requests WHERE NOT is_taken"""
_WORKERS = """
SELECT CAST(extract(epoch FROM clock_timestamp() - last_heartbeat) AS double precision)
FROM procrastinate_workers ORDER BY id"""


def status_of_fleet(connection: Connection) -> FleetStatus:
    """Return the state of a fleet."""
    sessions, leased, abandoned, takeover_lag_s = connection.execute(_SESSIONS).fetchone()
    requests, request_lag_s = connection.execute(_REQUESTS).fetchone()
    (has_queue,) = connection.execute("SELECT to_regclass('procrastinate_jobs') IS NOT NULL").fetchone()
    pools = connection.execute(_POOLS).fetchall() if has_queue else []
    workers = connection.execute(_WORKERS).fetchall() if has_queue else []
    return FleetStatus(
        tuple(age for (age,) in workers), tuple(PoolStatus(*pool) for pool in pools), sessions, leased, abandoned,
        requests, takeover_lag_s, request_lag_s,
    )  # fmt: skip
