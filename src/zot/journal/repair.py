"""Checking a journal for damage, and salvaging a damaged file into a fresh one."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import closing, suppress
from glob import escape, glob
from itertools import product
from tempfile import mkstemp
from typing import Any

import msgspec

from zot.errors import JournalDamaged, StoreFailed, UserError, plain_reason
from zot.journal.answers import unreadable_answers
from zot.journal.chunks import Chunk, Kind, referred, unpack, verified
from zot.journal.lease import read_marks
from zot.journal.queries import (
    ACKNOWLEDGED,
    CHUNK,
    TAIL,
    SessionRecord,
    SessionSummary,
    add_uses,
    columns,
    key_of,
    listed,
    losses,
    put,
    record_loss,
    record_of,
    update_summaries,
)
from zot.journal.schema import (
    PAGE_BYTES,
    STEPS,
    connect,
    connect_read_only,
    explained,
    is_damage,
    is_from_later_version,
    is_there,
    migrate,
    prepare,
    replacement,
)
from zot.messages import timestamp
from zot.store import Row

log = logging.getLogger("zot")

#: Keys looked up one by one between two damaged places: a minute's work at most.
_MAX_LOOKUPS = 1_000_000
#: The place of each table's key in the columns that are read.
_KEY_PLACES = {"number": 0, "first": 2, "rowid": 0}


class CheckReport(msgspec.Struct, frozen=True):
    """The result of a check: ``problems`` is empty if all is well.

    ``repaired`` lists earlier losses and when the rest was saved: no problem any more. ``lost`` lists the problems that
    no repair can fix: they stay until a person acknowledges them. ``unknown`` lists intact rows of a kind that this zot
    does not know. ``damaged`` is true if contents differ from those written, which opening the file may not notice;
    ``unreadable`` if that is unknown, because the disk cannot be read now.
    """

    sessions: int
    rows: int
    problems: tuple[str, ...]
    repaired: tuple[str, ...] = ()
    damaged: bool = False
    lost: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unreadable: bool = False


class _Findings:
    def __init__(self) -> None:
        self.rows = 0
        self.problems: list[str] = []
        self.repaired: list[str] = []
        #: Rows missing at the end of sessions: no repair brings them back.
        self.lost: list[str] = []
        self.unknown: list[str] = []

    def missing(self, session: SessionRecord, what: str, *, repaired: str | None) -> None:
        if repaired is None:
            self.problems.append(f"session {session.id!r}: {what} missing")
        else:
            self.repaired.append(f"session {session.id!r}: {what} missing since the repair of {repaired}")


def check_file(path: str) -> CheckReport:
    """Check a journal read-only: a damaged one stays as it is. Raise StoreFailed."""
    lock = f"{path}.lock"
    return _checked(path, lock, read_marks(lock))  # Before the rows: writers mark rows after storing them.


def _checked(path: str, lock: str, marks: Sequence[int]) -> CheckReport:
    """Check a journal, or its copy, against ``marks``, which the lock file of the journal had before."""
    if not is_there(path):
        is_lost = any(marks[1:])
        return _all_lost("it is missing, although sessions were recorded in it") if is_lost else CheckReport(0, 0, ())
    try:
        connection = connect_read_only(path)
    except sqlite3.Error as problem:
        return CheckReport(0, 0, (f"the file: {problem}",), unreadable=not is_damage(problem))
    try:
        connection.execute("BEGIN")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if is_from_later_version(connection):
            return CheckReport(0, 0, (f"the file: a later zot wrote it (its version is {version}): update zot",))
        if version > len(STEPS):
            return CheckReport(0, 0, ("the file: its version is lost",))
        if not version and any(marks[1:]):
            return _all_lost("it is empty, although sessions were recorded in it")
        return (
            _with_missing_sessions(check_contents(connection, marks), connection, marks, lock)
            if version
            else CheckReport(0, 0, ())
        )
    except sqlite3.Error as problem:
        return CheckReport(0, 0, (f"the file: {problem}",), unreadable=not is_damage(problem))
    finally:
        connection.close()


def _all_lost(what: str) -> CheckReport:
    return CheckReport(0, 0, (f"the file: {what}",), lost=(f"the file: {what}",))


def _with_missing_sessions(
    report: CheckReport, connection: sqlite3.Connection, marks: Sequence[int], lock: str
) -> CheckReport:
    """Return ``report`` with the sessions of which only a mark is left, not even an id."""
    present = {number for (number,) in connection.execute("SELECT number FROM sessions")}
    # A session may have been deleted since its mark was read.
    marks = [min(pair) for pair in zip(marks, read_marks(lock), strict=False)]
    gone = tuple(
        f"session number {number}: all of it is missing, {last} rows"
        for number, last in enumerate(marks)
        if number and last and number not in present
    )
    return msgspec.structs.replace(report, problems=(*report.problems, *gone), lost=(*report.lost, *gone))


def back_up(path: str, target: str) -> CheckReport:
    """Copy a journal, even while sessions run, to a file that must not exist; return a report on the copy.

    The copy is one state of the journal, checked, synced, and readable by its owner only. It appears complete or not at
    all. Rows and sessions that the journal has lost for good do not prevent it: the report lists them. Raise UserError,
    StoreFailed.
    """
    if os.path.lexists(target):
        raise UserError(f"{target} exists, and a backup overwrites nothing: choose another name, or remove it")
    directory = os.path.dirname(os.path.abspath(target))
    try:
        descriptor, copy = mkstemp(prefix=f".{os.path.basename(target)}-", dir=directory)
    except OSError as problem:
        raise UserError(f"{directory}: no file can be made there ({problem.strerror}): choose another place") from None
    try:
        with open(descriptor, "rb") as file:
            report = _copied(path, copy, target)
            os.fsync(file.fileno())
        os.link(copy, target)
        _sync_directory(directory)
    except FileExistsError:
        raise UserError(f"{target} exists, and a backup overwrites nothing: choose another name") from None
    except OSError as problem:
        raise UserError(f"{target} cannot be written ({problem.strerror}): choose another place") from None
    finally:
        with suppress(OSError):
            os.unlink(copy)
    return report


def _copied(path: str, copy: str, target: str) -> CheckReport:
    lock = f"{path}.lock"
    marks = read_marks(lock)
    try:
        with closing(connect_read_only(path)) as connection:
            connection.execute("VACUUM INTO ?", (copy,))
    except sqlite3.Error as problem:
        # SQLite names damage in many ways, some of which sound like a problem of the disk.
        if is_damage(problem) or (found := check_file(path)).damaged:
            raise _not_copied(path, f"the file: {problem}" if is_damage(problem) else found.problems[0]) from problem
        if found.unreadable:
            reason = f"{path} cannot be read ({problem}): check its disk and its permissions, then back up again"
            raise StoreFailed(reason) from problem
        raise StoreFailed(f"{path} cannot be copied to {target} ({problem}): check the disk of the copy") from problem
    report = _checked(copy, lock, marks)
    if report.lost == report.problems and report.sessions:
        return report
    if report.lost:
        raise StoreFailed(f"{path} has lost all its sessions, so it was not copied; run: zot sessions check")
    if report.problems:
        raise _not_copied(path, report.problems[0])
    return report


def _not_copied(path: str, problem: str) -> JournalDamaged:
    return JournalDamaged(
        f"{path} is damaged ({problem}), so it was not copied: zot sessions check names all damage, the next session"
        " that is opened saves the readable part, then back up again"
    )


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_contents(connection: sqlite3.Connection, marks: Sequence[int] = ()) -> CheckReport:
    """Check every page, chunk and blob. ``marks`` has the newest row that each session ever stored."""
    found, unreadable = _Findings(), False
    sessions: list[SessionRecord] = []
    try:
        verdicts = [row[0] for row in connection.execute("PRAGMA integrity_check(20)")]
        found.problems += [f"the file: {verdict}" for verdict in verdicts if verdict != "ok"]
        dangling = connection.execute("PRAGMA foreign_key_check")
        found.problems += [f"the file: {row[0]} refers to nothing" for row in dangling]
        sessions += listed(connection)
        for session in sessions:
            last = _session(connection, session, found)
            if session.number < len(marks) and marks[session.number] > last:
                found.lost.append(f"session {session.id!r}: rows {last + 1} to {marks[session.number]} are missing")
        found.problems += _blobs(connection)
        found.problems += [f"the answers of host: {problem}" for problem in unreadable_answers(connection)]
    except (sqlite3.Error, JournalDamaged) as problem:
        # A disk error is no damage: the data may be readable later.
        unreadable = isinstance(problem, sqlite3.Error) and not is_damage(problem)
        found.problems.append(f"the file: {problem}")
    damaged = bool(found.problems) and not unreadable
    problems = (*found.problems, *found.lost)
    rest = (tuple(found.repaired), damaged, tuple(found.lost), tuple(found.unknown), unreadable)
    return CheckReport(len(sessions), found.rows, problems, *rest)


def _session(connection: sqlite3.Connection, session: SessionRecord, found: _Findings) -> int:
    """Check a session; return the number of its last readable row."""
    expected, known = 1, losses(connection, session.number)
    for (what, first, last), noticed in known.items():
        told = f"session {session.id!r}: rows {first} to {last} were lost, noticed at {noticed}"
        if what == TAIL:
            found.lost.append(told)
        elif what == ACKNOWLEDGED:
            found.repaired.append(f"{told}, and acknowledged")
    for row in connection.execute(f"SELECT {CHUNK} FROM chunks WHERE session = ? ORDER BY first", (session.number,)):
        try:
            chunk = verified(row)
        except JournalDamaged as problem:
            found.problems.append(f"session {session.id!r}: {problem}")
            continue
        try:
            rows = unpack(chunk)
        except StoreFailed as problem:
            found.unknown.append(f"session {session.id!r}: {problem}")
            rows = []
        if chunk.first > expected:
            repaired = known.get(("rows", expected, chunk.first - 1))
            found.missing(session, f"rows {expected} to {chunk.first - 1} are", repaired=repaired)
        elif chunk.first < expected:
            found.problems.append(f"session {session.id!r}: row {chunk.first} is there twice")
        expected = max(expected, chunk.first + chunk.count)
        found.rows += chunk.count
        for digest in {digest for row in rows for digest in referred(row)}:
            query = "SELECT 1 FROM uses JOIN blobs USING (hash) WHERE session = ? AND hash = ?"
            if connection.execute(query, (session.number, digest)).fetchone() is None:
                repaired = known.get(("files", chunk.first, chunk.first + chunk.count - 1))
                found.missing(session, f"an image or file near row {chunk.first} is", repaired=repaired)
    return expected - 1


def _blobs(connection: sqlite3.Connection) -> Iterator[str]:
    for digest, data in connection.execute("SELECT hash, data FROM blobs"):
        if hashlib.sha256(data).digest() != digest:
            yield f"the image or file {digest.hex()[:12]} is not what was stored"


class FoundRows(msgspec.Struct):
    """The valid contents found in a damaged file."""

    sessions: dict[int, SessionRecord] = {}
    chunks: dict[tuple[int, int, int], Chunk] = {}
    losses: dict[tuple[int, str, int, int], str] = {}
    blobs: dict[bytes, bytes] = {}
    #: When each closed session was closed.
    closed: dict[int, str] = {}

    def read(self, connection: sqlite3.Connection, marks: Sequence[int]) -> None:
        """Read all rows that SQLite can reach. ``marks`` has the newest row of each session, as far as known."""
        for row in _reachable(connection, f"SELECT {columns(connection)} FROM sessions WHERE number", len(marks)):
            with suppress(JournalDamaged):  # Its rows are kept without it.
                self.sessions[row[0]] = record_of(row)
        numbers = {*self.sessions, *(number for number, mark in enumerate(marks) if mark)}
        with suppress(sqlite3.Error):
            numbers.update(number for (number,) in connection.execute("SELECT DISTINCT session FROM chunks"))
        # A damaged page may hold anything.
        for number, kind in product(sorted(number for number in numbers if isinstance(number, int)), Kind):
            last = marks[number] if number < len(marks) else 0
            query = f"SELECT {CHUNK} FROM chunks WHERE session = {number:d} AND kind = {kind:d} AND first"
            for row in _reachable(connection, query, last):
                with suppress(JournalDamaged):  # The gap is reported once all rows are collected.
                    chunk = verified(row)
                    self.chunks[chunk.session, chunk.kind, chunk.first] = chunk
        for _, digest, data in _reachable(connection, "SELECT rowid, hash, data FROM blobs WHERE rowid", 0):
            if isinstance(data, bytes) and hashlib.sha256(data).digest() == digest:
                self.blobs[digest] = data
        with suppress(sqlite3.Error):
            for row in connection.execute("SELECT session, what, first, last, repaired FROM losses"):
                match row:
                    case int(session), str(what), int(first), int(last), str(repaired):
                        self.losses[session, what, first, last] = repaired
                    case _:
                        pass
        with suppress(sqlite3.Error):
            for row in connection.execute("SELECT session, since FROM closed"):
                match row:
                    case int(session), str(since):
                        self.closed[session] = since
                    case _:
                        pass


def _reachable(connection: sqlite3.Connection, query: str, last: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``query``, which ends with its key, as far as SQLite can reach them.

    A damaged page ends a scan. So the table is read from both ends, and the keys between are looked up one by one, up
    to ``last`` if the end cannot be read.
    """
    key = query.rpartition(" ")[2]
    place, low, high = _KEY_PLACES[key], 0, last + 1
    try:
        for row in connection.execute(f"{query} > 0 ORDER BY {key}"):
            low = row[place] if isinstance(row[place], int) else low
            yield row
    except (sqlite3.Error, OverflowError):
        pass
    else:
        return
    with suppress(sqlite3.Error, OverflowError):
        for row in connection.execute(f"{query} > ? ORDER BY {key} DESC", (low,)):
            high = row[place] if isinstance(row[place], int) else high
            yield row
    for between in range(low + 1, min(high, low + _MAX_LOOKUPS)):
        with suppress(sqlite3.Error, OverflowError):
            yield from connection.execute(f"{query} = ?", (between,))


def write_found(wreck: FoundRows, new: sqlite3.Connection, *, now: str) -> list[str]:
    """Write the rows found into a fresh file; return descriptions of the new losses."""
    lost: list[str] = []
    new.executemany("INSERT INTO blobs (hash, data) VALUES (?, ?)", wreck.blobs.items())
    for number in sorted({*wreck.sessions, *(session for session, _, _ in wreck.chunks)}):
        lost += _write_session(new, wreck, number, now)
    return lost


def _write_session(new: sqlite3.Connection, wreck: FoundRows, number: int, now: str) -> list[str]:
    session = wreck.sessions.get(number)
    lost = []
    if session is None:
        session = SessionRecord(number, f"recovered-{number}", "", "", "", "", None, 0)
        lost.append(f"session {session.id!r}: its id was lost")
    _put_session(new, session)
    if number in wreck.closed:
        new.execute("INSERT INTO closed (session, since) VALUES (?, ?)", (number, wreck.closed[number]))
    summary, losses = SessionSummary(), _Losses(wreck, number)
    expected = 1
    for chunk in sorted((c for c in wreck.chunks.values() if c.session == number), key=lambda chunk: chunk.first):
        if chunk.first < expected:  # If kept, every later check would report it.
            lost.append(f"session {session.id!r}: row {chunk.first} was there twice; the old file has both")
            continue
        put(new, chunk)
        rows = _rows(chunk)
        summary.add(rows)
        own = {digest for row in rows for digest in referred(row)}
        add_uses(new, number, chunk.first, own)
        if chunk.first > expected:
            losses.add("rows", expected, chunk.first - 1)
        if gone := own - wreck.blobs.keys():
            losses.add("files", chunk.first, chunk.first + chunk.count - 1, gone)
        expected = chunk.first + chunk.count
    update_summaries(new, {number: summary}, session.updated)
    for place, repaired in losses.all.items():
        record_loss(new, number, place, repaired or now)
    for (of, what, first, last), noticed in wreck.losses.items():
        if of == number and what in (TAIL, ACKNOWLEDGED):
            record_loss(new, number, (what, first, last), noticed)
    return [*lost, *losses.told(session)]


class _Losses:
    """The losses of one session, with the time of the repair that recorded each; "" for new ones."""

    def __init__(self, wreck: FoundRows, number: int) -> None:
        self._wreck = wreck
        self._number = number
        self._files: set[bytes] = set()
        self.all: dict[tuple[str, int, int], str] = {}

    def add(self, what: str, first: int, last: int, files: Set[bytes] = frozenset()) -> None:
        repaired = self.all[what, first, last] = self._wreck.losses.get((self._number, what, first, last), "")
        self._files |= files if not repaired else set()

    def told(self, session: SessionRecord) -> Iterator[str]:
        holes = [place for place, repaired in self.all.items() if place[0] == "rows" and not repaired]
        if holes:
            places = (str(first) if first == last else f"{first}-{last}" for _, first, last in holes)
            yield f"session {session.id!r}: rows were lost: {', '.join(places)}"
        if self._files:
            yield f"session {session.id!r}: {len(self._files)} of its images and files were lost"


def _rows(chunk: Chunk) -> list[Row]:
    """Return the rows of a chunk; none if another zot wrote rows unknown to us, which is no damage."""
    try:
        return unpack(chunk)
    except StoreFailed:
        return []


def _put_session(new: sqlite3.Connection, session: SessionRecord) -> None:
    query = (
        "INSERT INTO sessions (number, id, created, updated, cwd, title, parent, fork_seq, epoch) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    parent = None if session.parent is None else key_of(session.parent)
    values = (session.created, session.updated, key_of(session.cwd), session.title, parent, session.fork_seq)
    try:
        new.execute(query, (session.number, key_of(session.id), *values, session.epoch + 1))
    except sqlite3.IntegrityError:  # Ids are unique: one of the two is damaged.
        new.execute(query, (session.number, key_of(f"recovered-{session.number}"), *values, session.epoch + 1))


def was_misread(path: str, problem: StoreFailed, *, is_suspected: bool) -> bool:
    """True if the file is intact after all: SQLite also reports damage when a disk read fails once.

    Damage that we found ourselves, by a checksum or by the tables, needs no second look, unless an earlier user of the
    file suspected it.
    """
    cause = problem.__cause__
    if not (is_suspected or (isinstance(cause, sqlite3.Error) and is_damage(cause))):
        return False
    # Twice: an unreliable disk may fail again.
    reports = (check_file(path) for _ in range(2))
    if all(len(report.problems) > len(report.lost) for report in reports):
        return False
    log.warning("%s; its checksums are correct, so a read must have failed: check the disk", problem)
    return True


def salvage(path: str) -> list[str]:
    """Replace the file by its readable contents; return descriptions of the losses. The caller has it locked
    exclusively.

    Raise StoreFailed if that fails; then the file is unchanged.
    """
    fresh = f"{path}.new"
    try:
        _remove(fresh)
        lost = _refill(path, fresh)
        aside = _free_name(f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
        os.link(path, aside)
        os.rename(fresh, replacement(path))
        finish(path)
    except OSError as problem:
        raise StoreFailed(
            f"{path} is damaged, and the readable part cannot be saved: {plain_reason(problem)}"
        ) from problem
    except sqlite3.Error as problem:
        raise StoreFailed(f"{path} is damaged; saving the readable part: {explained(problem, fresh)}") from problem
    finally:
        _remove(fresh)
    return [f"{path} was damaged; what could be read is in a new file, the old one is {aside}", *lost]


def finish(path: str) -> None:
    """Move a ready replacement into the place of the damaged file. The caller has it locked exclusively.

    A process that dies here leaves the rest to the next one, which must not open the old file: its write-ahead file may
    have been moved already. Raise StoreFailed.
    """
    ready = replacement(path)
    if not is_there(ready):
        return
    try:
        for aside in glob(f"{escape(path)}.damaged-*"):
            if os.path.samefile(path, aside):
                with suppress(FileNotFoundError):  # SQLite would apply it to the new file.
                    if os.path.getsize(f"{path}-wal"):
                        os.rename(f"{path}-wal", f"{aside}-wal")
                    else:
                        os.unlink(f"{path}-wal")
        with suppress(FileNotFoundError):
            os.unlink(f"{path}-shm")
        os.replace(ready, path)
    except OSError as problem:
        raise StoreFailed(
            f"{path} is damaged, and the readable part cannot replace it: {plain_reason(problem)}"
        ) from problem


def _refill(path: str, fresh: str) -> list[str]:
    prepare(fresh)
    with closing(connect(fresh)) as new:
        migrate(new, fresh)
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        wreck = _wreck(path, fresh)
        new.execute("BEGIN")
        lost = write_found(wreck, new, now=timestamp())
        new.execute("COMMIT")
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return lost


def _wreck(path: str, fresh: str) -> FoundRows:
    """Return the readable rows of a damaged file. ``fresh`` is an empty journal."""
    copy, found = f"{path}.copy", FoundRows()
    try:
        _remove(copy)
        prepare(copy)  # Private. A copy, because SQLite applies the write-ahead file to the file it opens.
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(path + suffix, copy + suffix)
        if not _has_tables(copy):
            _replace_first_page(copy, fresh)
        with closing(_opened_damaged(copy)) as connection:
            found.read(connection, read_marks(f"{path}.lock"))
    finally:
        _remove(copy)
    return found


def _opened_damaged(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.execute("PRAGMA writable_schema = ON")  # Else SQLite refuses a file that was cut off.
    return connection


def _has_tables(path: str) -> bool:
    try:
        with closing(_opened_damaged(path)) as connection:
            for table in ("sessions", "chunks", "blobs"):
                connection.execute(f"SELECT 1 FROM {table} LIMIT 0")
    except sqlite3.Error:
        return False
    return True


def _replace_first_page(path: str, fresh: str) -> None:
    """Give a file the first page of a fresh journal: the header, and where the tables begin, which never changes."""
    with open(fresh, "rb") as file:
        page = bytearray(file.read(PAGE_BYTES))
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        page[28:32] = (size // PAGE_BYTES).to_bytes(4, "big")
        file.seek(0)
        file.write(page)


def _free_name(name: str) -> str:
    number, free = 1, name
    while os.path.exists(free):
        number += 1
        free = f"{name}-{number}"
    return free


def _remove(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(name)
