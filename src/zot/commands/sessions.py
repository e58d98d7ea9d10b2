"""`zot sessions`: list, show, search, move and remove recorded sessions."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from zot.commands.sessions_change import REWIND_FLAGS, delete, diff, export, fork, gc, import_, rename, rewind
from zot.commands.sessions_move import move
from zot.commands.subcommands import (
    JSON_FLAG,
    CommandGroup,
    CommandRequest,
    Subcommand,
    absolute_directory,
    aligned,
    find_session,
    print_note,
    write,
    write_json,
)
from zot.config import flags
from zot.config.config import STORE_FLAG, Config, journal_path, store_address
from zot.config.flags import Flag
from zot.config.paths import journal_in
from zot.errors import ConfigError, JournalDamaged, NoSuchSession, StoreFailed, UsageError, UserError
from zot.events import Error, ExtNotify, TurnEnd
from zot.journal.journal import Journal, can_be_written, open_read_only
from zot.journal.lease import mark_damaged, read_marks
from zot.journal.opening import is_address, is_there, open_journal
from zot.journal.queries import SessionRecord, rows_after
from zot.journal.recorded_sessions import SessionJournal, SessionReader
from zot.journal.repair import CheckReport, back_up, check_file
from zot.messages import Message, ThinkingBlock
from zot.messages import show as shown
from zot.run_summary import CUT_SHORT
from zot.store import MessagesReplaced, Row, SettingsChanged, messages_of
from zot.ui.readable import counted, escaped_id, format_time, message_lines, one_line, tool_names

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
            raise NoSuchSession(f"no session matches {request.words[0]!r}: none has been recorded in {path} yet")
        return _nothing_kept(path)

    def run(request: CommandRequest) -> int:
        # The journal rolls back unfinished changes, so there is nothing to wind down.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return asyncio.run(act(request))

    return run


async def _check(path: str, request: CommandRequest) -> int:
    """Check the journal, also one whose file is gone while the lock file still has marks of its sessions."""

    def is_known() -> bool:
        return is_there(path) or any(read_marks(f"{path}.lock"))

    return await check(path, request) if await asyncio.to_thread(is_known) else _nothing_kept(path)


def _needs_file(action: FileAction, instead: str) -> FileAction:
    """Return ``action`` for files; a database has programs of its own, such as ``instead``."""

    async def act(path: str, request: CommandRequest) -> int:
        if is_address(path):
            raise UserError(f"the sessions are in a database: use {instead}")
        return await action(path, request)

    return act


def _nothing_kept(path: str) -> int:
    print_note(f"no session has been recorded in {path} yet")
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


#: Rows read at a time: a session may be larger than memory.
_PAGE = 1024
_LIMIT = 50


async def list_(journal: SessionReader, request: CommandRequest) -> int:
    """List the sessions."""
    everywhere = bool(request.settings.get("all"))
    if everywhere and "cwd" in request.settings:
        raise UsageError("--all and --cwd exclude each other")
    cwd = None if everywhere else absolute_directory(request.settings.get("cwd"))
    sessions = await journal.sessions(cwd=cwd)
    if request.json:
        for session in sessions:
            write_json(session_fields(journal, session))
        return 0
    if sessions:
        write(aligned(_listed(journal, sessions, everywhere=everywhere)))
    if cwd is not None and (others := len(await journal.sessions()) - len(sessions)):
        nothing = "" if sessions else f"no sessions of {one_line(cwd)}; "
        print_note(f"{nothing}{others} of other directories: --all shows them")
    elif not sessions:
        print_note("there are no sessions")
    return 0


def session_fields(journal: SessionReader, session: SessionRecord) -> dict[str, Any]:
    """Return a session's fields for programs."""
    running = journal.is_running(session)
    return {
        "id": session.id,
        "title": session.title,
        "cwd": session.cwd,
        "created": session.created,
        "updated": session.updated,
        "messages": session.messages,
        "usage": session.totals,
        "parent": session.parent,
        "fork_seq": session.fork_seq,
        "running": running,
        "pid": session.owner.pid if running and session.owner is not None else None,
    }


def _listed(journal: SessionReader, sessions: list[SessionRecord], *, everywhere: bool) -> Iterator[list[str]]:
    counts = [str(session.messages) for session in sessions]
    width = max(map(len, ["messages", *counts]))
    yield ["id", "used (UTC)", "messages".rjust(width), *(["directory"] if everywhere else []), "title"]
    for session, count in zip(sessions, counts, strict=True):
        title = one_line(session.title) or "(no messages)"
        mark = "(running) " if journal.is_running(session) else ""
        where = [one_line(session.cwd) or "-"] if everywhere else []
        yield [
            escaped_id(session.id, 60),
            format_time(session.updated)[:16],
            count.rjust(width),
            *where,
            f"{mark}{title}",
        ]


async def show(journal: SessionReader, request: CommandRequest) -> int:
    """Show all messages of a session, including those compacted or cleared since."""
    session = await find_session(journal, request.words[0])
    full = bool(request.settings.get("full"))
    if request.json:
        write_json({"type": "session", **session_fields(journal, session)})
        async for seq, row in _rows(journal, session):
            for line in _row_for_programs(seq, row, full=full):
                write_json(line)
        return 0
    write("".join(f"{line}\n" for line in _header(journal, session)))
    names: dict[str, str] = {}
    async for _, row in _rows(journal, session):
        for message in messages_of(row):
            names = tool_names(message) or names
        lines = [*_row_for_people(row, names, full=full)]
        if lines:
            write("\n" + "".join(f"{line}\n" for line in lines))
    return 0


async def _rows(journal: SessionReader, session: SessionRecord) -> AsyncIterator[tuple[int, Row]]:
    after = 0
    while page := await journal.reading(rows_after, session.number, after, _PAGE):
        for seq, row in page:
            yield seq, row
        after = page[-1][0]


def _header(journal: SessionReader, session: SessionRecord) -> Iterator[str]:
    yield f"session    {escaped_id(session.id)}"
    yield f"title      {one_line(session.title) or '(no messages)'}"
    yield f"directory  {one_line(session.cwd) or '-'}"
    yield f"begun      {format_time(session.created)} UTC"
    yield f"used       {format_time(session.updated)} UTC{', and running' if journal.is_running(session) else ''}"
    if session.parent is not None:
        yield f"forked     from {one_line(session.parent)}, after row {session.fork_seq}"
    totals = session.totals
    price = f"${totals.cost_usd:.4f}" if totals.price_known else "price unknown"
    yield f"tokens     {totals.input + totals.cache_read + totals.cache_write} in, {totals.output} out, {price}"


def _row_for_people(row: Row, names: dict[str, str], *, full: bool) -> Iterator[str]:
    match row:
        case MessagesReplaced(start=start, stop=stop, messages=messages):
            yield f"-- {_replaced(start, stop, len(messages))}"
        case SettingsChanged(provider=provider, model=model, cwd=cwd) if full:
            yield f"-- from here on with {one_line(provider)} {one_line(model)} in {one_line(cwd) or '-'}"
        case Error(message=reason):
            yield f"-- failed: {one_line(reason)}"
        case ExtNotify(extension=extension, message=reason):
            yield f"-- held back by {one_line(extension)}: {one_line(reason)}"
        case TurnEnd(stop="aborted"):
            yield "-- aborted"
        case TurnEnd(stop="length"):
            yield f"-- {CUT_SHORT}"
        case _:
            pass
    for number, message in enumerate(messages_of(row)):
        yield from ([""] if number else [])
        yield from message_lines(message, names, full=full)


def _replaced(start: int, stop: int, count: int) -> str:
    if stop == start:
        return f"added before message {start + 1}: {count}" if count else "nothing changed"
    what = f"messages {start + 1} to {stop} were" if stop - start > 1 else f"message {stop} was"
    return f"{what} replaced by these {count}" if count else f"{what} cleared"


def _row_for_programs(seq: int, row: Row, *, full: bool) -> Iterator[dict[str, Any]]:
    """Yield a row's fields for programs."""
    match row:
        case MessagesReplaced(start=start, stop=stop):
            yield {"type": "replaced", "seq": seq, "start": start, "stop": stop}
        case SettingsChanged(provider=provider, model=model, cwd=cwd) if full:
            yield {"type": "configured", "seq": seq, "provider": provider, "model": model, "cwd": cwd}
        case Error(message=reason):
            yield {"type": "error", "seq": seq, "message": reason}
        case ExtNotify(extension=extension, message=reason):
            yield {"type": "ext_notify", "seq": seq, "extension": extension, "message": reason}
        case TurnEnd(stop="aborted" | "length" as stop_reason):
            yield {"type": "turn_end", "seq": seq, "stop": stop_reason}
        case _:
            pass
    for message in messages_of(row):
        content = _full_content(message) if full else shown(message).content
        yield {"type": "message", "seq": seq, "role": message.role, "content": content, "time": message.time}


def _full_content(message: Message) -> list[Any]:
    """Return a message's content with thinking and its original text."""
    found: list[Any] = []
    for block in message.content:
        one = msgspec.structs.replace(message, content=(block,), shown_text=None)
        found += [block] if isinstance(block, ThinkingBlock) else shown(one).content
    return found


async def search(journal: SessionReader, request: CommandRequest) -> int:
    """Show the messages that contain a text."""
    limit = request.settings.get("limit", _LIMIT)
    hits = await journal.search(" ".join(request.words), limit=limit)
    if request.json:
        for hit in hits:
            write_json(hit)
        return 0
    if hits:
        rows = ([one_line(hit.session, 60), f"row {hit.seq}", hit.role, one_line(hit.excerpt)] for hit in hits)
        write(aligned(rows))
    if len(hits) == limit:
        print_note(f"these are the first {limit}; to see more, raise --limit")
    elif not hits:
        print_note("nowhere")
    return 0


async def check(path: str, request: CommandRequest) -> int:
    """Report the journal's problems."""
    report = await asyncio.to_thread(check_file, path)
    if request.settings.get("acknowledge") and report.lost:
        if report.damaged:
            raise UserError(f"{path} is damaged, too; open a session first, which saves the readable part")
        await _acknowledge(path)
        print_note(f"{counted(len(report.lost), 'problem')} acknowledged")
        report = await asyncio.to_thread(check_file, path)
    if request.json:
        write_json(report)
    else:
        for problem in (*report.problems, *report.repaired, *report.unknown):
            write(f"{one_line(problem)}\n")
        found = f"{counted(report.sessions, 'session')}, {counted(report.rows, 'row')}"
        verdict = "all that was saved" if report.repaired else "everything"
        write("" if report.problems else f"{found}: {verdict} is as it was written\n")
    if report.unknown:
        print_note("this zot does not know some kinds of rows: update it to read those sessions")
    if report.problems:
        print_note(f"{counted(len(report.problems), 'problem')} in {path}; {await _remedy(path, report)}")
    return 1 if report.problems else 0


async def _remedy(path: str, report: CheckReport) -> str:
    """Return the remedy for a journal's problems; mark a damaged one for recovery."""
    if report.lost and len(report.lost) == len(report.problems):
        return "restore a backup, or accept the loss with: zot sessions check --acknowledge"
    if report.unreadable:
        return "it cannot be read: check its disk and its permissions, then check again"
    remembered = report.damaged and await asyncio.to_thread(mark_damaged, path)
    opened = "the next session that is opened" if remembered else "opening the session"
    return f"{opened} saves the readable part"


async def _acknowledge(path: str) -> None:
    journal = await Journal.open(path)
    try:
        await journal.acknowledge()
    finally:
        await journal.close()


async def backup(path: str, request: CommandRequest) -> int:
    """Copy the journal to a new file, also while sessions run."""
    (target,) = request.words
    report = await asyncio.to_thread(back_up, path, target)
    if request.json:
        write_json({"file": target, "sessions": report.sessions, "rows": report.rows})
    else:
        found = f"{counted(report.sessions, 'session')}, {counted(report.rows, 'row')}"
        print_note(f"{found} are in {one_line(target)}")
    if report.lost:
        print_note(f"{path} lacks sessions that were recorded in it, and so does the backup; run: zot sessions check")
    return 0


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
), more_examples=(
    ("zot sessions show 2026-01-31 --full", "Print a conversation by the beginning of its id."),
    ("zot sessions search 'connection refused'", "Find where an error was discussed."),
    ("zot sessions export ID -o talk.jsonl", "Write a file that another machine can import."),
    ("zot sessions import talk.jsonl --cwd .", "Continue an exported session here."),
    ("zot sessions move ID --to postgresql://zot@db/sessions", "Move a session to a database."),
    ("zot sessions fork ID --messages 4 --as try", "Try another way from the fourth message on."),
    ("zot sessions rewind ID --messages 4 --dry-run", "Print which files would change back."),
    ("zot sessions diff ID OTHER", "Compare a session with its fork."),
    ("zot sessions rename ID Fix the build", "Change the title in lists."),
    ("zot sessions delete ID", "Delete a session, after a confirmation."),
    ("zot sessions gc --older-than 30d", "Delete sessions that were not used for a month."),
    ("zot sessions check", "Verify every row."),
))  # fmt: skip
main = GROUP.main
