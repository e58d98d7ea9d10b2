"""The pages of a SQLite file, read without SQLite: what is left where SQLite gives up.

Follows https://www.sqlite.org/fileformat2.html as far as our tables need it. A page that makes no sense is passed over;
what is found may be wrong, and whoever uses it has checksums to tell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from zot.journal.schema import PAGE_BYTES

#: The number of a row, 0 where the table has none, and its columns.
Found: TypeAlias = tuple[int, list[Any]]

_LEAF_TABLE, _LEAF_INDEX, _INNER_INDEX = 13, 10, 2
#: How much of a row is on its own page; the rest is on others.
_MOST_IN_TABLE = PAGE_BYTES - 35
_MOST_IN_INDEX = (PAGE_BYTES - 12) * 64 // 255 - 23
_LEAST = (PAGE_BYTES - 12) * 32 // 255 - 23
_MAX_ROW = 1 << 30
_INT_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def read_pages(database: bytes, ahead: bytes) -> dict[int, bytes]:
    """Return the pages of a file by number, as far as they are whole, with what was written ahead of it."""
    pages = {
        start // PAGE_BYTES + 1: database[start : start + PAGE_BYTES]
        for start in range(0, len(database) - PAGE_BYTES + 1, PAGE_BYTES)
    }
    salts, transaction = ahead[16:24], {}
    for start in range(32, len(ahead) - PAGE_BYTES - 23, PAGE_BYTES + 24):
        number, size_after, salt = struct.unpack_from(">II8s", ahead, start)
        if salt != salts:
            break  # from before the file was last begun anew
        transaction[number] = ahead[start + 24 : start + 24 + PAGE_BYTES]
        if size_after:
            pages.update(transaction)
            transaction = {}
    return pages


def rows_in(pages: Mapping[int, bytes]) -> Iterator[Found]:
    """Yield every row that can be made out, in no order."""
    for number, page in pages.items():
        start = 100 if number == 1 else 0
        kind = page[start]
        if kind in (_LEAF_TABLE, _LEAF_INDEX, _INNER_INDEX):
            first = start + (12 if kind == _INNER_INDEX else 8)
            for at in range(first, first + 2 * int.from_bytes(page[start + 3 : start + 5], "big"), 2):
                try:
                    (cell,) = struct.unpack_from(">H", page, at)
                    yield _row(pages, page, cell, kind)
                except (IndexError, KeyError, ValueError, struct.error):
                    continue  # this one is damaged; the next may be whole


def _row(pages: Mapping[int, bytes], page: bytes, at: int, kind: int) -> Found:
    if kind == _INNER_INDEX:
        at += 4
    length, at = _varint(page, at)
    rowid = 0
    if kind == _LEAF_TABLE:
        rowid, at = _varint(page, at)
    if length > _MAX_ROW:
        raise ValueError("too long")
    most = _MOST_IN_TABLE if kind == _LEAF_TABLE else _MOST_IN_INDEX
    if length <= most:
        return rowid, _columns(page[at : at + length])
    local = _LEAST + (length - _LEAST) % (PAGE_BYTES - 4)
    local = local if local <= most else _LEAST
    pieces, missing = [page[at : at + local]], length - local
    (following,) = struct.unpack_from(">I", page, at + local)
    while missing > 0:
        more = pages[following]
        pieces.append(more[4 : 4 + missing])
        missing -= PAGE_BYTES - 4
        (following,) = struct.unpack_from(">I", more)
    return rowid, _columns(b"".join(pieces))


def _columns(record: bytes) -> list[Any]:
    """Return the values of a record."""
    end, at = _varint(record, 0)
    values: list[Any] = []
    place = end
    while at < end:
        kind, at = _varint(record, at)
        size = _INT_BYTES.get(kind, 0) if kind < 12 else (kind - 12) // 2
        data = record[place : place + size]
        if len(data) != size:
            raise ValueError("cut off")
        values.append(_value(kind, data))
        place += size
    return values


def _value(kind: int, data: bytes) -> Any:
    match kind:
        case 0:
            return None
        case 8 | 9:
            return kind - 8
        case 1 | 2 | 3 | 4 | 5 | 6:
            return int.from_bytes(data, "big", signed=True)
        case _ if kind >= 12:
            return data.decode("utf-8", "replace") if kind % 2 else data
        case _:
            raise ValueError("no table of ours has this")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(at, at + 8):
        value = value << 7 | data[index] & 0x7F
        if data[index] < 0x80:
            return value, index + 1
    return value << 8 | data[at + 8], at + 9
