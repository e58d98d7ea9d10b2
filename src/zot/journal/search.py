"""Search in stored messages, and usage by day and model."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from zot.events import AssistantMessage, Usage, UserMessage
from zot.journal.chunks import Kind, unpack, verified
from zot.journal.queries import CHUNK, SessionRecord, chunks_after, listed
from zot.messages import Counters, Message, ResultBlock, Role, TextBlock
from zot.store import Configured, Counted, Row, Said

_AROUND = 60


class Hit(msgspec.Struct, frozen=True):
    """A place where something was said: the row ``seq`` of ``session``, and some words around it."""

    session: str
    seq: int
    role: Role
    excerpt: str


def matches(connection: sqlite3.Connection, text: str, limit: int) -> list[Hit]:
    """Return up to ``limit`` messages that contain ``text``, in any case of letters, in the newest sessions first."""
    wanted = text.casefold()
    hits: list[Hit] = []
    for session in listed(connection):
        for chunk in chunks_after(connection, session.number, 0, [Kind.CHANGES]):
            for seq, row in enumerate(unpack(chunk), chunk.first):
                if isinstance(row, Said):
                    found = (piece for piece in _texts(row.message) if wanted in piece.casefold())
                    hits += [Hit(session.id, seq, row.message.role, _excerpt(piece, wanted)) for piece in found]
                if len(hits) >= limit:
                    return hits[:limit]
    return hits


def _texts(message: Message) -> Iterator[str]:
    """Yield what people were shown of a message."""
    if message.shown_text is not None:
        yield message.shown_text
    for block in message.content:
        if isinstance(block, TextBlock) and message.shown_text is not None:
            continue
        inner = block.content if isinstance(block, ResultBlock) else (block,)
        yield from (part.text for part in inner if isinstance(part, TextBlock))


def _excerpt(text: str, wanted: str) -> str:
    # Folding may change lengths, so the place is only about right.
    at = text.casefold().find(wanted)
    start, stop = max(0, at - _AROUND), at + len(wanted) + _AROUND
    words = " ".join(text[start:stop].split())
    return f"{'…' if start else ''}{words}{'…' if stop < len(text) else ''}"


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
