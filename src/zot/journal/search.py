"""What the model calls of a session used, and when: for who asks what was spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from zot.events import AssistantMessage, Usage, UserMessage
from zot.journal.chunks import Kind, unpack, verified
from zot.journal.queries import CHUNK, SessionRecord
from zot.messages import Counters
from zot.store import Configured, Counted, Row

#: Which rows tell it. Only what is read with one of them is decoded: most of a session is something else.
_TELLING = {Kind.EVENTS: ("usage", "user_message"), Kind.CHANGES: ("configured", "counted")}


class Spent(msgspec.Struct, frozen=True):
    """One model call: when it was answered, in RFC 3339, by which ``model`` (with its provider), and what it used.

    Several ``calls`` of a day may stand as one.
    """

    time: str
    model: str
    counters: Counters
    calls: int = 1


def spent(connection: sqlite3.Connection, record: SessionRecord) -> list[Spent]:
    """Return the model calls of a session, without those that it has from the session it was forked from.

    One that left no words, such as that for a summary, has the time of what was said before it. Raise JournalDamaged.
    """
    found: list[Spent] = []
    time, model = record.created, ""
    is_unsaid = False
    for seq, row in _telling(connection, record.number):
        match row:
            case Configured():
                model = f"{row.provider}/{row.model}"
            case UserMessage():
                time = row.time or time
            case Usage():
                if seq > record.fork_seq:
                    found.append(Spent(time, model, row.counters))
            case Counted():
                if seq > record.fork_seq:
                    found.append(Spent(row.time, model, row.counters))
            case AssistantMessage():  # It stands right behind what it used.
                time = row.time or time
                if is_unsaid and found:
                    found[-1] = msgspec.structs.replace(found[-1], time=time)
            case _:
                pass
        is_unsaid = isinstance(row, Usage) and seq > record.fork_seq
    return found


def _telling(connection: sqlite3.Connection, number: int) -> Iterator[tuple[int, Row]]:
    """Yield the rows that are read with those that tell something, in order, with their numbers."""
    rows: list[tuple[int, Row]] = []
    for kind, words in _TELLING.items():
        said = " OR ".join("instr(body, CAST(? AS BLOB))" for _ in words)
        query = f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? AND ({said})"
        for found in connection.execute(query, (number, kind, *(f'"{word}"' for word in words))):
            chunk = verified(found)
            rows += [
                (seq, row)
                for seq, row in enumerate(unpack(chunk), chunk.first)
                if isinstance(row, Usage | UserMessage | AssistantMessage | Configured | Counted)
            ]
    yield from sorted(rows, key=lambda one: one[0])
