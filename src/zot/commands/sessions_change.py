"""`zot sessions rewind` and `diff`: sessions and the files that they have changed."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from zot.commands.subcommands import chosen
from zot.config.flags import Flag
from zot.encoding import encode
from zot.errors import UsageError
from zot.journal.journal import Journal
from zot.journal.record import Record
from zot.messages import CallBlock, Message, ResultBlock, TextBlock, show, text_of, timestamp
from zot.session.branches import Branches, FilePair, compared
from zot.session.history import History
from zot.session.queue import Wish
from zot.session.recovery_part import recover
from zot.session.rewind import RestoredFile, restored, way_back
from zot.session.rewind import rewind as go_back
from zot.store import UNKEPT, Store
from zot.text import printable
from zot.tools.checkpoints import Restorer
from zot.tools.paths import Lock
from zot.tools.paths_part import Anywhere
from zot.tools.unified import unified
from zot.ui.readable import counted

_MAX_SHOWN = 200


def _count(text: str) -> int:
    """Read a whole number of at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError("must be a whole number")
    return int(text)


REWIND_FLAGS = (
    Flag("--messages", "keep the first N messages", value="N", parse=_count),
    Flag("--at", "go to the row of this number instead", value="SEQ", parse=_count),
    Flag("--no-files", "only the conversation: leave files as they are"),
    Flag("--lock", "put back nothing outside of the session's directory"),
    Flag("--dry-run", "only say what would be done"),
)


class Asked(Protocol):
    """The words behind the subcommand, what the flags say, and whether a program will read the answer."""

    @property
    def words(self) -> Sequence[str]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def json(self) -> bool: ...


async def rewind(journal: Journal, asked: Asked) -> int:
    """Take a session back to an earlier point. Raise UserError, RewindRefused, StoreFailed."""
    settings = asked.settings
    if ("messages" in settings) == ("at" in settings):
        raise UsageError("zot sessions rewind needs either --messages or --at")
    wish = Wish(settings.get("messages"), settings.get("at"), not settings.get("no_files"))
    session = await chosen(journal, asked.words[0])
    files = Restorer(Lock(session.cwd) if settings.get("lock") else Anywhere())
    if settings.get("dry_run"):
        record = await journal.record(session.id, create=False)
        plan = await way_back(record, files, wish, cwd=session.cwd)
        _tell_rewind(asked, len(plan.messages), restored(plan), plan.at, done=False)
        return 0
    async with _owned(journal, session.id) as (record, history):
        rewound = await go_back(history, record, files, wish, cwd=session.cwd)
    _tell_rewind(asked, rewound.messages, rewound.files, rewound.undo, done=True)
    return 0


@asynccontextmanager
async def _owned(journal: Journal, session_id: str) -> AsyncIterator[tuple[Record, History]]:
    """Be the only writer of a session, and know its past; a run that was cut off has then been brought to its end."""
    record, past = await journal.resume(session_id, create=False)
    history = History(
        record,
        charge=lambda used: used,
        measured=lambda usage, transcript: None,
        recall=lambda allowed: None,
        observe=lambda events: None,
        on_failure=lambda problem: None,
    )
    history.learn(past.changes)
    history.learn(row for _, row in await record.begin())
    try:
        history.run = record.last_run
        rows = [row for _, row in await record.newest()]
        history.amend(recover(history.transcript, rows, now=timestamp(), parks=False).rows)
        yield record, history
    finally:
        record.end()


def _tell_rewind(asked: Asked, messages: int, files: Sequence[RestoredFile], row: int, *, done: bool) -> None:
    if asked.json:
        _write_json({"messages": messages, "files": files, "undo" if done else "at": row})
        return
    for file in files:
        _write(f"{file.change if done else f'to be {file.change}'}  {printable(file.path)}\n")
    _write(f"{counted(messages, 'message')}{'; --at ' + str(row) + ' undoes this' if done else ' would be left'}\n")


async def diff(journal: Journal, asked: Asked) -> int:
    """Compare two sessions: what each has said, and made of files, since they were one."""
    one, other = [await journal.record((await chosen(journal, name)).id, create=False) for name in asked.words]
    branches = compared(await one.changes(), await other.changes())
    files = [(pair, "".join(await _file_rows(one, pair))) for pair in branches.files]
    if asked.json:
        _write_json(_told(one.id, other.id, branches, files))
        return 0
    _write(f"{counted(branches.shared, 'message')} in common\n--- {printable(one.id)}\n+++ {printable(other.id)}\n")
    for sign, messages in (("-", branches.one), ("+", branches.other)):
        _write("".join(f"{sign}{printable(_in_short(message))}\n" for message in messages))
    for _, rows in files:
        for row in rows.removesuffix("\n").split("\n"):
            _write("\t".join(map(printable, row.split("\t"))) + "\n")
    return 0


async def _file_rows(store: Store, pair: FilePair) -> list[str]:
    contents: list[bytes | None] = []
    for digest in (pair.one, pair.other):
        content = None if digest is None or digest == UNKEPT else await store.content(digest)
        if content is None and digest is not None:
            return [f"Files a/{pair.path} and b/{pair.path} may differ: the content was not kept\n"]
        contents.append(content)
    return list(unified(contents[0], contents[1], pair.path))


def _told(one: str, other: str, branches: Branches, files: Sequence[tuple[FilePair, str]]) -> dict[str, Any]:
    return {
        "sessions": [one, other],
        "seq": branches.seq,
        "shared": branches.shared,
        "messages": [[show(message) for message in messages] for messages in (branches.one, branches.other)],
        "files": [{"path": pair.path, "sha256": [pair.one, pair.other], "diff": rows} for pair, rows in files],
    }


def _in_short(message: Message) -> str:
    """Return a message in one line."""
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


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
