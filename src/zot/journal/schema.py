"""The SQLite schema: tables, migrations, opening a file, and the meaning of its errors."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from functools import cache
from typing import NoReturn

from zot.errors import JournalDamaged, StoreFailed
from zot.files import open_private
from zot.journal.connection import Connection

log = logging.getLogger("zot")

#: How long another process may lock the file before that is an error.
BUSY_S = 10.0
#: The poll interval where SQLite does not wait itself.
_RETRY_S = 0.01
PAGE_BYTES = 4096
#: With less free space than this, turns fail although small writes still succeed.
_ROOM_BYTES = 1 << 20
#: SQLite reports a disk without room for its shared-memory file as an I/O error.
_FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
#: Versions above this are damage.
_MAX_VERSION = 1000

#: Each step migrates a file from the version that is its index to the next. Written once, never edited. Each must
#: change the tables: that tells a file of a later zot from one whose version is damaged.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        # Numbers are never reused: locks and marks in the lock file refer to them.
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
        # Losses of repairs: missing rows, or images and files that rows refer to.
        """CREATE TABLE losses (
            session INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
            what TEXT NOT NULL,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            repaired TEXT NOT NULL,
            PRIMARY KEY (session, what, first)
        ) WITHOUT ROWID""",
    ),
    # The time of the journal's clock at the last boot (`answers.Clock`): one row.
    ("CREATE TABLE clock (boot TEXT NOT NULL PRIMARY KEY, started REAL NOT NULL) WITHOUT ROWID",),
    (
        # Sessions that a client of a daemon closed and none has resumed.
        """CREATE TABLE closed (
            session INTEGER NOT NULL PRIMARY KEY REFERENCES sessions (number) ON DELETE CASCADE,
            since TEXT NOT NULL
        ) WITHOUT ROWID""",
    ),
)


def prepare(path: str) -> None:
    """Create the file and its directories where missing, accessible to the owner only."""
    _make_directories(os.path.dirname(path))
    try:
        os.close(open_private(path, os.O_RDONLY))
    except OSError as problem:
        raise StoreFailed(f"the journal {path} cannot be opened: {problem.strerror}") from problem


def is_there(path: str) -> bool:
    """True if the file exists. Raise StoreFailed if that cannot be determined."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise StoreFailed(f"{path} cannot be inspected ({reason}): check its disk and its permissions") from problem
    return True


def connect(path: str) -> sqlite3.Connection:
    """Open the file for writing. Raise sqlite3.Error, JournalDamaged. SQLite closes its descriptors in children."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = _as_text
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        # Overwrite deleted data: a repair must not bring it back.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        # On a file system without shared memory the journal is slower, but correct.
        if (mode := _write_ahead(connection)) != "wal":
            log.warning("%s cannot have a write-ahead log (journal mode: %s): readers wait for writers", path, mode)
    except UnicodeDecodeError as problem:
        connection.close()
        raise JournalDamaged(f"{path} is damaged: not even the error is text") from problem
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> str:
    """Enable write-ahead logging; return the journal mode. SQLite does not wait for processes that do so at the same
    time."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return str(mode)


def connect_read_only(path: str) -> sqlite3.Connection:
    """Open the file for reading, even on a full disk or without write access. Raise sqlite3.Error.

    SQLite shares its write-ahead file through a shared-memory file. Where that can be neither opened nor created, no
    process has the journal open, and only one connection can read it at a time.
    """
    place = f"file:{_escaped(os.path.abspath(path))}"
    try:
        return _opened_to_look(f"{place}?mode=ro")
    except sqlite3.Error as problem:
        match problem.sqlite_errorcode & 0xFF:
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_FULL:
                return _opened_to_look(f"{place}?mode=rw", alone=True)
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY if _has_content(f"{path}-wal"):
                # A file without write access cannot be locked exclusively.
                return _opened_to_look(f"{place}?mode=ro&vfs=unix-none", alone=True)
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY:
                return _opened_to_look(f"{place}?mode=ro&immutable=1")
            case _:
                raise


def connect_empty(path: str) -> sqlite3.Connection:
    """Return a journal without sessions, in memory: it stands in for one whose file is still empty."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.text_factory = _as_text
    migrate(connection, path)
    return connection


def is_empty(connection: Connection) -> bool:
    """True if the file has no tables: the disk had no room for them when it was made."""
    return not _version(connection) and not _tables(connection)


def _opened_to_look(place: str, *, alone: bool = False) -> sqlite3.Connection:
    """Open a file that is only read. ``alone`` locks out other processes and needs no shared memory."""
    connection = sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = _as_text
    try:
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    except UnicodeDecodeError:
        connection.close()
        damage = sqlite3.DatabaseError("its tables are damaged; not even the error is text")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damage from None
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _has_content(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def _as_text(data: bytes) -> str:
    # A damaged title must not make its session unreadable.
    return data.decode("utf-8", "replace")


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Migrate the file to our version. Raise StoreFailed if it is a later one, JournalDamaged if it is invalid."""
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
            if "already exists" in str(problem):  # SQLite has no error code for it.
                raise JournalDamaged(f"{path} is damaged: its version is lost") from problem
            raise
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    if _tables(connection) != _expected_tables():
        raise JournalDamaged(f"{path} is damaged: its tables are not those of a journal")


def rewrite(connection: Connection) -> None:
    """Write the version again, as a test that the file can be written."""
    connection.execute(f"PRAGMA user_version = {_version(connection)}")


def check_room(path: str) -> None:
    """Raise StoreFailed if the disk has no room for a turn: one page may still fit where its rows do not."""
    from tempfile import TemporaryFile  # Imported lazily: needed only when a disk may be full.

    try:
        with TemporaryFile(dir=os.path.dirname(os.path.abspath(path)), buffering=0) as scratch:
            if scratch.write(bytes(_ROOM_BYTES)) < _ROOM_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except PermissionError:
        return  # The directory takes no new files; the journal itself was tested before.
    except OSError as problem:
        reason = f"the disk has no room for another {_ROOM_BYTES >> 20} MiB beside {path}: {problem.strerror}"
        raise StoreFailed(f"{reason}; free some space, then resume") from problem


def is_damage(problem: sqlite3.Error) -> bool:
    """True if the error means that the file is damaged."""
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def explained(problem: sqlite3.Error, path: str) -> StoreFailed:
    """Return the error for the user: the problem, and the remedy."""
    if is_damage(problem):
        return JournalDamaged(f"{path} is damaged ({problem}): opening the session again saves the readable part")
    code = getattr(problem, "sqlite_errorcode", 0)
    match code & 0xFF:
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR if code in _FULL_CODES:
            return StoreFailed(
                f"the disk is full: nothing more can be recorded in {path}; free some space elsewhere"
                " (removing sessions needs some, too), then resume"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreFailed(f"{path} cannot be written ({problem}): check the disk and its limits, then resume")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreFailed(f"{path} cannot be written ({problem}): make it and its directory writable, then resume")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreFailed(f"another program has kept {path} locked for {BUSY_S:g} s: end it, then resume")
        case sqlite3.SQLITE_CONSTRAINT:
            return StoreFailed(
                f"the session is no longer in {path}, or another program wrote to it ({problem}): resume it"
            )
        case _:
            return StoreFailed(f"{path} cannot be used ({problem}): check its disk, then resume")


def _version(connection: Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def is_from_later_version(connection: Connection) -> bool:
    """True if a later zot has changed the tables; a flipped bit in the version is not enough."""
    return len(STEPS) < _version(connection) <= _MAX_VERSION and _tables(connection) != _expected_tables()


def _refuse(connection: sqlite3.Connection, version: int, path: str) -> NoReturn:
    if not is_from_later_version(connection):
        raise JournalDamaged(f"{path} is damaged: its version is lost")
    raise StoreFailed(
        f"{path} was written by a later zot (its version is {version}, this zot knows {len(STEPS)}): update zot"
    )


def _tables(connection: Connection) -> list[tuple[str, str]]:
    return sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


@cache
def _expected_tables() -> list[tuple[str, str]]:
    """Return the expected result of `_tables`: SQLite keeps each statement as it was written."""
    made = [(statement.split()[2], statement) for step in STEPS for statement in step]
    return sorted([*made, ("sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)")])


def _make_directories(path: str) -> None:
    if not path or os.path.isdir(path):
        return
    _make_directories(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)
    except FileExistsError:  # Another process was faster, or it is no directory: opening the file will show.
        return
    except OSError as problem:
        raise StoreFailed(f"the directory {path} cannot be made: {problem.strerror}") from problem


def replacement(path: str) -> str:
    """Return the path of the file that replaces a damaged one. If it exists, a replacement was interrupted."""
    return f"{path}.salvaged"


def _escaped(path: str) -> str:
    """Return a path escaped for an SQLite URI. Importing urllib for it would take too long."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
