"""`zot sessions list`, `show`, `search`, `check` and `backup`, which change no session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from zot.commands.subcommands import (
    CommandRequest,
    absolute_directory,
    aligned,
    find_session,
    print_note,
    write,
    write_json,
)
from zot.errors import UsageError, UserError
from zot.events import Error, ExtNotify, TurnEnd
from zot.journal.journal import Journal
from zot.journal.lease import mark_damaged
from zot.journal.queries import SessionRecord, rows_after
from zot.journal.repair import CheckReport, back_up, check_file
from zot.journal.sessions import SessionReader
from zot.messages import Message, ThinkingBlock
from zot.messages import show as shown
from zot.run_summary import CUT_SHORT
from zot.store import Configured, MessagesReplaced, Row, messages_of
from zot.ui.readable import counted, escaped_id, format_time, message_lines, one_line, tool_names

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
        case Configured(provider=provider, model=model, cwd=cwd) if full:
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
        case Configured(provider=provider, model=model, cwd=cwd) if full:
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
