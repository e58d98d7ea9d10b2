"""Sessions out of the tables and into them, as portable lines; a line at a time, however long they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator

import msgspec

from zot.encoding import encode
from zot.events import Usage
from zot.journal.chunks import MAX_CHUNK_BYTES, Chunk, Kind, fetched, images, unpack
from zot.journal.portable import (
    VERSION,
    ChangeLine,
    EndLine,
    EventLine,
    Header,
    ImageLine,
    Line,
    line_of,
    local,
    portable,
)
from zot.journal.queries import SessionRecord, chunks_after, create, find, get, put, used
from zot.journal.statements import summed_up
from zot.journal.summary import Summary, key_of
from zot.store import Change, Configured, Row


def exported(connection: sqlite3.Connection, session: SessionRecord, *, home: str) -> Iterator[bytes]:
    """Yield a session as lines, each with its LF. Raise JournalDamaged."""
    cwd = portable(session.cwd, home)
    header = Header(VERSION, session.id, session.created, session.title, cwd, session.parent, session.fork_seq)
    yield encode(header) + b"\n"
    rows = 0
    sent: set[bytes] = set()
    for chunk in chunks_after(connection, session.number, 0):
        for row in unpack(chunk):
            shown = images(row) if chunk.kind == Kind.CHANGES else []
            yield from _images(connection, shown, sent)
            # An image that is lost leaves a note, as for whoever reads the session here.
            whole = fetched(row, {digest: digest for digest in shown if digest in sent}) if shown else row
            # What stays here leaves no hole: the numbers of a file are its own.
            line = line_of(rows + 1, chunk.run, whole, home=home)
            if line is not None:
                yield encode(line) + b"\n"
                rows += 1
    yield encode(EndLine(rows)) + b"\n"


def _images(connection: sqlite3.Connection, shown: Iterable[bytes], sent: set[bytes]) -> Iterator[bytes]:
    for digest in shown:
        query = "SELECT data FROM blobs WHERE hash = ?"
        found = None if digest in sent else connection.execute(query, (digest,)).fetchone()
        if found is not None:
            sent.add(digest)
            yield encode(ImageLine(digest.hex(), found[0])) + b"\n"


def imported(
    connection: sqlite3.Connection,
    lines: Iterable[Line],
    *,
    wanted_id: str | None,
    spare_id: Callable[[], str],
    home: str,
    cwd: str | None,
    agent: str = "",
    now: str,
) -> SessionRecord:
    """Make a session of ``lines``, which are valid: within a transaction, so all of it or nothing.

    It is called ``wanted_id``, which must be free; without one as before, or ``spare_id`` if there is such a session.
    ``cwd`` is where it works from now on, if that is not where it did, ``agent`` whose it is. Raise UserError.
    """
    reading = iter(lines)
    header = next(reading)
    assert isinstance(header, Header)
    new_id = wanted_id or (header.id if find(connection, header.id) is None else spare_id())
    where = local(header.cwd, home) if cwd is None else cwd
    made = create(connection, new_id, cwd=where, title=header.title, now=now)
    _Import(connection, made.number, home=home, cwd=cwd, agent=agent, now=now).take(reading)
    parent = None if header.parent is None else key_of(header.parent)
    query = "UPDATE sessions SET created = ?, parent = ?, fork_seq = ? WHERE number = ?"
    connection.execute(query, (header.created, parent, header.fork_seq, made.number))
    return get(connection, new_id)


class _Import:
    """Rows on their way into one session."""

    def __init__(
        self, connection: sqlite3.Connection, number: int, *, home: str, cwd: str | None, agent: str, now: str
    ) -> None:
        self._connection = connection
        self._number = number
        self._home = home
        self._cwd = cwd
        self._agent = agent
        self._now = now
        self._summary = Summary()
        self._open: Chunk | None = None
        self._bodies: list[bytes] = []
        self._size = 0

    def take(self, lines: Iterable[Line]) -> None:
        for line in lines:
            match line:
                case ImageLine(sha256=sha256, data=data):
                    query = "INSERT OR IGNORE INTO blobs (hash, data) VALUES (?, ?)"
                    self._connection.execute(query, (bytes.fromhex(sha256), data))
                case EventLine():
                    self._take_row(line.seq, line.run, Kind.EVENTS, line.event)
                case ChangeLine():
                    self._take_row(line.seq, line.run, Kind.CHANGES, self._here(line.change))
                case _:
                    pass
        self._put()
        summed_up(self._connection, {self._number: self._summary}, self._now)

    def _here(self, change: Change) -> Change:
        """Return ``change`` with the directory and the agent of this machine."""
        if not isinstance(change, Configured):
            return change
        cwd = local(change.cwd, self._home) if self._cwd is None else self._cwd
        return msgspec.structs.replace(change, cwd=cwd, agent=self._agent)

    def _take_row(self, seq: int, run: int, kind: Kind, row: Row) -> None:
        body = encode(row) + b"\n"
        self._size += len(body)
        chunk = self._open
        goes_on = chunk is not None and (chunk.kind, chunk.run, chunk.first + chunk.count) == (kind, run, seq)
        if chunk is None or not goes_on or self._size > MAX_CHUNK_BYTES:
            self._put()
            chunk = self._open = Chunk(self._number, kind, seq, 0, run, b"")
            self._size = len(body)
        chunk.count += 1
        self._bodies.append(body)
        if kind == Kind.CHANGES or isinstance(row, Usage):  # most rows tell nothing of the whole
            self._summary.add([row])
            used(self._connection, self._number, seq, images(row))

    def _put(self) -> None:
        if self._open is not None:
            self._open.body = b"".join(self._bodies)
            put(self._connection, self._open)
        self._open, self._bodies, self._size = None, [], 0
