"""What a store hands to the writer, and how it gets into the tables."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Protocol

import msgspec

from zot.errors import StoreFailed
from zot.journal.chunks import Chunk, join
from zot.journal.queries import used
from zot.journal.statements import insert_chunks, summed_up
from zot.journal.summary import Summary
from zot.messages import timestamp


class Sender(Protocol):
    """A store, as the writer sees it. Its methods are called in the thread of its loop."""

    loop: asyncio.AbstractEventLoop
    number: int
    #: Set and read by the writer only: rows behind a hole are never written.
    broken: StoreFailed | None

    def on_safe(self, seq: int, size: int) -> None:
        """Rows are safe, up to ``seq``; they took ``size`` bytes."""

    def on_failed(self, problem: StoreFailed) -> None:
        """Rows could not be made safe."""


class Parcel(msgspec.Struct):
    """One append, on its way. ``summary`` has what it changes of what is known of the session.

    ``durable``: it is not safe before the disk has it, so that it survives a loss of power.
    """

    sender: Sender
    chunks: list[Chunk]
    blobs: dict[bytes, bytes]
    summary: Summary | None
    last: int
    size: int
    durable: bool = False

    @property
    def is_plain(self) -> bool:
        """True if it is one chunk and nothing else, as most are."""
        return len(self.chunks) == 1 and not self.blobs and self.summary is None


def insert(connection: sqlite3.Connection, parcels: Sequence[Parcel]) -> None:
    """Write what ``parcels`` have, inside a transaction. What is known of a session is changed once, however many of
    them are its own."""
    insert_chunks(connection, join([chunk for parcel in parcels for chunk in parcel.chunks]))
    summaries: dict[int, Summary] = {}
    for parcel in parcels:
        number = parcel.sender.number
        if parcel.blobs:
            connection.executemany("INSERT OR IGNORE INTO blobs (hash, data) VALUES (?, ?)", parcel.blobs.items())
            used(connection, number, parcel.chunks[0].first, parcel.blobs)
        if parcel.summary is not None:
            summaries.setdefault(number, Summary()).extend(parcel.summary)
    summed_up(connection, summaries, timestamp())
