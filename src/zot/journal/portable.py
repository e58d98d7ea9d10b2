"""Portable sessions: export to and import from lines of JSON."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from zot.encoding import decoder, encode, thread_safe_type
from zot.errors import MalformedFile, UserError
from zot.events import AgentEvent, Usage
from zot.files import UNDECODABLE, decoded
from zot.journal.chunks import MAX_CHUNK_BYTES, Chunk, Kind, fetched, images, unpack
from zot.journal.connection import Connection
from zot.journal.queries import (
    SessionRecord,
    SessionSummary,
    add_uses,
    chunks_after,
    create,
    find,
    get,
    key_of,
    put,
    update_summary,
)
from zot.messages import timestamp
from zot.store import (
    CallStarted,
    Change,
    FileChanged,
    GuardSet,
    LockChanged,
    MessageAdded,
    MessagesReplaced,
    PermissionGranted,
    Row,
    SettingsChanged,
    UsageCounted,
)

VERSION = 1
MAX_LINE_BYTES = 64 << 20

Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Time: TypeAlias = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]

#: The deepest nesting of a line. Every Python version decodes this much, even deep in a call stack; a file that one zot
#: wrote must not be too deep for another.
_MAX_DEPTH = 500
_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|[\]}]', re.DOTALL)

_REASONING = frozenset({"off", "low", "medium", "high"})


class PortableHeader(msgspec.Struct, frozen=True, tag="zot_session", tag_field="type", forbid_unknown_fields=True):
    """The first line: the session's metadata. ``cwd`` is "", "~" or begins with "~/"."""

    version: int
    id: Id
    created: Time
    title: Annotated[str, Meta(max_length=1000)] = ""
    cwd: str = ""
    parent: Id | None = None
    fork_seq: Number = 0


class ImageLine(msgspec.Struct, frozen=True, tag="image", tag_field="type", forbid_unknown_fields=True):
    """The data of an image, which later rows refer to by ``sha256``."""

    sha256: str
    data: bytes


class ExportedEvent(msgspec.Struct, frozen=True, tag="event", tag_field="type", forbid_unknown_fields=True):
    """An event, as clients saw it."""

    seq: Number
    run: Number
    event: AgentEvent


class ChangeLine(msgspec.Struct, frozen=True, tag="change", tag_field="type", forbid_unknown_fields=True):
    """A change of the transcript, or of the session's settings."""

    seq: Number
    run: Number
    change: Change


class EndLine(msgspec.Struct, frozen=True, tag="end", tag_field="type", forbid_unknown_fields=True):
    """The last line: proves that the file is complete."""

    rows: Number


Line: TypeAlias = PortableHeader | ImageLine | ExportedEvent | ChangeLine | EndLine


class _Claim(msgspec.Struct, frozen=True):
    """The fields that every version of the first line has."""

    type: str
    version: int


class InvalidLine(UserError):
    """A line that is invalid in its place."""


def line_of(seq: int, run: int, row: Row, *, home: str) -> ExportedEvent | ChangeLine | None:
    """Return the line of a stored row; None for rows that are not exported: file changes, approvals, locks and
    guards."""
    match row:
        case FileChanged() | PermissionGranted() | CallStarted() | GuardSet() | LockChanged():
            return None
        case SettingsChanged(cwd=cwd):
            return ChangeLine(seq, run, msgspec.structs.replace(row, cwd=portable(cwd, home), system="", agent=""))
        case MessageAdded() | MessagesReplaced() | UsageCounted():
            return ChangeLine(seq, run, row)
        case _:
            return ExportedEvent(seq, run, row)


def portable(path: str, home: str) -> str:
    """Return a directory relative to ``home``; "" if it is outside, or there is no home."""
    if home in ("", "/"):
        return ""
    if path == home:
        return "~"
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else ""


def local(path: str, home: str) -> str:
    """Return the directory on this machine for an exported ``path``; "" if there is none. Raise InvalidLine."""
    first, *rest = path.split("/")
    if path and (first != "~" or ".." in rest or "\0" in path):
        raise InvalidLine("a directory must be '', '~' or begin with '~/', and not lead out of it")
    return os.path.normpath(home + path[1:]) if path and home not in ("", "/") else ""


def checked(lines: Iterable[tuple[int, bytes]], source: str) -> Iterator[Line]:
    """Yield the lines of a session, each valid in its place. Raise UserError with ``source`` and the line number."""
    state = _Reading()
    number = 0
    for number, data in lines:
        try:
            yield state.take(data)
        except InvalidLine as problem:
            raise UserError(f"{source}, line {number}: {problem}") from None
    if not state.ended:
        raise UserError(f"{source}, line {number + 1}: the file ends here, but the session does not: it is incomplete")


class _Reading:
    """The state of reading a file: everything that the validity of the next line depends on."""

    def __init__(self) -> None:
        self.ended = False
        self._begun = False
        self._rows = 0
        self._seq = 0
        self._run = 0
        self._images: set[bytes] = set()
        self._unused: set[bytes] = set()

    def take(self, data: bytes) -> Line:
        """Decode and check a line. Raise InvalidLine."""
        if not self._begun:
            _check_version(data)
        line = _decoded(data)
        if self.ended:
            raise InvalidLine("nothing may follow the end")
        if isinstance(line, PortableHeader) is self._begun:
            raise InvalidLine("it begins again" if self._begun else "a session begins with a line of type zot_session")
        match line:
            case PortableHeader(cwd=cwd):
                self._begun = True
                local(cwd, "")
            case ImageLine():
                self._take_image(line)
            case EndLine(rows=rows):
                self._end(rows)
            case ExportedEvent() | ChangeLine():
                self._take_row(line)
        return line

    def _take_image(self, line: ImageLine) -> None:
        digest = hashlib.sha256(line.data).digest()
        if line.sha256 != digest.hex():
            raise InvalidLine("the image is not the one that its sha256 says")
        if digest in self._images:
            raise InvalidLine("this image was there already")
        self._images.add(digest)
        self._unused.add(digest)

    def _take_row(self, line: ExportedEvent | ChangeLine) -> None:
        if line.seq <= self._seq or line.run < self._run:
            raise InvalidLine(f"seq must be more than {self._seq}, and run at least {self._run}")
        self._seq, self._run = line.seq, line.run
        self._rows += 1
        if isinstance(line, ChangeLine):
            self._take_change(line.change)

    def _take_change(self, change: Change) -> None:
        shown = {*images(change)}
        if not shown <= self._images:
            raise InvalidLine("it shows an image that is not in the lines before it")
        self._unused -= shown
        match change:
            case MessageAdded() | UsageCounted():
                pass
            case MessagesReplaced(start=start, stop=stop):
                # There may be fewer messages: the readable part of a damaged journal can be exported, too.
                if not 0 <= start <= stop:
                    raise InvalidLine(f"it replaces messages {start} to {stop}")
            case SettingsChanged(cwd=cwd, reasoning=reasoning):
                local(cwd, "")
                if reasoning not in _REASONING:
                    raise InvalidLine(f"reasoning must be one of {', '.join(sorted(_REASONING))}")
            case FileChanged():
                raise InvalidLine("files are not moved with a session")
            case PermissionGranted() | CallStarted():
                raise InvalidLine("permissions are not moved with a session")
            case GuardSet() | LockChanged():
                raise InvalidLine("guards and locks are not moved with a session")

    def _end(self, rows: int) -> None:
        if rows != self._rows:
            raise InvalidLine(f"it says that there are {rows} rows, and there are {self._rows}")
        if self._unused:
            raise InvalidLine("an image is in the file that nothing shows")
        self.ended = True


def _check_version(data: bytes) -> None:
    try:
        claim = msgspec.json.decode(data, type=thread_safe_type(_Claim))
    except UNDECODABLE:
        raise InvalidLine("this is not a session that zot exported") from None
    if claim.type != "zot_session":
        raise InvalidLine("this is not a session that zot exported")
    if claim.version != VERSION:
        raise InvalidLine(f"this is version {claim.version}, and this zot reads {VERSION}")


def _decoded(data: bytes) -> Line:
    try:
        if _is_too_deep(data):
            raise InvalidLine("nested too deeply")
        return decoded(data, _decoder().decode, "")
    except MalformedFile as problem:
        raise InvalidLine(problem.reason) from None


def _is_too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= _MAX_DEPTH:
        return False
    depth = 0
    for found in _BRACKETS.finditer(data):
        if found[1]:
            depth += 1
        elif not found[0].startswith(b'"'):
            depth -= 1
        if depth > _MAX_DEPTH:
            return True
    return False


@cache
def _decoder() -> msgspec.json.Decoder[Line]:
    return decoder(Line)


def exported(connection: Connection, session: SessionRecord, *, home: str) -> Iterator[bytes]:
    """Yield a session as lines, each with its LF. Raise JournalDamaged."""
    cwd = portable(session.cwd, home)
    header = PortableHeader(VERSION, session.id, session.created, session.title, cwd, session.parent, session.fork_seq)
    yield encode(header) + b"\n"
    rows = 0
    sent: set[bytes] = set()
    for chunk in chunks_after(connection, session.number, 0):
        for row in unpack(chunk):
            shown = images(row) if chunk.kind == Kind.CHANGES else []
            yield from _images(connection, shown, sent)
            # A lost image becomes a note, as it does when the session is read here.
            whole = fetched(row, {digest: digest for digest in shown if digest in sent}) if shown else row
            # Rows are renumbered: omitted ones leave no gap.
            line = line_of(rows + 1, chunk.run, whole, home=home)
            if line is not None:
                yield encode(line) + b"\n"
                rows += 1
    yield encode(EndLine(rows)) + b"\n"


def _images(connection: Connection, shown: Iterable[bytes], sent: set[bytes]) -> Iterator[bytes]:
    for digest in shown:
        query = "SELECT data FROM blobs WHERE hash = ?"
        found = None if digest in sent else connection.execute(query, (digest,)).fetchone()
        if found is not None:
            sent.add(digest)
            yield encode(ImageLine(digest.hex(), found[0])) + b"\n"


class ImportTarget(msgspec.Struct, frozen=True):
    """The session to make from an export, on this machine.

    Its id is ``wanted_id``, which must be free; by default the old id, or ``spare_id`` if that is taken. ``home`` is
    the user's home directory. ``cwd`` overrides the session's directory, ``agent`` names its agent.
    """

    spare_id: str
    home: str
    wanted_id: str | None = None
    cwd: str | None = None
    agent: str = ""

    def directory(self, exported: str) -> str:
        """Return the directory for an exported one."""
        return local(exported, self.home) if self.cwd is None else self.cwd


def imported(connection: Connection, lines: Iterable[Line], target: ImportTarget) -> SessionRecord:
    """Create a session from valid ``lines``, inside a transaction. Raise UserError."""
    reading = iter(lines)
    header = next(reading)
    assert isinstance(header, PortableHeader)
    new_id = target.wanted_id or (header.id if find(connection, header.id) is None else target.spare_id)
    now = timestamp()
    made = create(connection, new_id, cwd=target.directory(header.cwd), title=header.title, now=now)
    _Import(connection, made.number, target, now).take(reading)
    parent = None if header.parent is None else key_of(header.parent)
    query = "UPDATE sessions SET created = ?, parent = ?, fork_seq = ? WHERE number = ?"
    connection.execute(query, (header.created, parent, header.fork_seq, made.number))
    return get(connection, new_id)


class _Import:
    """A writer of imported rows into one session."""

    def __init__(self, connection: Connection, number: int, target: ImportTarget, now: str) -> None:
        self._connection = connection
        self._number = number
        self._target = target
        self._now = now
        self._summary = SessionSummary()
        self._chunk: Chunk | None = None
        self._bodies: list[bytes] = []
        self._size = 0

    def take(self, lines: Iterable[Line]) -> None:
        for line in lines:
            match line:
                case ImageLine(sha256=sha256, data=data):
                    query = "INSERT INTO blobs (hash, data) VALUES (?, ?) ON CONFLICT DO NOTHING"
                    self._connection.execute(query, (bytes.fromhex(sha256), data))
                case ExportedEvent():
                    self._take_row(line.seq, line.run, Kind.EVENTS, line.event)
                case ChangeLine():
                    self._take_row(line.seq, line.run, Kind.CHANGES, self._localised(line.change))
                case _:
                    pass
        self._put()
        update_summary(self._connection, self._number, self._summary, self._now)

    def _localised(self, change: Change) -> Change:
        """Return ``change`` with the directory and agent of this machine."""
        if not isinstance(change, SettingsChanged):
            return change
        return msgspec.structs.replace(change, cwd=self._target.directory(change.cwd), agent=self._target.agent)

    def _take_row(self, seq: int, run: int, kind: Kind, row: Row) -> None:
        body = encode(row) + b"\n"
        self._size += len(body)
        chunk = self._chunk
        continues = chunk is not None and (chunk.kind, chunk.run, chunk.first + chunk.count) == (kind, run, seq)
        if chunk is None or not continues or self._size > MAX_CHUNK_BYTES:
            self._put()
            chunk = self._chunk = Chunk(self._number, kind, seq, 0, run, b"")
            self._size = len(body)
        chunk.count += 1
        self._bodies.append(body)
        if kind == Kind.CHANGES or isinstance(row, Usage):  # Other rows do not affect the summary.
            self._summary.add([row])
            add_uses(self._connection, self._number, seq, images(row))

    def _put(self) -> None:
        if self._chunk is not None:
            self._chunk.body = b"".join(self._bodies)
            put(self._connection, self._chunk)
        self._chunk, self._bodies, self._size = None, [], 0
