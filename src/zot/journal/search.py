"""Search in stored messages, and usage by day and model."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from zot.events import AssistantMessage, Usage, UserMessage
from zot.journal.chunks import Kind, unpack, verified
from zot.journal.connection import Connection
from zot.journal.queries import CHUNK, SessionRecord, chunks_after, listed
from zot.messages import Counters, Message, ResultBlock, Role, TextBlock
from zot.store import Configured, MessageAdded, Row, UsageCounted

_AROUND = 60


class Hit(msgspec.Struct, frozen=True):
    """A match: the row ``seq`` of ``session``, and the text around it."""

    session: str
    seq: int
    role: Role
    excerpt: str


def matches(connection: Connection, text: str, limit: int) -> list[Hit]:
    """Return up to ``limit`` messages that contain ``text``, ignoring case, newest sessions first."""
    wanted = text.casefold()
    hits: list[Hit] = []
    for session in listed(connection):
        for chunk in chunks_after(connection, session.number, 0, [Kind.CHANGES]):
            for seq, row in enumerate(unpack(chunk), chunk.first):
                if isinstance(row, MessageAdded):
                    found = (piece for piece in _texts(row.message) if wanted in piece.casefold())
                    hits += [Hit(session.id, seq, row.message.role, _excerpt(piece, wanted)) for piece in found]
                if len(hits) >= limit:
                    return hits[:limit]
    return hits


def _texts(message: Message) -> Iterator[str]:
    """Yield the visible texts of a message."""
    if message.shown_text is not None:
        yield message.shown_text
    for block in message.content:
        if isinstance(block, TextBlock) and message.shown_text is not None:
            continue
        inner = block.content if isinstance(block, ResultBlock) else (block,)
        yield from (part.text for part in inner if isinstance(part, TextBlock))


def _excerpt(text: str, wanted: str) -> str:
    # Case folding may change lengths, so the place is approximate.
    at = text.casefold().find(wanted)
    start, stop = max(0, at - _AROUND), at + len(wanted) + _AROUND
    words = " ".join(text[start:stop].split())
    return f"{'…' if start else ''}{words}{'…' if stop < len(text) else ''}"


#: The row types that usage is derived from. Only chunks that mention one are decoded: few do.
_USAGE_ROWS = {Kind.EVENTS: ("usage", "user_message"), Kind.CHANGES: ("configured", "counted")}


class Spent(msgspec.Struct, frozen=True):
    """One model call: the time of its answer (RFC 3339), its ``model`` with provider, and its usage.

    One entry may sum up several ``calls`` of a day.
    """

    time: str
    model: str
    counters: Counters
    calls: int = 1


def spent(connection: Connection, record: SessionRecord) -> list[Spent]:
    """Return the model calls of a session, except those inherited from the session it was forked from.

    A call without a message, such as for a summary, has the time of the message before it. Raise JournalDamaged.
    """
    found: list[Spent] = []
    time, model = record.created, ""
    is_undated = False
    for seq, row in _usage_rows(connection, record.number):
        match row:
            case Configured():
                model = f"{row.provider}/{row.model}"
            case UserMessage():
                time = row.time or time
            case Usage():
                if seq > record.fork_seq:
                    found.append(Spent(time, model, row.counters))
            case UsageCounted():
                if seq > record.fork_seq:
                    found.append(Spent(row.time, model, row.counters))
            case AssistantMessage():  # Follows its usage directly.
                time = row.time or time
                if is_undated and found:
                    found[-1] = msgspec.structs.replace(found[-1], time=time)
            case _:
                pass
        is_undated = isinstance(row, Usage) and seq > record.fork_seq
    return found


def _usage_rows(connection: Connection, number: int) -> Iterator[tuple[int, Row]]:
    """Yield the rows from which usage is derived, in order, with their numbers."""
    rows: list[tuple[int, Row]] = []
    for kind, words in _USAGE_ROWS.items():
        said = " OR ".join("instr(body, ?) > 0" for _ in words)
        query = f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? AND ({said})"
        for found in connection.execute(query, (number, kind, *(f'"{word}"'.encode() for word in words))):
            chunk = verified(found)
            rows += [
                (seq, row)
                for seq, row in enumerate(unpack(chunk), chunk.first)
                if isinstance(row, Usage | UserMessage | AssistantMessage | Configured | UsageCounted)
            ]
    yield from sorted(rows, key=lambda one: one[0])
