"""Chunks: rows as stored, as lines of JSON of one kind, with a checksum. Does no I/O.

In a stored row, the data of an image or file is its SHA-256; the bytes are a blob, stored once.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, groupby, repeat
from operator import add, attrgetter
from typing import Any

import msgspec

from zot.encoding import UNREADABLE, decoder, encode_lines
from zot.errors import JournalDamaged, StoreFailed
from zot.events import AgentEvent
from zot.files import sha256
from zot.messages import ImageBlock, Message, ResultBlock, TextBlock, TranscriptBlock
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
    messages_of,
)

#: A chunk this long takes no more rows: reading one row reads its whole chunk.
MAX_CHUNK_BYTES = 1 << 17

_CHANGES = frozenset(
    {
        MessageAdded,
        MessagesReplaced,
        SettingsChanged,
        FileChanged,
        PermissionGranted,
        CallStarted,
        GuardSet,
        LockChanged,
        UsageCounted,
    }
)
#: The checksummed place of a chunk: session and kind; then first row, row count and run; then all five.
_OWNER = struct.Struct("<qq")
_RANGE = struct.Struct("<qqq")
_PLACE = struct.Struct("<qqqqq")
_BY_PLACE = attrgetter("session", "kind", "first")


class Kind(enum.IntEnum):
    """The kind of a chunk's rows: transcript changes can be read without the events."""

    CHANGES = 0
    EVENTS = 1


class Chunk(msgspec.Struct, gc=False):
    """Consecutive rows of one kind and run; ``first`` is the number of the first."""

    session: int
    kind: int
    first: int
    count: int
    run: int
    body: bytes

    @property
    def crc(self) -> int:
        """A checksum of the rows and their place."""
        return _checksum((self.session, self.kind, self.first, self.count, self.run), self.body)

    def precedes(self, other: Chunk) -> bool:
        """True if ``other`` continues this chunk: same session, kind and run."""
        return (
            self.first + self.count == other.first
            and self.session == other.session
            and self.kind == other.kind
            and self.run == other.run
        )


def pack(rows: Sequence[Row], *, session: int, first: int, run: int) -> tuple[list[Chunk], dict[bytes, bytes]]:
    """Return ``rows`` as chunks, and the blobs they refer to by hash. Each row is encoded here, once."""
    if _CHANGES.isdisjoint({*map(type, rows)}):
        return [Chunk(session, Kind.EVENTS, first, len(rows), run, encode_lines(rows))], {}
    chunks: list[Chunk] = []
    blobs: dict[bytes, bytes] = {}
    for is_change, group in groupby(rows, lambda row: type(row) in _CHANGES):
        same = [_without_blobs(row, blobs) if is_change else row for row in group]
        kind = Kind.CHANGES if is_change else Kind.EVENTS
        chunks.append(Chunk(session, kind, first, len(same), run, encode_lines(same)))
        first += len(same)
    return chunks, blobs


def join(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Merge adjacent chunks and return them grouped by session."""
    if len(chunks) == 1:
        return list(chunks)
    chunks = sorted(chunks, key=_BY_PLACE)
    joined: list[Chunk] = []
    bodies: list[list[bytes]] = []
    size = 0
    for chunk in chunks:
        size += len(chunk.body)
        if joined and joined[-1].precedes(chunk) and size <= MAX_CHUNK_BYTES:
            joined[-1].count += chunk.count
            bodies[-1].append(chunk.body)
        else:
            joined.append(msgspec.structs.replace(chunk))
            bodies.append([chunk.body])
            size = len(chunk.body)
    for whole, pieces in zip(joined, bodies, strict=True):
        whole.body = b"".join(pieces)
    return joined


def verified(row: Sequence[Any]) -> Chunk:
    """Return the chunk in a table row, after checking its checksum. Raise JournalDamaged."""
    *place, body, crc = row
    try:
        chunk = Chunk(*row[:-1])
        is_whole = _checksum(place, body) == crc
    except (TypeError, struct.error) as problem:  # a damaged page may hold anything
        raise JournalDamaged(f"a row cannot be read: {problem}") from problem
    if not is_whole:
        raise JournalDamaged(f"{_named(chunk)} cannot be read: not what was written")
    return chunk


def unpack(chunk: Chunk) -> list[Row]:
    """Return the rows of a chunk, in their stored form. Raise StoreFailed if this zot does not know such rows."""
    try:
        rows = _decoded(chunk.kind, chunk.body)
    except UNREADABLE as problem:
        # The checksum is right: this is no damage, and a repair would not help.
        raise StoreFailed(f"{_named(chunk)} cannot be understood, another zot wrote them: {problem}") from problem
    if len(rows) != chunk.count:
        raise StoreFailed(f"{_named(chunk)} cannot be understood, another zot wrote them: there are {len(rows)}")
    return rows


def unpack_all(chunks: Sequence[Chunk]) -> list[tuple[int, Row]]:
    """Return the rows of chunks of one kind, in their stored form, with their numbers. Raise StoreFailed."""
    numbers = [seq for chunk in chunks for seq in range(chunk.first, chunk.first + chunk.count)]
    body = b"".join([chunk.body for chunk in chunks])
    try:
        # Decode all at once: a session has very many chunks.
        return list(zip(numbers, unpack(Chunk(0, chunks[0].kind, 0, len(numbers), 0, body)), strict=True))
    except StoreFailed:
        # One by one, so that the error names the chunk.
        return [row for chunk in chunks for row in enumerate(unpack(chunk), chunk.first)]


def read_all(session: int, kind: Kind, table: Sequence[tuple[Any, ...]]) -> tuple[Sequence[int], list[Row]]:
    """Return the rows of one session and kind, verified, in their stored form: their numbers, and the rows.

    ``table`` has first, count, run, checksum and body of each chunk. Equals `verified` and `unpack_all`, without an
    object per chunk: opening a session reads thousands. Raise JournalDamaged, StoreFailed.
    """
    firsts, counts, runs, crcs, bodies = zip(*table, strict=True)
    try:
        begun = zlib.crc32(_OWNER.pack(session, kind))
        places = map(zlib.crc32, map(_RANGE.pack, firsts, counts, runs), repeat(begun))
        if tuple(map(zlib.crc32, bodies, places)) == crcs:
            rows = _decoded(kind, b"".join(bodies))
            numbers = firsts
            if max(counts) > 1:  # A message is mostly a chunk of its own.
                numbers = tuple(chain.from_iterable(map(range, firsts, map(add, firsts, counts))))
            if len(rows) == len(numbers):
                return numbers, rows
    except (TypeError, struct.error, *UNREADABLE):
        pass  # The slow path below raises the right error.
    found = unpack_all([verified((session, kind, *row[:3], row[4], row[3])) for row in table])
    return [seq for seq, _ in found], [row for _, row in found]


def _decoded(kind: int, body: bytes | memoryview) -> list[Row]:
    return (_changes() if kind == Kind.CHANGES else _events()).decode_lines(body)


def cut(chunk: Chunk, count: int) -> Chunk:
    """Return the chunk with its first ``count`` rows only."""
    body = b"".join(line + b"\n" for line in chunk.body.split(b"\n", count)[:count])
    return msgspec.structs.replace(chunk, count=count, body=body)


def may_have_images(body: bytes) -> bool:
    """False if none of these changes shows an image: a cheap test that spares most rows a closer look."""
    return b':"image"' in body


def referred(row: Row) -> list[bytes]:
    """Return the hashes of all blobs that a stored row refers to."""
    if isinstance(row, FileChanged):
        return [bytes.fromhex(digest) for digest in (row.before, row.after) if digest]
    return images(row)


def images(row: Row) -> list[bytes]:
    """Return the hashes of the images in a stored row."""
    found: list[bytes] = []
    for message in messages_of(row):
        for block in message.content:
            found += [inner.data for inner in _parts(block) if isinstance(inner, ImageBlock)]
    return found


def fetched(row: Row, blobs: Mapping[bytes, bytes]) -> Row:
    """Return a stored row with the bytes of its images; a lost image becomes a note."""

    def fetch(block: ImageBlock) -> ImageBlock | TextBlock:
        data = blobs.get(block.data)
        if data is None:
            return TextBlock("[an image was here; its data was lost]")
        return ImageBlock(block.mime_type, data)

    return _with_images(row, fetch)


def _without_blobs(row: Row, blobs: dict[bytes, bytes]) -> Row:
    if isinstance(row, FileChanged):
        blobs.update({bytes.fromhex(digest): data for digest, data in row.contents.items()})
        return msgspec.structs.replace(row, contents={})

    def stow(block: ImageBlock) -> ImageBlock:
        digest = sha256(block.data).digest()
        blobs[digest] = block.data
        return ImageBlock(block.mime_type, digest)

    return _with_images(row, stow)


def _with_images(row: Row, change: Callable[[ImageBlock], ImageBlock | TextBlock]) -> Row:
    """Return ``row`` with every image changed; the row itself if it has none."""
    messages = messages_of(row)
    if not any(isinstance(inner, ImageBlock) for message in messages for b in message.content for inner in _parts(b)):
        return row
    changed = tuple(_message_with_images(message, change) for message in messages)
    return MessageAdded(changed[0]) if isinstance(row, MessageAdded) else msgspec.structs.replace(row, messages=changed)


def _message_with_images(message: Message, change: Callable[[ImageBlock], ImageBlock | TextBlock]) -> Message:
    def block_with_images(block: TranscriptBlock) -> TranscriptBlock:
        match block:
            case ImageBlock():
                return change(block)
            case ResultBlock(content=content):
                inner = tuple(change(part) if isinstance(part, ImageBlock) else part for part in content)
                return msgspec.structs.replace(block, content=inner)
            case _:
                return block

    return msgspec.structs.replace(message, content=tuple(map(block_with_images, message.content)))


def _parts(block: TranscriptBlock) -> tuple[TranscriptBlock, ...]:
    return block.content if isinstance(block, ResultBlock) else (block,)


def _checksum(place: Sequence[int], body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_PLACE.pack(*place)))


def _named(chunk: Chunk) -> str:
    last = chunk.first + chunk.count - 1
    return f"row {last}" if chunk.count == 1 else f"rows {chunk.first} to {last}"


@cache
def _changes() -> msgspec.json.Decoder[Row]:
    return decoder(Change)


@cache
def _events() -> msgspec.json.Decoder[Row]:
    return decoder(AgentEvent)
