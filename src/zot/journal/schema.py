"""The SQLite schema: tables, migrations, opening a file, and what its errors mean."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from functools import cache
from typing import NoReturn

from zot.errors import JournalDamaged, StoreFailed

log = logging.getLogger("zot")

#: How long another process may keep the file locked before that is an error.
BUSY_S = 10.0
#: How soon we look again if SQLite does not wait for that.
_AGAIN_S = 0.01
PAGE_BYTES = 4096
#: With less room than this, turns fail although small writes still succeed.
_ROOM_BYTES = 1 << 20
#: No zot will ever write a version above this.
_PLAUSIBLE = 1000

#: Each step brings a file from the version that is its index to the next. Written once, never edited. Each of them must
#: change the tables: that is how a file of a later zot is told from one whose version is damaged.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        # Numbers are never used again: locks and marks in the lock file go by them.
        """CREATE TABLE sessions (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id BLOB NOT NULL UNIQUE,
            created TEXT NOT NULL,
            updated TEXT NOT NULL,
            cwd BLOB NOT NULL,
            title TEXT NOT NULL,
            parent BLOB,
            fork_seq INTEGER NOT NULL DEFAULT 0,
            messages INTEGER NOT NULL DEFAULT 0,
            totals BLOB NOT NULL DEFAULT x'',
            epoch INTEGER NOT NULL DEFAULT 1,
            owner BLOB NOT NULL DEFAULT x''
        )""",
        """CREATE TABLE chunks (
            session INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
            kind INTEGER NOT NULL,
            first INTEGER NOT NULL,
            count INTEGER NOT NULL,
            run INTEGER NOT NULL,
            crc INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (session, kind, first)
        ) WITHOUT ROWID""",
        "CREATE TABLE blobs (hash BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL)",
        """CREATE TABLE uses (
            session INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
            hash BLOB NOT NULL,
            seq INTEGER NOT NULL,
            PRIMARY KEY (session, hash)
        ) WITHOUT ROWID""",
        "CREATE INDEX uses_by_hash ON uses (hash)",
        "CREATE INDEX sessions_by_cwd ON sessions (cwd, updated)",
    ),
    (
        """CREATE TABLE answers (
            session INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
            key BLOB NOT NULL,
            request BLOB NOT NULL,
            first_run INTEGER NOT NULL,
            latest_run INTEGER NOT NULL,
            began REAL NOT NULL,
            answer BLOB,
            answered REAL,
            delivered REAL,
            PRIMARY KEY (session, key, request)
        ) WITHOUT ROWID""",
        "CREATE INDEX answers_by_time ON answers (began)",
    ),
    (
        # What a repair could not save: rows that are missing, or images and files (what) that rows refer to.
        """CREATE TABLE losses (
            session INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
            what TEXT NOT NULL,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            repaired TEXT NOT NULL,
            PRIMARY KEY (session, what, first)
        ) WITHOUT ROWID""",
    ),
    # What the clock of the journal showed when the machine started (`answers.Clock`): one row, of the newest start.
    ("CREATE TABLE clock (boot TEXT NOT NULL PRIMARY KEY, started REAL NOT NULL) WITHOUT ROWID",),
)


def prepare(path: str) -> None:
    """Make the file, and the directories to it, where they are missing: for their owner's eyes only."""
    _make_directories(os.path.dirname(path))
    try:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            descriptor = os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o600)
        else:
            os.fchmod(descriptor, 0o600)  # Whatever the umask says.
        os.close(descriptor)
    except OSError as problem:
        raise StoreFailed(f"the journal {path} cannot be opened: {problem.strerror}") from problem


def is_there(path: str) -> bool:
    """True if there is such a file. Raise StoreFailed if nobody can tell: it is not missing then."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise StoreFailed(f"{path} cannot be looked at ({reason}): look at its disk and its permissions") from problem
    return True


def connect(path: str) -> sqlite3.Connection:
    """Open the file as it is. Raise sqlite3.Error, JournalDamaged. SQLite closes its descriptors in children."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = _as_text
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        # What was deleted is gone from the file, too, and cannot come back when damage is repaired.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        # The journal of a machine that shares memory badly is slower, but no less true.
        if (mode := _write_ahead(connection)) != "wal":
            log.warning("%s is where SQLite cannot write ahead (its mode is %s): readers wait for writers", path, mode)
    except UnicodeDecodeError as problem:
        connection.close()
        raise JournalDamaged(f"{path} is damaged: not even the error is text") from problem
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> str:
    """Let a file be written ahead; return its mode. SQLite does not wait for others who begin with it just now."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)
        else:
            return str(mode)


def connect_to_look(path: str) -> sqlite3.Connection:
    """Open the file to read it, also where nothing can be written. Raise sqlite3.Error."""
    place = f"file:{_escaped(os.path.abspath(path))}?mode=ro"
    connection = _opened_to_look(place)
    try:
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    except sqlite3.Error as problem:
        connection.close()
        ahead, cannot_share = f"{path}-wal", (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        is_ahead = os.path.exists(ahead) and os.path.getsize(ahead) > 0
        if problem.sqlite_errorcode & 0xFF not in cannot_share or is_ahead:
            raise
        # Nobody has it open, and we cannot make what those share who have: then nobody changes it, either.
        return _opened_to_look(f"{place}&immutable=1")
    return connection


def _opened_to_look(place: str) -> sqlite3.Connection:
    connection = sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = _as_text
    return connection


def _as_text(data: bytes) -> str:
    # A damaged title must not keep its session from being read.
    return data.decode("utf-8", "replace")


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file to our version. Raise StoreFailed if it is of a later one, JournalDamaged if it is of none."""
    if (version := _version(connection)) > len(STEPS):
        _refuse(connection, version, path)
    if version < len(STEPS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection)
            for step in STEPS[version:]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(STEPS)}")
            connection.execute("COMMIT")
        except sqlite3.OperationalError as problem:
            if "already exists" in str(problem):  # SQLite has no code for it
                raise JournalDamaged(f"{path} is damaged: its version is lost") from problem
            raise
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    if _tables(connection) != _expected_tables():
        raise JournalDamaged(f"{path} is damaged: its tables are not those of a journal")


def rewrite(connection: sqlite3.Connection) -> None:
    """Write what stands there already: whoever can do that can write."""
    connection.execute(f"PRAGMA user_version = {_version(connection)}")


def check_room(path: str) -> None:
    """Raise StoreFailed if the disk has no room for a turn: one page may still fit where its rows do not."""
    from tempfile import TemporaryFile  # Imported lazily: start-up budget.

    try:
        with TemporaryFile(dir=os.path.dirname(os.path.abspath(path)), buffering=0) as scratch:
            if scratch.write(bytes(_ROOM_BYTES)) < _ROOM_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except PermissionError:
        return  # The directory takes no new files; whether this one can be written was tried.
    except OSError as problem:
        reason = f"the disk cannot take {_ROOM_BYTES >> 20} MiB more beside {path}: {problem.strerror}"
        raise StoreFailed(f"{reason}; free some space, then resume") from problem


def is_damage(problem: sqlite3.Error) -> bool:
    """True if the file is not what was written."""
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def explained(problem: sqlite3.Error, path: str) -> StoreFailed:
    """Return what the user may see: what happened, and what to do about it."""
    if is_damage(problem):
        return JournalDamaged(f"{path} is damaged ({problem}): opening the session again saves what is readable")
    match getattr(problem, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StoreFailed(
                f"the disk is full: nothing more can be recorded in {path}; free some space elsewhere, for removing"
                " sessions needs some, too; then resume"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreFailed(f"{path} cannot be written ({problem}): look at the disk and its limits, then resume")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreFailed(f"{path} cannot be written ({problem}): make it and its directory writable, then resume")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreFailed(f"another program has kept {path} locked for {BUSY_S:g} s: end it, then resume")
        case sqlite3.SQLITE_CONSTRAINT:
            return StoreFailed(
                f"the session is not in {path} any more, or somebody else wrote it ({problem}): resume it"
            )
        case _:
            return StoreFailed(f"{path} cannot be used ({problem}): look at its disk, then resume")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def is_of_later(connection: sqlite3.Connection) -> bool:
    """True if a later zot has changed the tables; one flipped bit of the version makes no later file."""
    return len(STEPS) < _version(connection) <= _PLAUSIBLE and _tables(connection) != _expected_tables()


def _refuse(connection: sqlite3.Connection, version: int, path: str) -> NoReturn:
    if not is_of_later(connection):
        raise JournalDamaged(f"{path} is damaged: its version is lost")
    raise StoreFailed(
        f"{path} was written by a later zot (its version is {version}, this zot knows {len(STEPS)}): update zot"
    )


def _tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


@cache
def _expected_tables() -> list[tuple[str, str]]:
    """Return what `_tables` finds in a file that the steps have made: SQLite keeps each statement as it was written."""
    made = [(statement.split()[2], statement) for step in STEPS for statement in step]
    return sorted([*made, ("sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)")])


def _make_directories(path: str) -> None:
    if not path or os.path.isdir(path):
        return
    _make_directories(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)
    except FileExistsError:  # somebody was faster, or it is no directory: opening the file will tell
        return
    except OSError as problem:
        raise StoreFailed(f"the directory {path} cannot be made: {problem.strerror}") from problem


def replacement(path: str) -> str:
    """Return where the file is that takes the place of a damaged one. If it is there, somebody died meanwhile."""
    return f"{path}.salvaged"


def _escaped(path: str) -> str:
    """Return a path as SQLite wants it in an address. (Loading what the standard library has for it takes too long.)"""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
