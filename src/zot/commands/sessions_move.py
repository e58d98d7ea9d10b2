"""`zot sessions export` and `import`: a session as a file that can be read elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from zot.commands.subcommands import Request, chosen, directory, remark, write, write_bytes, write_json
from zot.errors import UserError
from zot.journal.journal import Journal
from zot.journal.look import Look
from zot.journal.portable import MAX_LINE_BYTES, Header, checked
from zot.journal.queries import SessionRecord, rows_after
from zot.journal.transfer import exported, imported
from zot.messages import timestamp
from zot.private import write_new
from zot.session.session import new_session_id
from zot.session.transcripts import endings, everything, recalled
from zot.store import Configured, Said, Spliced
from zot.ui.readable import one_line

_PIECE = 1 << 20
_ALL = 1 << 60
_MAX_PROBLEM = 400


async def export(journal: Look, request: Request) -> int:
    """Write a session, as it is at this moment; or a page for people to read it."""
    session = await chosen(journal, request.words[0])
    path = request.settings.get("output")
    lines = _page if request.settings.get("html") else _lines_of
    if path is None:
        await journal.reading(lambda connection: _write(lines(connection, session), write_bytes))
        return 0
    await journal.reading(lambda connection: write_new(path, lines(connection, session)))
    if request.json:
        write_json({"id": session.id, "file": path})
    else:
        remark(f"{one_line(session.id)} is in {one_line(path)}")
    return 0


def _lines_of(connection: sqlite3.Connection, session: SessionRecord) -> Iterator[bytes]:
    return exported(connection, session, home=_home())


def _page(connection: sqlite3.Connection, session: SessionRecord) -> Iterator[bytes]:
    """Yield a page with everything that was said, also what was compacted or cleared since."""
    from zot.ui.html import page

    rows = [row for _, row in rows_after(connection, session.number, 0, _ALL)]
    ended = endings(rows)
    said = [
        recalled(message, ended) for message in everything([row for row in rows if isinstance(row, Said | Spliced)])
    ]
    models = [row.model for row in rows if isinstance(row, Configured)]
    title = session.title or session.id
    yield page(title, said, model=models[-1] if models else "", usage=session.totals).encode("utf-8", "replace")


def _write(lines: Iterable[bytes], put: Callable[[bytes], object]) -> None:
    for line in lines:
        put(line)


async def import_(journal: Journal, request: Request) -> int:
    """Read a session that was exported, all of it or nothing."""
    path = request.words[0]
    try:
        with _opened(path) as file:
            # First without a lock on the journal, which others wait for; what is wrong turns up here.
            was = await asyncio.to_thread(_look, file, path)
            made = await journal.writing(lambda connection: _read(connection, file, path, request))
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror}") from None
    except UserError as problem:  # it may quote the file, which may have been written to be quoted
        raise UserError(one_line(str(problem), _MAX_PROBLEM)) from None
    if request.json:
        write_json({"id": made.id, "was": was.id, "messages": made.messages})
    else:
        write(f"{one_line(made.id)}\n")
        if made.id != was.id and "as" not in request.settings:
            remark(f"there is a session {was.id!r} already, so it has a new id")
    return 0


def _opened(path: str) -> BinaryIO:
    """Return a file that can be read twice: what can be read only once is copied to one."""
    source = os.dup(0) if path == "-" else path
    given = open(source, "rb")  # noqa: SIM115  (whoever called us closes it)
    if given.seekable():
        return given
    with given:
        file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(given, file)
        return file


def _look(file: BinaryIO, path: str) -> Header:
    """Read to the end and return the first line. Raise UserError for the first that is wrong."""
    header: Header | None = None
    for line in checked(_lines(file, path), path):
        header = line if isinstance(line, Header) else header
    assert header is not None
    return header


def _read(connection: sqlite3.Connection, file: BinaryIO, path: str, request: Request) -> SessionRecord:
    settings = request.settings
    return imported(
        connection,
        checked(_lines(file, path), path),
        wanted_id=settings.get("as"),
        spare_id=new_session_id,
        home=_home(),
        cwd=directory(settings["cwd"]) if "cwd" in settings else None,
        now=timestamp(),
    )


def _lines(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file, from its beginning, with their numbers. Raise UserError for one that is too long."""
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
