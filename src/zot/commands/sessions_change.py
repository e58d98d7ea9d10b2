"""`zot sessions rename`, `delete`, `fork`, `gc`, `export`, `import`, `rewind` and `diff`."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, BinaryIO

from zot.commands.subcommands import (
    CommandRequest,
    absolute_directory,
    aligned,
    confirm,
    find_session,
    print_note,
    write,
    write_bytes,
    write_json,
)
from zot.config.flags import Flag
from zot.encoding import encode
from zot.errors import SessionBusy, UsageError, UserError
from zot.files import write_new
from zot.journal.chunks import Kind
from zot.journal.connection import Connection
from zot.journal.portable import MAX_LINE_BYTES, ImportTarget, PortableHeader, checked, exported, imported
from zot.journal.queries import SessionRecord, last_seq, rows_after
from zot.journal.recorded_sessions import SessionJournal, SessionReader
from zot.journal.session_store import busy
from zot.messages import CallBlock, Message, ResultBlock, TextBlock, show, text_of, timestamp
from zot.session.history import History
from zot.session.recovery import WaitingRuns, recover
from zot.session.rewind import Branches, FilePair, RestoredFile, compare, plan_rewind, restored
from zot.session.rewind import rewind as go_back
from zot.session.session import new_session_id
from zot.session.transcripts import CONCLUSION, RewindTarget, all_messages, endings, fork_end, fork_point, past_message
from zot.store import NOT_KEPT, Change, MessageAdded, MessagesReplaced, SettingsChanged, Store
from zot.text import printable
from zot.tools.checkpoints import Restorer
from zot.tools.diff import unified
from zot.tools.file_access import LockedPaths, UnrestrictedPaths
from zot.ui.readable import counted, format_size, format_time, one_line

_ALL = 1 << 62

_PIECE = 1 << 20
_MAX_PROBLEM = 400

_MAX_SHOWN = 200


async def rename(journal: SessionJournal, request: CommandRequest) -> int:
    name, *words = request.words
    title = " ".join(words)
    if not title.strip():
        raise UsageError("a title must not be blank")
    session = await find_session(journal, name)
    await journal.rename(session.id, title)
    renamed = await journal.find(session.id)
    if request.json:
        write_json({"id": renamed.id, "title": renamed.title})
    else:
        write(f"{one_line(renamed.id)} is now called: {one_line(renamed.title)}\n")
    return 0


async def delete(journal: SessionJournal, request: CommandRequest) -> int:
    """Delete the named sessions, all or none."""
    named = [await find_session(journal, name) for name in request.words]
    return await _delete(journal, list({session.number: session for session in named}.values()), request)


async def _delete(journal: SessionJournal, sessions: list[SessionRecord], request: CommandRequest) -> int:
    for session in sessions:
        if journal.is_running(session):
            raise busy(session)
    rows = ([one_line(one.id, 60), format_time(one.updated)[:16], one_line(one.title)] for one in sessions)
    count = f"these {len(sessions)} sessions" if len(sessions) > 1 else "this session"
    if not confirm(f"{aligned(rows)}Delete {count} permanently?", request):
        print_note("nothing was deleted")
        return 1
    for session in sessions:
        await journal.delete(session.id)
        if request.json:
            write_json({"deleted": session.id})
        else:
            write(f"removed {one_line(session.id)}\n")
    return 0


async def fork(journal: SessionJournal, request: CommandRequest) -> int:
    """Fork a session."""
    if "messages" in request.settings and "at" in request.settings:
        raise UsageError("--messages and --at exclude each other")
    session = await find_session(journal, request.words[0])
    at = await _point(journal, session, request)
    made = await journal.fork(session.id, request.settings.get("as") or new_session_id(), at=at)
    if request.json:
        write_json({"id": made.id, "parent": made.parent, "fork_seq": made.fork_seq, "messages": made.messages})
    else:
        write(f"{one_line(made.id)}\n")
    return 0


async def _point(journal: SessionJournal, session: SessionRecord, request: CommandRequest) -> int:
    """Return the last row of the fork. Raise UserError if there are fewer messages."""
    number, at, count = session.number, request.settings.get("at"), request.settings.get("messages")
    if count is not None:
        rows = await journal.reading(rows_after, number, 0, _ALL, [Kind.CHANGES])
        at = fork_point([(seq, row) for seq, row in rows if isinstance(row, Change)], count)
    if at is None:
        return await journal.reading(last_seq, number)
    point = int(at)
    following = await journal.reading(rows_after, number, point, CONCLUSION)
    return fork_end(point, following)


async def gc(journal: SessionJournal, request: CommandRequest) -> int:
    """Delete unreferenced images and, if requested, old sessions; free the space."""
    running = [one for one in await journal.sessions() if journal.is_running(one)]
    if running:
        # Shrinking the file locks it for a long time, which would fail a run.
        raise SessionBusy(f"{busy(running[0])}; space can be freed only while no session runs")
    if "older_than" in request.settings:
        before = timestamp(time.time() - request.settings["older_than"])
        old = [one for one in await journal.sessions() if one.updated < before]
        if old and (code := await _delete(journal, old, request)):
            return code
    was = _size(journal.path)
    removed = await journal.collect()
    freed = max(0, was - _size(journal.path))
    if request.json:
        write_json({"images": removed, "freed_bytes": freed})
    else:
        write(f"deleted {counted(removed, 'unused image')}; freed {format_size(freed)}\n")
    return 0


def _size(path: str) -> int:
    """Return the size of a journal as far as known: for display only."""
    total = 0
    for file in (path, f"{path}-wal"):
        with suppress(OSError):
            total += os.stat(file).st_size
    return total


async def export(journal: SessionReader, request: CommandRequest) -> int:
    """Write a session's present content, as an export or as an HTML page."""
    session = await find_session(journal, request.words[0])
    path = request.settings.get("output")
    lines = _page if request.settings.get("html") else _lines_of
    if path is None:
        await journal.reading(lambda connection: _write(lines(connection, session), write_bytes))
        return 0
    await journal.reading(lambda connection: write_new(path, lines(connection, session)))
    if request.json:
        write_json({"id": session.id, "file": path})
    else:
        print_note(f"exported {one_line(session.id)} to {one_line(path)}")
    return 0


def _lines_of(connection: Connection, session: SessionRecord) -> Iterator[bytes]:
    return exported(connection, session, home=_home())


def _page(connection: Connection, session: SessionRecord) -> Iterator[bytes]:
    """Yield a page of all messages, including those compacted or cleared since."""
    from zot.ui.html import page  # Imported lazily: only `export --html` needs it.

    rows = [row for _, row in rows_after(connection, session.number, 0, _ALL)]
    ended = endings(rows)
    said = [
        past_message(message, ended)
        for message in all_messages([row for row in rows if isinstance(row, MessageAdded | MessagesReplaced)])
    ]
    models = [row.model for row in rows if isinstance(row, SettingsChanged)]
    title = session.title or session.id
    yield page(title, said, model=models[-1] if models else "", usage=session.totals).encode("utf-8", "replace")


def _write(lines: Iterable[bytes], put: Callable[[bytes], object]) -> None:
    for line in lines:
        put(line)


async def import_(journal: SessionJournal, request: CommandRequest) -> int:
    """Import an exported session, all of it or nothing."""
    path = request.words[0]
    try:
        with _opened(path) as file:
            # Check it first without locking the journal, which others wait for.
            was = await asyncio.to_thread(_look, file, path)
            made = await journal.writing(_read, file, path, request)
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror}") from None
    except UserError as problem:  # it may quote the file, whose text is untrusted
        raise UserError(one_line(str(problem), _MAX_PROBLEM)) from None
    if request.json:
        write_json({"id": made.id, "was": was.id, "messages": made.messages})
    else:
        write(f"{one_line(made.id)}\n")
        if made.id != was.id and "as" not in request.settings:
            print_note(f"session {was.id!r} exists already, so the imported one has a new id")
    return 0


def _opened(path: str) -> BinaryIO:
    """Return a file that can be read twice: a copy, if the input is a stream."""
    source = os.dup(0) if path == "-" else path
    given = open(source, "rb")  # noqa: SIM115  (the caller closes it)
    if given.seekable():
        return given
    with given:
        file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(given, file)
        return file


def _look(file: BinaryIO, path: str) -> PortableHeader:
    """Read to the end and return the header. Raise UserError for the first invalid line."""
    header: PortableHeader | None = None
    for line in checked(_lines(file, path), path):
        header = line if isinstance(line, PortableHeader) else header
    assert header is not None
    return header


def _read(connection: Connection, file: BinaryIO, path: str, request: CommandRequest) -> SessionRecord:
    settings = request.settings
    cwd = absolute_directory(settings["cwd"]) if "cwd" in settings else None
    target = ImportTarget(new_session_id(), _home(), wanted_id=settings.get("as"), cwd=cwd)
    return imported(connection, checked(_lines(file, path), path), target)


def _lines(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of a file, from its start. Raise UserError for one that is too long."""
    file.seek(0)
    number, pieces, size = 1, [b""], 0
    while data := file.read(_PIECE):
        for begins_line, piece in enumerate(data.split(b"\n")):
            if begins_line:
                yield number, b"".join(pieces)
                number, pieces, size = number + 1, [], 0
            pieces.append(piece)
            size += len(piece)
            if size > MAX_LINE_BYTES:
                raise UserError(f"{path}, line {number}: it has more than {MAX_LINE_BYTES >> 20} MiB")
    if size:
        yield number, b"".join(pieces)


def _home() -> str:
    home = os.path.expanduser("~")
    return "" if home == "~" else os.path.normpath(home)


def _count(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError("must be a whole number")
    return int(text)


REWIND_FLAGS = (
    Flag("--messages", "Keep the first N messages.", value="N", parse=_count),
    Flag("--at", "Return to the row with this number instead.", value="SEQ", parse=_count),
    Flag("--no-files", "Rewind only the conversation; keep files as they are."),
    Flag("--lock", "Restore only files inside the session's directory."),
    Flag("--dry-run", "Only print what would change."),
)


async def rewind(journal: SessionJournal, request: CommandRequest) -> int:
    """Rewind a session to an earlier point. Raise UserError, RewindRefused, StoreFailed."""
    settings = request.settings
    if ("messages" in settings) == ("at" in settings):
        raise UsageError("zot sessions rewind needs either --messages or --at")
    wish = RewindTarget(settings.get("messages"), settings.get("at"), not settings.get("no_files"))
    session = await find_session(journal, request.words[0])
    files = Restorer(LockedPaths(session.cwd) if settings.get("lock") else UnrestrictedPaths())
    if settings.get("dry_run"):
        record = await journal.record(session.id, create=False)
        plan = await plan_rewind(record, files, wish, cwd=session.cwd)
        _print_rewind(request, len(plan.messages), restored(plan), plan.at, done=False)
        return 0
    async with _exclusive(journal, session.id) as history:
        rewound = await go_back(history, files, wish, cwd=session.cwd)
    _print_rewind(request, rewound.messages, rewound.files, rewound.undo, done=True)
    return 0


@asynccontextmanager
async def _exclusive(journal: SessionJournal, session_id: str) -> AsyncIterator[History]:
    """Acquire a session's lease and load its history, recovering an interrupted run first."""
    record, past = await journal.resume(session_id, create=False)
    history = History(record)
    history.apply_stored(past.changes)
    acquired = await record.begin()
    try:
        await recover(history, acquired.rows, WaitingRuns.END, now=timestamp, time_s=time.time())
        yield history
    finally:
        record.end()


def _print_rewind(
    request: CommandRequest, messages: int, files: Sequence[RestoredFile], row: int, *, done: bool
) -> None:
    if request.json:
        _write_json({"messages": messages, "files": files, "undo" if done else "at": row})
        return
    for file in files:
        write(f"{file.change if done else f'to be {file.change}'}  {printable(file.path)}\n")
    write(f"{counted(messages, 'message')}{'; --at ' + str(row) + ' undoes this' if done else ' would be left'}\n")


async def diff(journal: SessionJournal, request: CommandRequest) -> int:
    """Compare two sessions: the messages and file changes of each since they diverged."""
    one, other = [await journal.record((await find_session(journal, name)).id, create=False) for name in request.words]
    branches = compare(await one.changes(), await other.changes())
    files = [(pair, "".join(await _file_rows(one, pair))) for pair in branches.files]
    if request.json:
        _write_json(_comparison(one.id, other.id, branches, files))
        return 0
    write(f"{counted(branches.shared, 'message')} in common\n--- {printable(one.id)}\n+++ {printable(other.id)}\n")
    for sign, messages in (("-", branches.one), ("+", branches.other)):
        write("".join(f"{sign}{printable(_summary_line(message))}\n" for message in messages))
    for _, rows in files:
        for row in rows.removesuffix("\n").split("\n"):
            write("\t".join(map(printable, row.split("\t"))) + "\n")
    return 0


async def _file_rows(store: Store, pair: FilePair) -> list[str]:
    contents: list[bytes | None] = []
    for digest in (pair.one, pair.other):
        content = None if digest is None or digest == NOT_KEPT else await store.content(digest)
        if content is None and digest is not None:
            return [f"Files a/{pair.path} and b/{pair.path} may differ: the content was not kept\n"]
        contents.append(content)
    return list(unified(contents[0], contents[1], pair.path))


def _comparison(one: str, other: str, branches: Branches, files: Sequence[tuple[FilePair, str]]) -> dict[str, Any]:
    return {
        "sessions": [one, other],
        "seq": branches.seq,
        "shared": branches.shared,
        "messages": [[show(message) for message in messages] for messages in (branches.one, branches.other)],
        "files": [{"path": pair.path, "sha256": [pair.one, pair.other], "diff": rows} for pair, rows in files],
    }


def _summary_line(message: Message) -> str:
    parts = [text_of(message.content)]
    for block in message.content:
        match block:
            case CallBlock(name=name, args=args):
                parts.append(f"-> {name} {encode(args).decode()}")
            case ResultBlock(content=content):
                parts += [f"<- {inner.text}" for inner in content if isinstance(inner, TextBlock)]
            case _:
                pass
    line = " ".join(" ".join(parts).split())
    return f"{message.role}: {line if len(line) <= _MAX_SHOWN else f'{line[:_MAX_SHOWN]}…'}"


def _write_json(value: object) -> None:
    sys.stdout.buffer.write(encode(value) + b"\n")
