"""What one line of an extension says: a frame, or why it is none. Does no I/O, and can be done in any thread."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from zot.errors import ProtocolError
from zot.extensions.quotes import QUOTED_BYTES, clipped
from zot.learned import learned
from zot.wire import extension as wire
from zot.wire.lines import TooLong, has_more_values


class _Identified(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Framed(msgspec.Struct, frozen=True):
    """A frame, and how long its line was."""

    frame: wire.AnyFromExtension
    size: int


class Unfit(msgspec.Struct, frozen=True):
    """A line that is no frame: what the extension did, what it answers, if that can be read, and how it begins.

    ``later`` if all that is wrong with it is that this version does not know its type.
    """

    reason: str
    frame_id: bytes = b""
    line: bytes = b""
    later: bool = False


Said: TypeAlias = Framed | Unfit


def read(line: bytes | TooLong) -> Said:
    """Read a line."""
    if isinstance(line, TooLong):
        return Unfit(f"wrote a line of more than {line.limit} bytes")
    if has_more_values(line, wire.MAX_VALUES):
        return Unfit(f"wrote a line with more than {wire.MAX_VALUES} values", _id_in(line), line[:QUOTED_BYTES])
    try:
        return Framed(wire.decode_from_extension(line), len(line))
    except wire.UnknownFrame as problem:
        return Unfit(clipped(str(problem)), problem.frame_id, line[:QUOTED_BYTES], later=True)
    except ProtocolError as problem:
        reason = f"wrote a line that is no frame: {clipped(str(problem))}"
        return Unfit(reason, problem.frame_id, line[:QUOTED_BYTES])


def _id_in(line: bytes) -> bytes:
    """Return the id in a line, as JSON, without looking at anything else; b"" if there is none."""
    try:
        found = msgspec.json.decode(line, type=learned(_Identified)).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return b""
    return msgspec.json.encode(found) if found else b""
