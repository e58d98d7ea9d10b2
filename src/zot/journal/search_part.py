"""Finding what was said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from zot.journal.chunks import Kind, unpack
from zot.journal.queries import chunks_after, listed
from zot.messages import Message, ResultBlock, Role, TextBlock
from zot.store import Said

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
