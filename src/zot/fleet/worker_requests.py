"""Requests of clients to the worker that runs a session: rows that the worker takes, once, and answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec

from zot.encoding import thread_safe_type
from zot.journal.connection import Connection
from zot.journal.postgres.doorbell import ROWS
from zot.messages import ImageBlock

#: The channel that tells workers of a new request; a message is the session's number.
REQUESTS = "zot_requests"
#: Requests older than this concern a run that is over.
_OLD_S = 600


class AbortRun(msgspec.Struct, frozen=True, tag="abort"):
    """End the running prompt."""


class SteerRun(msgspec.Struct, frozen=True, tag="steer"):
    """Add a message to the running prompt."""

    text: str
    images: tuple[ImageBlock, ...] = ()
    prompt_id: str = ""
    by: str = ""


class AnswerApproval(msgspec.Struct, frozen=True, tag="answer"):
    """Answer an approval request. The first answer counts."""

    request_id: str
    decision: str
    by: str = ""


class CallMethod(msgspec.Struct, frozen=True, tag="call"):
    """Call a method of the daemon's protocol where the session is loaded, for a client with a token's name and roles.

    With ``needs_run`` only the worker that runs the session can do so.
    """

    method: str
    params: msgspec.Raw
    name: str
    roles: frozenset[str]
    label: str
    session_id: str
    #: The newest row that the client's gateway knows.
    after: int
    needs_run: bool = False


WorkerRequest: TypeAlias = AbortRun | SteerRun | AnswerApproval | CallMethod


class Outcome(msgspec.Struct, frozen=True):
    """What became of a request: done, or the reason why not."""

    problem: str = ""
    #: True if there was nothing to abort, steer or answer any more.
    is_late: bool = False
    #: The error code of a method, if it failed; else its result, and the newest row that clients get before it.
    code: int = 0
    result: msgspec.Raw = msgspec.Raw(b"null")
    seq: int = 0


#: The outcome of a request that no worker has taken, and whose run is over: withdraw it.
RUN_IS_OVER = Outcome("No active turn for this session", is_late=True)


class TakenRequest(msgspec.Struct, frozen=True):
    """A request that this worker must conclude."""

    id: int
    session: int
    request: WorkerRequest


def make(connection: Connection, session: int, request: WorkerRequest, pool: str = "") -> int:
    """Store a request and ring for it; return its number. A worker of the ``pool`` answers calls of an idle session."""
    query = "DELETE FROM requests WHERE made < clock_timestamp() - make_interval(secs => ?)"
    connection.execute(query, (_OLD_S,))
    needs_run = not isinstance(request, CallMethod) or request.needs_run
    query = "INSERT INTO requests (session, body, needs_run) VALUES (?, ?, ?) RETURNING id"
    (number,) = connection.execute(query, (session, msgspec.json.encode(request), needs_run)).fetchone()
    connection.execute("SELECT pg_notify(?, ?)", (REQUESTS, f"{session}" if needs_run else f"{session} {pool}"))
    return int(number)


class Place(msgspec.Struct, frozen=True):
    """What a worker has: the sessions that it runs, those that are loaded, those whose panels it shows, and its pool.

    Without a ``pool`` it takes no requests of sessions that it does not have.
    """

    running: Collection[int] = ()
    loaded: Collection[int] = ()
    showing: Collection[int] = ()
    pool: str | None = None


_TAKE = """
UPDATE requests SET is_taken = true, alive = clock_timestamp() WHERE id IN (
    SELECT requests.id FROM requests JOIN sessions ON sessions.number = requests.session
    WHERE NOT is_taken AND CASE
        WHEN needs_run OR EXISTS (
            SELECT 1 FROM leases WHERE leases.session = requests.session AND until > clock_timestamp()
        ) THEN requests.session = ANY(CAST(? AS bigint[]))
        WHEN EXISTS (SELECT 1 FROM live WHERE live.session = requests.session AND until > clock_timestamp())
            THEN requests.session = ANY(CAST(? AS bigint[]))
        ELSE requests.session = ANY(CAST(? AS bigint[])) OR pool = ? OR (pool = '' AND ? <> '') END
    ORDER BY requests.id FOR UPDATE OF requests SKIP LOCKED
) RETURNING id, session, body"""


def take(connection: Connection, place: Place) -> list[TakenRequest]:
    """Take the new requests that a worker can do, oldest first: no other worker gets them.

    A request that this version does not know is concluded at once.
    """
    pool = place.pool or ""
    values = ([*place.running], [*place.showing], [*place.loaded], pool or None, pool)
    taken: list[TakenRequest] = []
    for number, session, body in sorted(connection.execute(_TAKE, values).fetchall()):
        try:
            taken.append(TakenRequest(number, session, msgspec.json.decode(body, type=thread_safe_type(WorkerRequest))))
        except msgspec.MsgspecError:
            outcome = Outcome("the session's worker has another version, and does not know this request")
            connection.execute(_CONCLUDE, (msgspec.json.encode(outcome), None, number))
            ring(connection, session)
    return taken


def keep_alive(connection: Connection, requests: Collection[int]) -> None:
    """Note that the worker of requests is alive: it works at them."""
    query = "UPDATE requests SET alive = clock_timestamp() WHERE id = ANY(CAST(? AS bigint[]))"
    connection.execute(query, ([*requests],))


_CONCLUDE = "UPDATE requests SET outcome = ?, aborted_run = ? WHERE id = ?"


def conclude(connection: Connection, taken: TakenRequest, outcome: Outcome, aborted_run: int | None) -> None:
    """Store the outcome of a request, with the run that it has aborted, if any, and ring for it."""
    connection.execute(_CONCLUDE, (msgspec.json.encode(outcome), aborted_run, taken.id))
    ring(connection, taken.session)


def outcome_of(connection: Connection, number: int, lease_s: float) -> Outcome | None:
    """Return what became of a request; None if that is not known yet."""
    query = (
        "SELECT outcome, alive < clock_timestamp() - make_interval(secs => ?),"
        " needs_run AND NOT is_taken AND owner = ''"
        " FROM requests JOIN sessions ON sessions.number = requests.session WHERE requests.id = ?"
    )
    found = connection.execute(query, (lease_s, number)).fetchone()
    if found is None:
        return Outcome("the session was deleted", is_late=True)
    outcome, is_left, is_over = found
    if is_over:
        return RUN_IS_OVER
    if outcome is None:
        return Outcome("its worker is gone; send it again", is_late=True) if is_left else None
    return msgspec.json.decode(outcome, type=thread_safe_type(Outcome))


def withdraw(connection: Connection, number: int) -> bool:
    """Remove a request. False if a worker has taken it."""
    found = connection.execute("DELETE FROM requests WHERE id = ? AND NOT is_taken", (number,))
    return bool(found.rowcount)


class DroppedPrompt(msgspec.Struct, frozen=True):
    """Why a prompt will never run."""

    problem: str
    is_cancelled: bool = False


def drop_prompt(connection: Connection, job: int, session: int, why: DroppedPrompt) -> None:
    """Store why a prompt will never run, and ring for it."""
    query = "INSERT INTO dropped (job, why) VALUES (?, ?) ON CONFLICT (job) DO NOTHING"
    connection.execute(query, (job, msgspec.json.encode(why)))
    query = "DELETE FROM dropped WHERE made < clock_timestamp() - make_interval(secs => ?)"
    connection.execute(query, (_OLD_S,))
    ring(connection, session)


def dropped_prompts(connection: Connection, jobs: Sequence[int]) -> dict[int, DroppedPrompt]:
    """Return those of some prompts that will never run, by job."""
    query = "SELECT job, why FROM dropped WHERE job = ANY(CAST(? AS bigint[]))"
    return {
        job: msgspec.json.decode(why, type=thread_safe_type(DroppedPrompt))
        for job, why in connection.execute(query, ([*jobs],))
    }


def ring(connection: Connection, session: int) -> None:
    """Tell gateways to look at a session that has no new row."""
    connection.execute("SELECT pg_notify(?, ?)", (ROWS, f"{session}:0"))
