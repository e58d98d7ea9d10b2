"""Is everything there, and as it was written? And a copy of which that is certain."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import msgspec

from zot.errors import JournalDamaged, StoreFailed, UserError
from zot.journal.answers import unreadable_answers
from zot.journal.chunks import referred, unpack, verified
from zot.journal.lease import read_marks
from zot.journal.queries import ACKNOWLEDGED, CHUNK, TAIL, SessionRecord, listed, losses
from zot.journal.schema import STEPS, connect_to_look, explained, is_damage, is_of_later, is_there


class Report(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong with it, in words; nothing if all is well.

    ``repaired`` tells what was lost once, and when the rest of it was saved: nothing is wrong with that any more.
    ``lost`` has those of the problems that no repair can help: they stay until a person acknowledges them.
    ``unknown`` tells which rows are as they were written, but of a kind that this zot does not know.
    ``damaged`` is true if the contents are not what was written, which opening the file may not notice; ``unreadable``
    if nobody can tell, because the disk cannot be read now.
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
        #: What is missing at the end of sessions: no repair brings it back.
        self.lost: list[str] = []
        self.unknown: list[str] = []

    def missing(self, session: SessionRecord, what: str, *, repaired: str | None) -> None:
        if repaired is None:
            self.problems.append(f"session {session.id!r}: {what} missing")
        else:
            self.repaired.append(f"session {session.id!r}: {what} missing since the repair of {repaired}")


def look_at(path: str) -> Report:
    """Look at a journal without opening it for anything else: one that is damaged stays as it is.

    Raise StoreFailed.
    """
    marks = read_marks(f"{path}.lock")  # before the rows: whoever writes them marks them afterwards
    if not is_there(path):
        is_lost = any(marks[1:])
        return _nothing_left("it is missing, although sessions were kept in it") if is_lost else Report(0, 0, ())
    try:
        connection = connect_to_look(path)
    except sqlite3.Error as problem:
        return Report(0, 0, (f"the file: {problem}",), unreadable=not is_damage(problem))
    try:
        connection.execute("BEGIN")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if is_of_later(connection):
            return Report(0, 0, (f"the file: a later zot wrote it (its version is {version}): update zot",))
        if version > len(STEPS):
            return Report(0, 0, ("the file: its version is lost",))
        if not version and any(marks[1:]):
            return _nothing_left("it is empty, although sessions were kept in it")
        return _with_gone(inspect(connection, marks), connection, marks, path) if version else Report(0, 0, ())
    except sqlite3.Error as problem:
        return Report(0, 0, (f"the file: {problem}",), unreadable=not is_damage(problem))
    finally:
        connection.close()


def _nothing_left(what: str) -> Report:
    return Report(0, 0, (f"the file: {what}",), lost=(f"the file: {what}",))


def _with_gone(report: Report, connection: sqlite3.Connection, marks: Sequence[int], path: str) -> Report:
    """Return ``report`` with the sessions of which there is nothing but a mark: not even their names are left."""
    present = {number for (number,) in connection.execute("SELECT number FROM sessions")}
    # One may have been deleted since its mark was read.
    marks = [min(pair) for pair in zip(marks, read_marks(f"{path}.lock"), strict=False)]
    gone = tuple(
        f"session number {number}: all of it is missing, {last} rows"
        for number, last in enumerate(marks)
        if number and last and number not in present
    )
    return msgspec.structs.replace(report, problems=(*report.problems, *gone), lost=(*report.lost, *gone))


def back_up(path: str, target: str) -> Report:
    """Copy a journal, also while sessions run, to a file that must not exist; return what is in it.

    The copy is one state of the journal, checked, synced, and readable by its owner alone. It appears complete or not
    at all. Raise UserError, StoreFailed.
    """
    from tempfile import mkstemp

    if os.path.lexists(target):
        raise UserError(f"{target} exists, and a backup overwrites nothing: choose another name, or remove it")
    directory = os.path.dirname(os.path.abspath(target))
    try:
        descriptor, copy = mkstemp(prefix=f".{os.path.basename(target)}-", dir=directory)
    except OSError as problem:
        raise UserError(f"{directory}: no file can be made there ({problem.strerror}): choose another place") from None
    try:
        with open(descriptor, "rb") as file:
            report = _copied(path, copy)
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


def _copied(path: str, copy: str) -> Report:
    try:
        with closing(connect_to_look(path)) as connection:
            connection.execute("VACUUM INTO ?", (copy,))
    except sqlite3.Error as problem:
        if is_damage(problem):
            raise explained(problem, path) from problem
        raise StoreFailed(f"{path} cannot be copied to {copy} ({problem}): look at both disks") from problem
    report = look_at(copy)
    if report.problems:
        raise StoreFailed(f"{path} is not what was written ({report.problems[0]}): zot sessions check tells more")
    return report


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def inspect(connection: sqlite3.Connection, marks: Sequence[int] = ()) -> Report:
    """Look at every page, chunk and blob. ``marks`` say up to which row each session was once safe."""
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
        # An error of the disk is no damage: what cannot be read now may be there.
        unreadable = isinstance(problem, sqlite3.Error) and not is_damage(problem)
        found.problems.append(f"the file: {problem}")
    damaged = bool(found.problems) and not unreadable
    problems = (*found.problems, *found.lost)
    rest = (tuple(found.repaired), damaged, tuple(found.lost), tuple(found.unknown), unreadable)
    return Report(len(sessions), found.rows, problems, *rest)


def _session(connection: sqlite3.Connection, session: SessionRecord, found: _Findings) -> int:
    """Look at a session; return the number of its last row that can be read."""
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
