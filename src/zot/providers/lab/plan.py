"""A reply made ready to be sent: bytes, waits and faults in order. Pure, and shared by transport and server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec


class Piece(msgspec.Struct, frozen=True):
    """Bytes that travel alone: not joined with what comes before or after."""

    data: bytes


class Pause(msgspec.Struct, frozen=True):
    """A wait. What comes before it is sent first."""

    seconds: float


class Silence(msgspec.Struct, frozen=True):
    """Nothing more is ever said; only ``ping``, if there is one, every so many seconds."""

    ping: bytes | None = None
    every_s: float = 0.0


class Broken(msgspec.Struct, frozen=True):
    """The connection dies, or never comes about if nothing has been sent yet."""

    how: Literal["refused", "cut"]


#: Plain bytes may be joined with their neighbours. The end of the steps is the proper end of the body.
Step: TypeAlias = bytes | Piece | Pause | Silence | Broken


class Plan(msgspec.Struct, frozen=True):
    """An answer. Steps before the first bytes happen before the head is sent."""

    status: int
    headers: Mapping[str, str]
    steps: Iterator[Step]
