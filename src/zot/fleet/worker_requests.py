"""Requests of clients to the worker that runs a session: rows that the worker takes, once, and answers."""

from __future__ import annotations

from collections.abc import Sequence
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


WorkerRequest: TypeAlias = AbortRun | SteerRun | AnswerApproval


class Outcome(msgspec.Struct, frozen=True):
    """What became of a request: done, or the reason why not."""

    problem: str = ""
    #: True if there was nothing to abort, steer or answer any more.
    is_late: bool = False


class TakenRequest(msgspec.Struct, frozen=True):
    """A request that this worker must conclude."""

    id: int
    session: int
    request: WorkerRequest


def make(connection: Connection, session: int, request: WorkerRequest) -> int:
    """Store a request and ring for it; return its number."""
    query = "DELETE FROM requests WHERE made < clock_timestamp() - make_interval(secs => ?)"
    connection.execute(query, (_OLD_S,))
    query = "INSERT INTO requests (session, body) VALUES (?, ?) RETURNING id"
    (number,) = connection.execute(query, (session, msgspec.json.encode(request))).fetchone()
    connection.execute("SELECT pg_notify(?, ?)", (REQUESTS, str(session)))
    return int(number)


def take(connection: Connection, sessions: Sequence[int]) -> list[TakenRequest]:
    """Take the new requests of sessions that run here, oldest first: no other worker gets them."""
    query = (
        "UPDATE requests SET is_taken = true WHERE id IN (SELECT id FROM requests"
        " WHERE session = ANY(CAST(? AS bigint[])) AND NOT is_taken ORDER BY id FOR UPDATE SKIP LOCKED)"
        " RETURNING id, session, body"
    )
    found = sorted(connection.execute(query, ([*sessions],)).fetchall())
    return [
        TakenRequest(number, session, msgspec.json.decode(body, type=thread_safe_type(WorkerRequest)))
        for number, session, body in found
    ]


def conclude(connection: Connection, taken: TakenRequest, outcome: Outcome, aborted_run: int | None) -> None:
    """Store the outcome of a request, with the run that it has aborted, if any, and ring for it."""
    query = "UPDATE requests SET outcome = ?, aborted_run = ? WHERE id = ?"
    connection.execute(query, (msgspec.json.encode(outcome), aborted_run, taken.id))
    ring(connection, taken.session)


def outcome_of(connection: Connection, number: int) -> Outcome | None:
    """Return what became of a request; None if that is not known yet."""
    found = connection.execute("SELECT outcome FROM requests WHERE id = ?", (number,)).fetchone()
    if found is None:
        return Outcome("the session was deleted", is_late=True)
    return None if found[0] is None else msgspec.json.decode(found[0], type=thread_safe_type(Outcome))


def withdraw(connection: Connection, number: int) -> None:
    """Remove a request that no worker has taken."""
    connection.execute("DELETE FROM requests WHERE id = ? AND NOT is_taken", (number,))


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
