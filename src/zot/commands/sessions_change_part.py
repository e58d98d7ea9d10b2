"""`zot sessions rename`, `delete`, `fork` and `gc`."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from zot.commands.subcommands import Request, aligned, chosen, confirmed, remark, write, write_json
from zot.errors import SessionBusy, UsageError
from zot.journal.chunks import Kind
from zot.journal.journal import Journal
from zot.journal.queries import SessionRecord, last_seq, rows_after
from zot.journal.record import busy
from zot.messages import timestamp
from zot.session.session import new_session_id
from zot.session.transcripts import CONCLUSION, concluded, fork_point
from zot.store import Change
from zot.ui.readable import counted, one_line, size, when

_ALL = 1 << 62


async def rename(journal: Journal, request: Request) -> int:
    """Give a session another title."""
    name, *words = request.words
    title = " ".join(words)
    if not title.strip():
        raise UsageError("a title must not be blank")
    session = await chosen(journal, name)
    await journal.rename(session.id, title)
    renamed = await journal.find(session.id)
    if request.json:
        write_json({"id": renamed.id, "title": renamed.title})
    else:
        write(f"{one_line(renamed.id)} is now called: {one_line(renamed.title)}\n")
    return 0


async def delete(journal: Journal, request: Request) -> int:
    """Remove sessions for good, all or none of those that were named."""
    named = [await chosen(journal, name) for name in request.words]
    return await _delete(journal, list({session.number: session for session in named}.values()), request)


async def _delete(journal: Journal, sessions: list[SessionRecord], request: Request) -> int:
    for session in sessions:
        if journal.is_running(session):
            raise busy(session)
    rows = ([one_line(one.id, 60), when(one.updated)[:16], one_line(one.title)] for one in sessions)
    count = f"these {len(sessions)} sessions" if len(sessions) > 1 else "this session"
    if not confirmed(f"{aligned(rows)}Remove {count} for good?", request):
        remark("nothing was removed")
        return 1
    for session in sessions:
        await journal.delete(session.id)
        if request.json:
            write_json({"deleted": session.id})
        else:
            write(f"removed {one_line(session.id)}\n")
    return 0


async def fork(journal: Journal, request: Request) -> int:
    """Make another session that begins as this one does."""
    if "messages" in request.settings and "at" in request.settings:
        raise UsageError("--messages and --at exclude each other")
    session = await chosen(journal, request.words[0])
    at = await _point(journal, session, request)
    made = await journal.fork(session.id, request.settings.get("as") or new_session_id(), at=at)
    if request.json:
        write_json({"id": made.id, "parent": made.parent, "fork_seq": made.fork_seq, "messages": made.messages})
    else:
        write(f"{one_line(made.id)}\n")
    return 0


async def _point(journal: Journal, session: SessionRecord, request: Request) -> int:
    """Return the row that the fork goes up to. Raise UserError if it never had so many messages."""
    number, at, count = session.number, request.settings.get("at"), request.settings.get("messages")
    if count is not None:
        rows = await journal.reading(lambda connection: rows_after(connection, number, 0, _ALL, [Kind.CHANGES]))
        at = fork_point([(seq, row) for seq, row in rows if isinstance(row, Change)], count)
    if at is None:
        return await journal.reading(lambda connection: last_seq(connection, number))
    point = int(at)
    following = await journal.reading(lambda connection: rows_after(connection, number, point, CONCLUSION))
    return concluded(point, following)


async def gc(journal: Journal, request: Request) -> int:
    """Remove what nobody shows, and sessions that nobody used for long; give the space back."""
    running = [one for one in await journal.sessions() if journal.is_running(one)]
    if running:
        # Making the file smaller locks it, for as long as that takes: a run must not fail for it.
        raise SessionBusy(f"{busy(running[0])}; while a session runs, no space can be given back")
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
        write(f"{counted(removed, 'image')} removed that nobody shows; {size(freed)} given back\n")
    return 0


def _size(path: str) -> int:
    """Return how long a journal is, as far as that can be told: it is only mentioned."""
    total = 0
    for file in (path, f"{path}-wal"):
        with suppress(OSError):
            total += os.stat(file).st_size
    return total
