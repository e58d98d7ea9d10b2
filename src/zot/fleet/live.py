"""Open panels and newest notices of a session's extensions, for the clients at gateways.

One row a session, replaced as a whole: no journal of redraws. It belongs to the worker that has the extensions, and
expires unless that worker renews it. The table is unlogged: after a crash of the server, workers write it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from zot.encoding import thread_safe_type
from zot.events import AgentEvent, PanelOpened
from zot.fleet.worker_requests import ring
from zot.journal.connection import Connection


class Notice(msgspec.Struct, frozen=True):
    """An event that is not recorded: its number among those of its session and worker, and the newest row before it."""

    number: int
    after: int
    event: AgentEvent


class Shown(msgspec.Struct, frozen=True):
    """The open panels of a session, and its newest notices, oldest first."""

    panels: tuple[PanelOpened, ...] = ()
    notices: tuple[Notice, ...] = ()


def show(connection: Connection, worker: str, shown: Mapping[int, Shown], valid_s: float) -> None:
    """Replace what sessions show, by number, and ring for them. What shows nothing is deleted."""
    for session, one in shown.items():
        if one == Shown():
            connection.execute("DELETE FROM live WHERE session = ? AND worker = ?", (session, worker))
        else:
            query = (
                "INSERT INTO live (session, worker, until, body) SELECT number, ?,"
                " clock_timestamp() + make_interval(secs => ?), ? FROM sessions WHERE number = ? ON CONFLICT (session)"
                " DO UPDATE SET worker = excluded.worker, until = excluded.until, body = excluded.body"
            )
            connection.execute(query, (worker, valid_s, msgspec.json.encode(one), session))
        ring(connection, session)


def renew(connection: Connection, worker: str, sessions: Sequence[int], valid_s: float) -> dict[int, int]:
    """Renew the rows of a worker; return the newest row of each session that it still shows."""
    query = (
        "UPDATE live SET until = clock_timestamp() + make_interval(secs => ?) FROM sessions"
        " WHERE sessions.number = session AND worker = ? AND session = ANY(CAST(? AS bigint[]))"
        " RETURNING session, next_seq - 1"
    )
    return dict(connection.execute(query, (valid_s, worker, [*sessions])).fetchall())


def shown_by(connection: Connection, sessions: Sequence[int]) -> dict[int, tuple[str, Shown]]:
    """Return what sessions show, with the worker of each."""
    query = (
        "SELECT session, worker, body FROM live WHERE session = ANY(CAST(? AS bigint[])) AND until > clock_timestamp()"
    )
    return {
        session: (worker, msgspec.json.decode(body, type=thread_safe_type(Shown)))
        for session, worker, body in connection.execute(query, ([*sessions],))
    }
