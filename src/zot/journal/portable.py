"""A session as lines of JSON that any machine can read: what each line may be. Does no I/O.

The first line says what it is, the last one how many rows there are. An image is a line of its own, before the first
row that shows it, and in the row its data is its SHA-256. Nothing says where the machine keeps its files: directories
are relative to the home of whoever reads it, and the system prompt, which tells of more, is left out and made anew.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from zot.errors import MalformedFile, UserError
from zot.events import AgentEvent
from zot.files import UNDECODABLE, decoded
from zot.journal.chunks import images
from zot.learned import decoder, learned
from zot.store import Allowed, Began, Change, Configured, Counted, Guarded, Locked, Row, Said, Spliced, Wrote

VERSION = 1
MAX_LINE_BYTES = 64 << 20

Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Time: TypeAlias = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]

#: How deeply a line may be nested. Every Python reads so much, also where many calls are under way: how much more one
#: reads goes by its version, and a file that one zot wrote must not be too deep for another.
_MAX_DEPTH = 500
_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|[\]}]', re.DOTALL)

_REASONING = frozenset({"off", "low", "medium", "high"})


class Header(msgspec.Struct, frozen=True, tag="zot_session", tag_field="type", forbid_unknown_fields=True):
    """What the session is. ``cwd`` is "", "~" or begins with "~/"."""

    version: int
    id: Id
    created: Time
    title: Annotated[str, Meta(max_length=1000)] = ""
    cwd: str = ""
    parent: Id | None = None
    fork_seq: Number = 0


class ImageLine(msgspec.Struct, frozen=True, tag="image", tag_field="type", forbid_unknown_fields=True):
    """The data of an image; ``sha256`` is what rows call it."""

    sha256: str
    data: bytes


class EventLine(msgspec.Struct, frozen=True, tag="event", tag_field="type", forbid_unknown_fields=True):
    """What clients saw."""

    seq: Number
    run: Number
    event: AgentEvent


class ChangeLine(msgspec.Struct, frozen=True, tag="change", tag_field="type", forbid_unknown_fields=True):
    """A change of the transcript, or of what the session works with."""

    seq: Number
    run: Number
    change: Change


class EndLine(msgspec.Struct, frozen=True, tag="end", tag_field="type", forbid_unknown_fields=True):
    """Nothing is missing before this."""

    rows: Number


Line: TypeAlias = Header | ImageLine | EventLine | ChangeLine | EndLine


class _Claim(msgspec.Struct, frozen=True):
    """What any version of the first line has."""

    type: str
    version: int


class Wrong(UserError):
    """A line is not what it should be."""


def line_of(seq: int, run: int, row: Row, *, home: str) -> EventLine | ChangeLine | None:
    """Return the line of a row, in its stored form; None for what stays here: the files of this machine, what was
    allowed on it, if it was locked, and who guarded it."""
    match row:
        case Wrote() | Allowed() | Began() | Guarded() | Locked():
            return None
        case Configured(cwd=cwd):
            return ChangeLine(seq, run, msgspec.structs.replace(row, cwd=portable(cwd, home), system="", agent=""))
        case Said() | Spliced() | Counted():
            return ChangeLine(seq, run, row)
        case _:
            return EventLine(seq, run, row)


def portable(path: str, home: str) -> str:
    """Return a directory relative to ``home``; "" for one that is not in it, or if there is none."""
    if home in ("", "/"):
        return ""
    if path == home:
        return "~"
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else ""


def local(path: str, home: str) -> str:
    """Return the directory of this machine that `portable` made ``path`` of; "" if there is none. Raise Wrong."""
    first, *rest = path.split("/")
    if path and (first != "~" or ".." in rest or "\0" in path):
        raise Wrong("a directory must be '', '~' or begin with '~/', and not lead out of it")
    return os.path.normpath(home + path[1:]) if path and home not in ("", "/") else ""


def checked(lines: Iterable[tuple[int, bytes]], source: str) -> Iterator[Line]:
    """Yield the lines of a session, each of them valid in its place. Raise UserError with ``source`` and the number."""
    state = _Reading()
    number = 0
    for number, data in lines:
        try:
            yield state.take(data)
        except Wrong as problem:
            raise UserError(f"{source}, line {number}: {problem}") from None
    if not state.ended:
        raise UserError(f"{source}, line {number + 1}: the file ends here, but the session does not: it is incomplete")


class _Reading:
    """What was read so far, as far as what follows depends on it."""

    def __init__(self) -> None:
        self.ended = False
        self._begun = False
        self._rows = 0
        self._seq = 0
        self._run = 0
        self._images: set[bytes] = set()
        self._unused: set[bytes] = set()

    def take(self, data: bytes) -> Line:
        """Return a line. Raise Wrong."""
        if not self._begun:
            _check_version(data)
        line = _decoded(data)
        if self.ended:
            raise Wrong("nothing may follow the end")
        if isinstance(line, Header) is self._begun:
            raise Wrong("it begins again" if self._begun else "a session begins with a line of type zot_session")
        match line:
            case Header(cwd=cwd):
                self._begun = True
                local(cwd, "")
            case ImageLine():
                self._take_image(line)
            case EndLine(rows=rows):
                self._end(rows)
            case EventLine() | ChangeLine():
                self._take_row(line)
        return line

    def _take_image(self, line: ImageLine) -> None:
        digest = hashlib.sha256(line.data).digest()
        if line.sha256 != digest.hex():
            raise Wrong("the image is not the one that its sha256 says")
        if digest in self._images:
            raise Wrong("this image was there already")
        self._images.add(digest)
        self._unused.add(digest)

    def _take_row(self, line: EventLine | ChangeLine) -> None:
        if line.seq <= self._seq or line.run < self._run:
            raise Wrong(f"seq must be more than {self._seq}, and run at least {self._run}")
        self._seq, self._run = line.seq, line.run
        self._rows += 1
        if isinstance(line, ChangeLine):
            self._take_change(line.change)

    def _take_change(self, change: Change) -> None:
        shown = {*images(change)}
        if not shown <= self._images:
            raise Wrong("it shows an image that is not in the lines before it")
        self._unused -= shown
        match change:
            case Said() | Counted():
                pass
            case Spliced(start=start, stop=stop):
                # There may be fewer messages: of a damaged journal, what is readable can be exported, too.
                if not 0 <= start <= stop:
                    raise Wrong(f"it replaces messages {start} to {stop}")
            case Configured(cwd=cwd, reasoning=reasoning):
                local(cwd, "")
                if reasoning not in _REASONING:
                    raise Wrong(f"reasoning must be one of {', '.join(sorted(_REASONING))}")
            case Wrote():
                raise Wrong("files are not moved with a session")
            case Allowed() | Began():
                raise Wrong("what was allowed is not moved with a session")
            case Guarded() | Locked():
                raise Wrong("guards and locks are not moved with a session")

    def _end(self, rows: int) -> None:
        if rows != self._rows:
            raise Wrong(f"it says that there are {rows} rows, and there are {self._rows}")
        if self._unused:
            raise Wrong("an image is in the file that nothing shows")
        self.ended = True


def _check_version(data: bytes) -> None:
    try:
        claim = msgspec.json.decode(data, type=learned(_Claim))
    except UNDECODABLE:
        raise Wrong("this is not a session that zot exported") from None
    if claim.type != "zot_session":
        raise Wrong("this is not a session that zot exported")
    if claim.version != VERSION:
        raise Wrong(f"this is version {claim.version}, and this zot reads {VERSION}")


def _decoded(data: bytes) -> Line:
    try:
        if _is_too_deep(data):
            raise Wrong("nested too deeply")
        return decoded(data, _decoder().decode, "")
    except MalformedFile as problem:
        raise Wrong(problem.reason) from None


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
