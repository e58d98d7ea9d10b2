"""`zot sessions`: list, show, search, move and remove recorded sessions."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from zot.commands.sessions_change import REWIND_FLAGS, delete, diff, export, fork, gc, import_, rename, rewind
from zot.commands.sessions_move import move
from zot.commands.sessions_read import backup, check, list_, search, show
from zot.commands.subcommands import JSON_FLAG, CommandGroup, CommandRequest, Subcommand, print_note
from zot.config import flags
from zot.config.config import STORE_FLAG, Config, journal_path, store_address
from zot.config.flags import Flag
from zot.config.paths import journal_in
from zot.errors import ConfigError, JournalDamaged, NoSuchSession, StoreFailed, UserError
from zot.journal.journal import can_be_written, open_read_only
from zot.journal.lease import read_marks
from zot.journal.opening import is_address, is_there, open_journal
from zot.journal.sessions import SessionJournal, SessionReader

Action: TypeAlias = Callable[[SessionJournal, CommandRequest], Awaitable[int]]
ReadAction: TypeAlias = Callable[[SessionReader, CommandRequest], Awaitable[int]]
FileAction: TypeAlias = Callable[[str, CommandRequest], Awaitable[int]]
Handler: TypeAlias = Callable[[CommandRequest], int]
#: What a subcommand does if nothing was ever recorded: fail, say so, or run all the same.
Lacking: TypeAlias = Literal["error", "note", "run"]

_CONFIG_DIR = Flag("--config-dir", "Use the sessions of the daemon with this directory.", value="DIR")
_YES = Flag("--yes", "Do not ask for confirmation.", short="-y")
_AS = Flag("--as", "Give the new session this id.", value="ID")

_CENTURY_S = 100 * 365 * 86400
_MANY = 1 << 30


def _days(text: str) -> float:
    """Parse a duration such as 30d, 2w or 12h into seconds."""
    seconds = {"h": 3600, "d": 86400, "w": 7 * 86400}.get(text[-1:])
    if seconds is None or not text[:-1].isascii() or not text[:-1].isdigit():
        raise ValueError("must be a number of hours, days or weeks, such as 12h, 30d or 4w")
    if (time := float(text[:-1]) * seconds) > _CENTURY_S:
        raise ValueError("must be a century at most")
    return time


def _changes(action: Action, *, lacking: Lacking = "error") -> Handler:
    """Return the handler that runs ``action`` on the journal, opened for writing."""

    async def act(path: str, request: CommandRequest) -> int:
        journal = await open_journal(path)
        try:
            return await action(journal, request)
        finally:
            await journal.close()

    return _on_file(act, lacking=lacking)


def _reads(action: ReadAction, *, lacking: Lacking = "error") -> Handler:
    """Return the handler that runs ``action`` on the journal, opened read-only if it cannot be written."""

    async def act(path: str, request: CommandRequest) -> int:
        can_write = is_address(path) or await asyncio.to_thread(can_be_written, path)
        journal: SessionReader
        try:
            journal = await open_journal(path) if can_write else await open_read_only(path)
        except StoreFailed as problem:  # As on a full disk.
            if not can_write or is_address(path) or isinstance(problem, JournalDamaged):
                raise
            journal = await open_read_only(path)
        try:
            return await action(journal, request)
        finally:
            await journal.close()

    return _on_file(act, lacking=lacking)


def _on_file(action: FileAction, *, lacking: Lacking) -> Handler:
    """Return the handler that runs ``action`` on the journal's file, unopened: opening a damaged one repairs it.

    ``lacking`` says what to do if nothing was ever recorded.
    """

    async def act(request: CommandRequest) -> int:
        path = _journal(request)
        if lacking == "run" or await asyncio.to_thread(is_there, path):
            return await action(path, request)
        if any((await asyncio.to_thread(read_marks, f"{path}.lock"))[1:]):
            raise StoreFailed(f"{path} is missing, although sessions were recorded in it; run: zot sessions check")
        if lacking == "error":
            raise NoSuchSession(f"no session matches {request.words[0]!r}: none has been recorded yet")
        return _nothing_kept()

    def run(request: CommandRequest) -> int:
        # The journal rolls back unfinished changes, so there is nothing to wind down.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return asyncio.run(act(request))

    return run


async def _check(path: str, request: CommandRequest) -> int:
    """Check the journal, also one whose file is gone while the lock file still has marks of its sessions."""

    def is_known() -> bool:
        return is_there(path) or any(read_marks(f"{path}.lock"))

    return await check(path, request) if await asyncio.to_thread(is_known) else _nothing_kept()


def _needs_file(action: FileAction, instead: str) -> FileAction:
    """Return ``action`` for files; a database has programs of its own, such as ``instead``."""

    async def act(path: str, request: CommandRequest) -> int:
        if is_address(path):
            raise UserError(f"the sessions are in a database: use {instead}")
        return await action(path, request)

    return act


def _nothing_kept() -> int:
    print_note("no session has been recorded yet")
    return 0


def _journal(request: CommandRequest) -> str:
    """Return the path of the journal. Raise ConfigError."""
    directory: str | None = request.settings.get("config_dir")
    named: str | None = request.settings.get("journal")
    if directory is None or named is not None:
        return journal_path(Config(journal=named))
    if not os.path.isdir(directory):
        raise ConfigError(f"--config-dir {directory}: no such directory")
    return journal_in(directory)


GROUP = CommandGroup("zot sessions", "Manage recorded sessions.", (
    Subcommand("list", "", "List the sessions of this directory, newest first.", _reads(list_, lacking="note"), flags=(
        Flag("--all", "List the sessions of all directories."),
        Flag("--cwd", "List the sessions of another directory.", value="DIR"),
    )),
    Subcommand("show", "ID", "Print the conversation as text.", _reads(show), (1, 1), (
        Flag("--full", "Include the model's thinking and the whole results of tools."),
    )),
    Subcommand("search", "TEXT", "Find text in all sessions.", _reads(search, lacking="note"), (1, _MANY), (
        Flag("--limit", "Print at most this many places (default: 50).", value="N", parse=flags.positive),
    )),
    Subcommand("export", "ID", "Export a session, as JSON lines or HTML.", _reads(export), (1, 1), (
        Flag("--output", "Write to this new file instead of standard output.", value="FILE", short="-o"),
        Flag("--html", "Export one self-contained HTML page. Needs the extra `html`."),
    )),
    Subcommand("import", "FILE", "Import an exported session; - reads standard input.",
               _changes(import_, lacking="run"), (1, 1), (
        _AS,
        Flag("--cwd", "Run its tools in this directory from now on.", value="DIR"),
    )),
    Subcommand("move", "ID...", "Move sessions to another store, with the same rows.", _changes(move), (1, _MANY), (
        Flag("--to", "Move them to this PostgreSQL database, or this file.", value="URL",
             parse=store_address),
        Flag("--copy", "Keep them here, too."),
    )),
    Subcommand("fork", "ID", "Copy a session, whole or up to a point.", _changes(fork), (1, 1), (
        Flag("--messages", "Copy only the first N messages.", value="N", parse=flags.positive),
        Flag("--at", "Copy only the rows up to this number.", value="SEQ", parse=flags.positive),
        _AS,
    )),
    Subcommand("rewind", "ID", "Return to an earlier point, with the files that tools have changed since.",
               _changes(rewind), (1, 1), REWIND_FLAGS),
    Subcommand("diff", "ID ID", "Show how two sessions differ since they parted.", _changes(diff), (2, 2)),
    Subcommand("rename", "ID TITLE", "Give a session another title.", _changes(rename), (2, _MANY)),
    Subcommand("delete", "ID...", "Delete sessions.", _changes(delete), (1, _MANY), (_YES,)),
    Subcommand("gc", "", "Delete unused images and free space.", _changes(gc, lacking="note"), flags=(
        Flag("--older-than", "Also delete sessions that were not used for this long: 30d, 4w.", value="TIME",
             parse=_days),
        _YES,
    )),
    Subcommand("check", "", "Check the journal for damage and losses. Changes nothing.",
               _on_file(_needs_file(_check, "pg_amcheck"), lacking="run"), flags=(
        Flag("--acknowledge", "Acknowledge the reported losses, so that they are not reported again."),
    )),
    Subcommand("backup", "FILE", "Copy all sessions to a new file, even while they run.",
               _on_file(_needs_file(backup, "pg_dump"), lacking="note"), (1, 1)),
), flags=(_CONFIG_DIR, STORE_FLAG, JSON_FLAG), note="The beginning of an ID is enough if it is unique.", examples=(
    ("zot sessions list --all", "List every session."),
    ("zot sessions export ID --html -o talk.html", "Save a conversation as a web page."),
    ("zot sessions backup sessions.db", "Make a consistent copy of all sessions."),
))  # fmt: skip
main = GROUP.main
