"""What a reply of the script may do: one struct per word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec


class Say(msgspec.Struct, frozen=True):
    """Text, one delta each."""

    deltas: tuple[str, ...]


class Split(msgspec.Struct, frozen=True):
    """``text`` in ``count`` deltas of about the same length."""

    count: int
    text: str


class Words(msgspec.Struct, frozen=True):
    """``count`` deltas: "w0 ", "w1 ", and so on."""

    count: int


class Flood(msgspec.Struct, frozen=True):
    """``count`` deltas of one character."""

    count: int


class Help(msgspec.Struct, frozen=True):
    """The help of every scene, as text."""


class Think(msgspec.Struct, frozen=True):
    """Thinking, one delta each, signed at its end."""

    deltas: tuple[str, ...]


class Redacted(msgspec.Struct, frozen=True):
    """Thinking in its sealed form."""

    sealed: str


class Call(msgspec.Struct, frozen=True):
    """A tool call. ``arguments`` is sent as it is, in ``chunks`` deltas; ``id`` is made up when it is None."""

    tool: str
    arguments: str
    id: str | None = None
    chunks: int = 1


class Shell(msgspec.Struct, frozen=True):
    """A call of the shell tool that the request offers, whatever it is called; text if it offers none."""

    command: str
    id: str | None = None
    chunks: int = 1


class Usage(msgspec.Struct, frozen=True):
    """What the reply is said to have cost, in tokens."""

    input: int = 100
    output: int = 20
    cache_read: int = 0
    cache_write: int = 0


class UsageTwice(msgspec.Struct, frozen=True):
    """The usage is reported twice."""


class Stop(msgspec.Struct, frozen=True):
    """Why the model stopped. Unknown words are sent as they are."""

    reason: str


class Pace(msgspec.Struct, frozen=True):
    """A wait before every delta that follows."""

    seconds: float


class Wait(msgspec.Struct, frozen=True):
    """One wait."""

    seconds: float


class Chunk(msgspec.Struct, frozen=True):
    """From here on the bytes travel in pieces of at most ``size``; 0 ends that."""

    size: int


class Ping(msgspec.Struct, frozen=True):
    """Keep-alive events."""

    count: int


class Raw(msgspec.Struct, frozen=True):
    """Bytes exactly as written."""

    text: str


class Repeat(msgspec.Struct, frozen=True):
    """The reply is played ``times`` times; for ever when it is None."""

    times: int | None


class Status(msgspec.Struct, frozen=True):
    """An HTTP status instead of a reply; None is the one with which the API says that it is overloaded.

    Without ``body`` the error body of the API is made.
    """

    code: int | None
    headers: Mapping[str, str] = {}
    body: str | None = None


class Refuse(msgspec.Struct, frozen=True):
    """No connection."""


class Stall(msgspec.Struct, frozen=True):
    """Silence for ever, or nothing but pings every so many seconds."""

    pings_every_s: float | None = None


class Cut(msgspec.Struct, frozen=True):
    """The connection dies: here, inside a multi-byte character or inside a JSON object."""

    where: Literal["here", "utf8", "json"] = "here"


class NoEnd(msgspec.Struct, frozen=True):
    """The body ends properly, but the final events of the API are missing."""


class Error(msgspec.Struct, frozen=True):
    """An error event inside the stream."""

    code: str
    message: str


class Play(msgspec.Struct, frozen=True):
    """``source`` is itself a script, to be played in place of this scene."""

    source: str


Content: TypeAlias = Say | Split | Words | Flood | Help | Think | Redacted | Call | Shell
Ending: TypeAlias = Status | Refuse | Stall | Cut | NoEnd | Error | Play
Tempo: TypeAlias = Pace | Wait | Chunk | Ping | Raw
Remark: TypeAlias = Usage | UsageTwice | Stop | Repeat
Directive: TypeAlias = Content | Ending | Tempo | Remark
