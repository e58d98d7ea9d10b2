"""SQL queries on the journal's tables: sessions and their rows, text search, usage by day and model.

SQLite and PostgreSQL understand them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from zot.encoding import UNREADABLE, thread_safe_type
from zot.errors import JournalDamaged, NoSuchSession, UserError
from zot.events import AssistantMessage, AssistantStart, TurnEnd, Usage, UserMessage
from zot.files import sha256
from zot.journal.chunks import (
    Chunk,
    Kind,
    cut,
    fetched,
    images,
    may_have_images,
    read_all,
    unpack,
    unpack_all,
    verified,
)
from zot.journal.connection import Connection, Cursor, Values
from zot.journal.lease import Owner
from zot.messages import ZERO, Counters, Message, ResultBlock, Role, TextBlock, text_of, timestamp
from zot.store import MessageAdded, MessagesReplaced, Row, SettingsChanged, UsageCounted
from zot.text import replace_surrogates

_MAX_TITLE = 80
_SUMMARISED = frozenset({MessageAdded, MessagesReplaced, SettingsChanged, UsageCounted, Usage})
_SESSION = "number, id, created, updated, cwd, title, parent, fork_seq, messages, totals, epoch, owner"
#: The greatest number of rows, where all are wanted.
_ALL = (1 << 63) - 1
#: The columns that `verified` expects.
CHUNK = "session, kind, first, count, run, body, crc"
#: The chunks fetched at a time, so that a reader of few rows does not pay for many.
_FETCH = 64
#: The first file version with a table of losses.
_LOSSES_SINCE = 3
#: Kinds of losses (`losses`) at the end of a session, before and after a person acknowledges them. Later rows have
#: reused the numbers, so no repair brings them back. Other losses are gaps that a repair recorded.
TAIL = "tail"
ACKNOWLEDGED = "acknowledged"
#: The epochs reserved for each session.
_EPOCHS = 1 << 20
_DECODE_BYTES = 1 << 18
#: Batch sizes of one statement: few, so that few statements are prepared.
_BATCHES = (64, 8, 1)
_INSERT = "INSERT INTO chunks (session, kind, first, count, run, crc, body) VALUES {}"
_SUM_UP = """
WITH more (number, messages, words, totals, cwd, mark) AS (VALUES {})
UPDATE sessions SET updated = max(updated, ?), (messages, title, totals, cwd, owner) = (
    SELECT sessions.messages + more.messages, CASE title WHEN '' THEN words ELSE title END,
        coalesce(more.totals, sessions.totals), coalesce(more.cwd, sessions.cwd),
        CASE owner WHEN mark THEN x'' ELSE owner END
    FROM more WHERE more.number = sessions.number
) WHERE number IN (SELECT number FROM more)"""


class SessionSummary(msgspec.Struct):
    """The effect of rows on a session's summary row: the change in messages (may be negative), newest totals, first
    words, current directory, and the mark of an owner that has left."""

    messages: int = 0
    totals: Counters | None = None
    words: str = ""
    cwd: str = ""
    left: bytes = b""

    def add(self, rows: Iterable[Row]) -> None:
        """Add more rows."""
        for row in rows:
            match row:
                case MessageAdded(message=message):
                    self.messages += 1
                    if not self.words and message.role == "user":
                        self.words = titled(text_of(message.content))
                case MessagesReplaced(start=start, stop=stop, messages=messages):
                    self.messages += len(messages) - (stop - start)
                case Usage(cumulative=totals) | UsageCounted(cumulative=totals):
                    self.totals = totals
                case SettingsChanged(cwd=cwd):
                    self.cwd = cwd or self.cwd
                case _:
                    pass

    def extend(self, other: SessionSummary) -> None:
        """Add the summary of later rows."""
        self.messages += other.messages
        self.totals = other.totals if other.totals is not None else self.totals
        self.words = self.words or other.words
        self.cwd = other.cwd or self.cwd
        self.left = other.left or self.left

    def values(self) -> tuple[Any, ...]:
        """Return the values for `update_summaries`; None where nothing changes."""
        totals = None if self.totals is None else msgspec.json.encode(self.totals)
        return self.messages, self.words, totals, key_of(self.cwd) if self.cwd else None, self.left or None


def key_of(name: str) -> bytes:
    """Return an id or path as stored. Any string is valid, lone surrogates included."""
    return name.encode("utf-8", "surrogatepass")


def summarise(rows: Sequence[Row]) -> SessionSummary | None:
    """Return the summary of ``rows``; None if they change nothing, as most do."""
    if _SUMMARISED.isdisjoint({*map(type, rows)}):
        return None
    summary = SessionSummary()
    summary.add(rows)
    return summary


def added(rows: Sequence[Row]) -> int:
    """Return the number of messages that ``rows`` add."""
    summary = summarise(rows)
    return 0 if summary is None else summary.messages


def titled(text: str) -> str:
    """Return ``text`` as a title: one short line."""
    line = " ".join(replace_surrogates(text[: 4 * _MAX_TITLE]).split())
    return line if len(line) <= _MAX_TITLE else f"{line[: _MAX_TITLE - 1]}…"


def insert_chunks(connection: Connection, chunks: Iterable[Chunk]) -> None:
    """Write chunks. A single one needs no explicit transaction."""
    rows = [(chunk.session, chunk.kind, chunk.first, chunk.count, chunk.run, chunk.crc, chunk.body) for chunk in chunks]
    _write(connection, _INSERT, rows)


def update_summaries(connection: Connection, summaries: Mapping[int, SessionSummary], now: str) -> None:
    """Update the summary rows of sessions, by number. Titles are never overwritten, nor the mark of another owner."""
    _write(connection, _SUM_UP, [(number, *summary.values()) for number, summary in summaries.items()], now)


def update_summary(connection: Connection, number: int, summary: SessionSummary, now: str) -> None:
    """Update the summary row of one session, as `update_summaries` does for many in SQLite."""
    messages, words, totals, cwd, left = summary.values()
    connection.execute(
        "UPDATE sessions SET updated = CASE WHEN updated < ? THEN ? ELSE updated END, messages = messages + ?,"
        " title = CASE title WHEN '' THEN ? ELSE title END, totals = COALESCE(?, totals), cwd = COALESCE(?, cwd),"
        " owner = CASE WHEN owner = ? THEN ? ELSE owner END WHERE number = ?",
        (now, now, messages, words, totals, cwd, left, b"", number),
    )


def _write(connection: Connection, query: str, rows: Sequence[Values], *last: Any) -> None:
    """Execute ``query`` for all ``rows`` in batches; the values ``last`` follow those of the rows."""
    for some in _batches(rows):
        places = ", ".join([f"({', '.join('?' * len(some[0]))})"] * len(some))
        connection.execute(query.format(places), [*(value for row in some for value in row), *last])


def _batches(rows: Sequence[Values]) -> Iterator[Sequence[Values]]:
    at = 0
    for count in _BATCHES:
        while len(rows) - at >= count:
            yield rows[at : at + count]
            at += count


class SessionRecord(msgspec.Struct, frozen=True):
    """A session's summary row. ``messages`` counts those of the current conversation."""

    number: int
    id: str
    created: str
    updated: str
    cwd: str
    title: str
    parent: str | None
    fork_seq: int
    messages: int = 0
    totals: Counters = ZERO
    epoch: int = 1
    owner: Owner | None = None
    #: Whether a lease in the table holds. In SQLite leases are locks (`lease.Leases`).
    is_leased: bool = False


def scan(connection: Connection, query: str, values: Values) -> Cursor:
    """Run a query whose rows may not be read to the end. PostgreSQL would send all of them at once."""
    found: Cursor = getattr(connection, "scan", connection.execute)(query, values)
    return found


def columns(connection: Connection) -> str:
    """Return the columns that `record_of` expects. PostgreSQL has leases in the table."""
    return f"{_SESSION}, {getattr(connection, 'leased', 'FALSE')}"


def find(connection: Connection, session_id: str) -> SessionRecord | None:
    """Return a session by id; None if there is none."""
    query = f"SELECT {columns(connection)} FROM sessions WHERE id = ?"
    row = connection.execute(query, (key_of(session_id),)).fetchone()
    return None if row is None else record_of(row)


def get(connection: Connection, session_id: str) -> SessionRecord:
    """Return a session by id. Raise NoSuchSession."""
    record = find(connection, session_id)
    if record is None:
        raise NoSuchSession(f"there is no session {session_id!r}")
    return record


def listed(connection: Connection, *, cwd: str | None = None, limit: int = _ALL) -> list[SessionRecord]:
    """Return the sessions, of ``cwd`` or all, the newest first."""
    where, values = ("", ()) if cwd is None else ("WHERE cwd = ?", (key_of(cwd),))
    query = f"SELECT {columns(connection)} FROM sessions {where} ORDER BY updated DESC, number DESC LIMIT ?"
    return [record_of(row) for row in connection.execute(query, (*values, limit))]


class ChangedSession(NamedTuple):
    """A session that may have changed: whether it has an owner, alive or dead, and the number of its newest row,
    unverified."""

    id: str
    is_run: bool
    last_seq: int
    epoch: int


def changed_since(connection: Connection, since: str) -> list[ChangedSession]:
    """Return the sessions updated ``since`` a time, and those with an owner. Reads no chunks."""
    newest = "SELECT first + count - 1 FROM chunks WHERE session = number AND kind = {:d} ORDER BY first DESC LIMIT 1"
    last = ", ".join(f"COALESCE(({newest.format(kind)}), 0)" for kind in Kind)
    query = f"SELECT id, owner <> ?, epoch, {last} FROM sessions WHERE updated >= ? OR owner <> ?"
    found = connection.execute(query, (b"", since, b""))
    return [ChangedSession(_text(key), bool(runs), max(lasts), epoch) for key, runs, epoch, *lasts in found]


def owned(connection: Connection) -> list[SessionRecord]:
    """Return the sessions with an owner, alive or dead, in order of creation."""
    query = f"SELECT {columns(connection)} FROM sessions WHERE owner <> ? ORDER BY number"
    return [record_of(row) for row in connection.execute(query, (b"",))]


def newest(connection: Connection, cwd: str, *, but: str) -> SessionRecord | None:
    """Return the last used session of ``cwd`` whose id does not begin with ``but``."""
    prefix = key_of(but)
    wanted = "cwd = ? AND substr(id, 1, ?) <> ? ORDER BY updated DESC, number DESC LIMIT 1"
    row = connection.execute(
        f"SELECT {columns(connection)} FROM sessions WHERE {wanted}", (key_of(cwd), len(prefix), prefix)
    ).fetchone()
    return None if row is None else record_of(row)


def used_at(connection: Connection, cwd: str, now: str, *, number: int = 0) -> str:
    """Return the update time of a session of ``cwd`` used ``now``: later than that of any other one there.

    After the clock was set back, the last used session must still be the newest. ``number`` is the session's own.
    """
    query = "SELECT updated FROM sessions WHERE cwd = ? AND number <> ? ORDER BY updated DESC LIMIT 1"
    row = connection.execute(query, (key_of(cwd), number)).fetchone()
    if row is None or row[0] < now:
        return now

    try:
        later = datetime.fromisoformat(row[0]) + timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return now
    return timestamp(later.timestamp())


def create(connection: Connection, session_id: str, *, cwd: str, title: str, now: str) -> SessionRecord:
    """Create a session. Raise UserError if it exists.

    Its epoch differs from that of any earlier session of the same id: numbers are not reused, and each has a range of
    epochs.
    """
    if find(connection, session_id) is not None:
        raise UserError(f"there is a session {session_id!r} already")
    (number,) = connection.execute(
        "INSERT INTO sessions (id, created, updated, cwd, title) VALUES (?, ?, ?, ?, ?) RETURNING number",
        (key_of(session_id), now, used_at(connection, cwd, now), key_of(cwd), titled(title)),
    ).fetchone()
    epoch = 1 + (number - 1) * _EPOCHS
    connection.execute("UPDATE sessions SET epoch = ? WHERE number = ?", (epoch, number))
    return get(connection, session_id)


def rename(connection: Connection, session_id: str, title: str) -> None:
    """Give a session a title. Raise NoSuchSession."""
    connection.execute(
        "UPDATE sessions SET title = ? WHERE number = ?", (titled(title), get(connection, session_id).number)
    )


def delete(connection: Connection, number: int) -> None:
    """Delete a session, its rows, and the blobs that no other session uses."""
    connection.execute("DELETE FROM sessions WHERE number = ?", (number,))
    sweep(connection)


def sweep(connection: Connection) -> int:
    """Delete the unused blobs; return how many."""
    return connection.execute("DELETE FROM blobs WHERE hash NOT IN (SELECT hash FROM uses)").rowcount


def fork(connection: Connection, source_id: str, at: int, new_id: str) -> SessionRecord:
    """Create ``new_id`` with the rows of ``source_id`` up to number ``at``, which keep their numbers.

    Raise NoSuchSession, UserError, JournalDamaged.
    """
    source = get(connection, source_id)
    if not 0 <= at <= last_seq(connection, source.number):
        raise UserError(f"session {source_id!r} has no row {at} to fork at")
    made = create(connection, new_id, cwd=source.cwd, title=source.title, now=timestamp())
    summary = SessionSummary()
    for chunk in chunks_after(connection, source.number, 0):
        if chunk.first > at:
            break
        summary.add(unpack(chunk)[: at - chunk.first + 1])
        copied = msgspec.structs.replace(chunk, session=made.number)
        put(connection, copied if chunk.first + chunk.count - 1 <= at else cut(copied, at - chunk.first + 1))
    connection.execute(
        "INSERT INTO uses SELECT ?, hash, seq FROM uses WHERE session = ? AND seq <= ?",
        (made.number, source.number, at),
    )
    connection.execute(
        "INSERT INTO losses SELECT ?, what, first, last, repaired FROM losses"
        " WHERE session = ? AND last <= ? AND what NOT IN (?, ?)",
        (made.number, source.number, at, TAIL, ACKNOWLEDGED),
    )
    parent = "UPDATE sessions SET parent = ?, fork_seq = ? WHERE number = ?"
    connection.execute(parent, (key_of(source_id), at, made.number))
    update_summary(connection, made.number, summary, made.created)
    return get(connection, new_id)


def put(connection: Connection, chunk: Chunk) -> None:
    """Write one chunk, replacing the one in its place."""
    connection.execute(
        "INSERT INTO chunks (session, kind, first, count, run, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (session, kind, first) DO UPDATE SET"
        " count = excluded.count, run = excluded.run, crc = excluded.crc, body = excluded.body",
        (chunk.session, chunk.kind, chunk.first, chunk.count, chunk.run, chunk.crc, chunk.body),
    )


def add_uses(connection: Connection, number: int, seq: int, hashes: Iterable[bytes]) -> None:
    """Store that a session refers to blobs, from row ``seq`` on."""
    query = "INSERT INTO uses (session, hash, seq) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    connection.executemany(query, [(number, digest, seq) for digest in hashes])


def closed_ids(connection: Connection) -> set[str]:
    """Return the sessions that were closed and not resumed."""
    found = connection.execute("SELECT id FROM sessions JOIN closed ON closed.session = number")
    return {_text(key) for (key,) in found}


def is_closed(connection: Connection, session_id: str) -> bool:
    """True if a session was closed and not resumed."""
    query = "SELECT 1 FROM sessions JOIN closed ON closed.session = number WHERE id = ?"
    return connection.execute(query, (key_of(session_id),)).fetchone() is not None


def mark_closed(connection: Connection, session_id: str, now: str) -> None:
    """Mark a session as closed, if it exists."""
    query = "INSERT INTO closed (session, since) SELECT number, ? FROM sessions WHERE id = ? ON CONFLICT DO NOTHING"
    connection.execute(query, (now, key_of(session_id)))


def unmark_closed(connection: Connection, session_id: str) -> None:
    """Remove the mark of `mark_closed`."""
    query = "DELETE FROM closed WHERE session IN (SELECT number FROM sessions WHERE id = ?)"
    connection.execute(query, (key_of(session_id),))


def reserve(connection: Connection, upto: int) -> bool:
    """Reserve session numbers up to ``upto``. False if all of them were given already."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'sessions'").fetchone()
    if found is None and upto:
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('sessions', ?)", (upto,))
    elif found is not None and found[0] < upto:
        connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'sessions'", (upto,))
    else:
        return False
    return True


def losses(connection: Connection, number: int) -> dict[tuple[str, int, int], str]:
    """Return the recorded losses of a session: kind, first row and last row, with the time of the repair."""
    if connection.execute("PRAGMA user_version").fetchone()[0] < _LOSSES_SINCE:
        return {}  # A read-only opening does not migrate the file.
    query = "SELECT what, first, last, repaired FROM losses WHERE session = ?"
    return {(what, first, last): repaired for what, first, last, repaired in connection.execute(query, (number,))}


def record_loss(connection: Connection, number: int, place: tuple[str, int, int], repaired: str) -> None:
    """Record a loss: kind, first row and last row (`losses`)."""
    query = "INSERT OR REPLACE INTO losses (session, what, first, last, repaired) VALUES (?, ?, ?, ?, ?)"
    connection.execute(query, (number, *place, repaired))


def acknowledge(connection: Connection) -> None:
    """Mark all rows lost at the end of sessions as acknowledged."""
    connection.execute("UPDATE OR REPLACE losses SET what = ? WHERE what = ?", (ACKNOWLEDGED, TAIL))


def last_seq(connection: Connection, number: int) -> int:
    """Return the number of a session's newest row; 0 if it has none. Raise JournalDamaged."""
    return newest_row_and_run(connection, number)[0]


def newest_row_and_run(connection: Connection, number: int) -> tuple[int, int]:
    """Return the numbers of a session's newest row and newest run; (0, 0) if it has none. Raise JournalDamaged."""
    newest = _last_chunks(connection, number)
    last = max((chunk.first + chunk.count - 1 for chunk in newest), default=0)
    return last, max((chunk.run for chunk in newest), default=0)


def last_run(connection: Connection, number: int) -> tuple[int, int]:
    """Return the number of a session's newest run and that of its first row; (0, 0) if there is none.

    Raise JournalDamaged.
    """
    newest = _last_chunks(connection, number)
    run = max((chunk.run for chunk in newest), default=0)
    begin = [chunk.first for chunk in newest if chunk.run == run]
    for chunk in newest:
        # From the end: a run is short, a session may be long.
        query = "SELECT first, run FROM chunks WHERE session = ? AND kind = ? ORDER BY first DESC"
        with closing(scan(connection, query, (number, chunk.kind))) as found:
            for first, of_run in found:
                if of_run != run or not isinstance(first, int):
                    break
                begin.append(first)
    return run, min(begin, default=0)


def rows_of(connection: Connection, number: int, run: int) -> list[tuple[int, Row]]:
    """Return the rows of one run, with their numbers. Raise JournalDamaged."""
    query = "SELECT MIN(first), MAX(first + count) FROM chunks WHERE session = ? AND run = ?"
    first, stop = connection.execute(query, (number, run)).fetchone()
    return [] if first is None else rows_after(connection, number, first - 1, stop - first)


def newest_count(connection: Connection, number: int, upto: int) -> tuple[int, list[Row]]:
    """Return the usage of the newest complete reply up to row ``upto`` and its `turn_end`, with the usage's row number.

    Return 0 and an empty list if there is none. Raise JournalDamaged.
    """
    query = (
        f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? AND first <= ?"
        " AND (instr(body, ?) > 0 OR instr(body, ?) > 0) ORDER BY first DESC"
    )
    counted = connection.execute("SELECT totals FROM sessions WHERE number = ?", (number,)).fetchone()
    if counted is None or not counted[0]:
        return 0, []  # No usage was ever recorded; skip reading all rows.
    end: TurnEnd | None = None
    with closing(
        scan(connection, query, (number, Kind.EVENTS, upto, b'"usage"', b'"turn_end"'))
    ) as found:  # Not read to its end.
        for chunk in map(verified, found):
            for seq, row in reversed(list(enumerate(unpack(chunk), chunk.first))):
                match row:
                    case TurnEnd():
                        end = row if row.stop in ("end_turn", "tool_use", "length") and seq <= upto else None
                    case Usage() if end is not None:
                        return seq, [row, end]
                    case AssistantStart():
                        end = None
                    case _:
                        pass
    return 0, []


def _last_chunks(connection: Connection, number: int) -> list[Chunk]:
    # One statement for all kinds: each releases the interpreter lock and may wait for it afterwards.
    newest = f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? ORDER BY first DESC LIMIT 1"
    one = f"SELECT * FROM ({newest}) AS newest"
    query = " UNION ALL ".join([one] * len(Kind))
    values = [value for kind in Kind for value in (number, kind)]
    return [verified(row) for row in connection.execute(query, values)]


def chunks_after(
    connection: Connection, number: int, after: int, kinds: Sequence[Kind] = tuple(Kind)
) -> Generator[Chunk, None, None]:
    """Yield the chunks that have rows after ``after``, in order. Raise JournalDamaged."""
    # Each kind is ordered by itself; SQLite merges them without sorting.
    one = (
        f"SELECT {CHUNK} FROM chunks WHERE session = ? AND kind = ? AND first >= COALESCE("
        "(SELECT first FROM chunks WHERE session = ? AND kind = ? AND first <= ? ORDER BY first DESC LIMIT 1), 0)"
    )
    query = " UNION ALL ".join([one] * len(kinds)) + " ORDER BY first"
    values = [value for kind in kinds for value in (number, kind, number, kind, after + 1)]
    with closing(scan(connection, query, values)) as cursor:
        while found := cursor.fetchmany(_FETCH):
            for chunk in map(verified, found):
                if chunk.first + chunk.count - 1 > after:
                    yield chunk


def rows_after(
    connection: Connection, number: int, after: int, limit: int, kinds: Sequence[Kind] = tuple(Kind)
) -> list[tuple[int, Row]]:
    """Return up to ``limit`` rows after ``after``, with their numbers. Raise JournalDamaged."""
    found: list[tuple[int, Row]] = []
    with closing(chunks_after(connection, number, after, kinds)) as every:  # May not be read to its end.
        for _, group in groupby(every, lambda chunk: chunk.kind):
            while limit > len(found) and (chunks := _next_chunks(group, limit - len(found))):
                rows = unpack_all(chunks)
                if chunks[0].kind == Kind.CHANGES and any(may_have_images(chunk.body) for chunk in chunks):
                    numbers, stored = zip(*rows, strict=True)
                    rows = list(zip(numbers, _with_blobs(connection, stored), strict=True))
                found += rows[max(0, after + 1 - chunks[0].first) :]
            if len(found) >= limit:
                break
    return found[:limit] if len(found) > limit else found


def all_changes(connection: Connection, number: int) -> tuple[list[int], list[Row]]:
    """Return all changes of a session's transcript: their numbers, and the changes. Raise JournalDamaged.

    Faster than `rows_after` for whole sessions: opening one waits for it.
    """
    shows = connection.execute("SELECT 1 FROM uses WHERE session = ? LIMIT 1", (number,)).fetchone() is not None
    numbers: list[int] = []
    changes: list[Row] = []
    query = "SELECT first, count, run, crc, body FROM chunks WHERE session = ? AND kind = ? ORDER BY first"
    cursor = connection.execute(query, (number, Kind.CHANGES))
    while table := cursor.fetchmany(_FETCH):
        more, rows = read_all(number, Kind.CHANGES, table)
        numbers += more
        changes += _with_blobs(connection, rows) if shows and any(may_have_images(row[4]) for row in table) else rows
    return numbers, changes


def _next_chunks(chunks: Iterator[Chunk], rows: int) -> list[Chunk]:
    """Take the chunks to decode at once: enough for ``rows`` rows, but small enough not to hold the interpreter lock
    for long."""
    some: list[Chunk] = []
    size = 0
    for chunk in chunks:
        some.append(chunk)
        size += len(chunk.body)
        rows -= chunk.count
        if size >= _DECODE_BYTES or rows <= 0:
            break
    return some


def _with_blobs(connection: Connection, rows: Sequence[Row]) -> list[Row]:
    blobs: dict[bytes, bytes] = {}
    for digest in {digest for row in rows for digest in images(row)}:
        data = blob(connection, digest)
        if data is not None:
            blobs[digest] = data
    return [fetched(row, blobs) for row in rows]


def blob(connection: Connection, digest: bytes) -> bytes | None:
    """Return a blob by its hash; None if it is missing or damaged."""
    found = connection.execute("SELECT data FROM blobs WHERE hash = ?", (digest,)).fetchone()
    return found[0] if found is not None and sha256(found[0]).digest() == digest else None


def record_of(row: tuple[Any, ...]) -> SessionRecord:
    """Return the session in a table row. Raise JournalDamaged."""
    number, key, created, updated, cwd, title, parent, fork_seq, messages, totals, epoch, owner, is_leased = row
    try:
        found = {
            "number": number, "id": _text(key), "created": created, "updated": updated, "cwd": _text(cwd),
            "title": title, "parent": None if parent is None else _text(parent), "fork_seq": fork_seq,
            "messages": max(messages, 0), "totals": msgspec.json.decode(totals) if totals else ZERO, "epoch": epoch,
            "owner": msgspec.json.decode(owner) if owner else None, "is_leased": bool(is_leased),
        }  # fmt: skip
        return msgspec.convert(found, thread_safe_type(SessionRecord))
    except (*UNREADABLE, AttributeError, TypeError) as problem:
        # A damaged page may hold anything.
        raise JournalDamaged(f"the entry of a session cannot be read: {problem}") from problem


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


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
            case SettingsChanged():
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
                if isinstance(row, Usage | UserMessage | AssistantMessage | SettingsChanged | UsageCounted)
            ]
    yield from sorted(rows, key=lambda one: one[0])
