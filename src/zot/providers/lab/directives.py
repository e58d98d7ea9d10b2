"""Directives of a scripted reply: one struct per word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec


class Say(msgspec.Struct, frozen=True):
    """Text, one delta per item."""

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
    """Thinking, one delta per item, signed at its end."""

    deltas: tuple[str, ...]


class Redacted(msgspec.Struct, frozen=True):
    """Encrypted thinking."""

    sealed: str


class CallDirective(msgspec.Struct, frozen=True):
    """A tool call. ``arguments`` is sent verbatim in ``chunks`` deltas; ``id`` is generated if None."""

    tool: str
    arguments: str
    id: str | None = None
    chunks: int = 1


class Shell(msgspec.Struct, frozen=True):
    """A call of the request's shell tool, whatever its name; text if there is none."""

    command: str
    id: str | None = None
    chunks: int = 1


class UsageDirective(msgspec.Struct, frozen=True):
    """The usage reported for the reply, in tokens."""

    input: int = 100
    output: int = 20
    cache_read: int = 0
    cache_write: int = 0


class UsageTwice(msgspec.Struct, frozen=True):
    """Report the usage twice."""


class StopDirective(msgspec.Struct, frozen=True):
    """The stop reason. Unknown words are sent verbatim."""

    reason: str


class PaceDirective(msgspec.Struct, frozen=True):
    """A wait before each following delta."""

    seconds: float


class Wait(msgspec.Struct, frozen=True):
    """One wait."""

    seconds: float


class ChunkDirective(msgspec.Struct, frozen=True):
    """Send the following bytes in pieces of at most ``size``; 0 turns that off."""

    size: int


class PingDirective(msgspec.Struct, frozen=True):
    """Keep-alive events."""

    count: int


class Raw(msgspec.Struct, frozen=True):
    """Bytes exactly as written."""

    text: str


class Repeat(msgspec.Struct, frozen=True):
    """Play the reply ``times`` times; forever if None."""

    times: int | None


class StatusDirective(msgspec.Struct, frozen=True):
    """An HTTP status instead of a reply; None is the API's overload status.

    Without ``body``, the API's own error body is sent.
    """

    code: int | None
    headers: Mapping[str, str] = {}
    body: str | None = None


class Refuse(msgspec.Struct, frozen=True):
    """A refused connection."""


class Stall(msgspec.Struct, frozen=True):
    """Silence forever, or only pings every ``pings_every_s`` seconds."""

    pings_every_s: float | None = None


class Cut(msgspec.Struct, frozen=True):
    """A dropped connection: here, inside a multi-byte character or inside a JSON object."""

    where: Literal["here", "utf8", "json"] = "here"


class NoEnd(msgspec.Struct, frozen=True):
    """A proper end of the body without the API's final events."""


class ErrorDirective(msgspec.Struct, frozen=True):
    """An error event inside the stream."""

    code: str
    message: str


class Play(msgspec.Struct, frozen=True):
    """``source`` is a script to play in place of this scene."""

    source: str


Content: TypeAlias = Say | Split | Words | Flood | Help | Think | Redacted | CallDirective | Shell
Ending: TypeAlias = StatusDirective | Refuse | Stall | Cut | NoEnd | ErrorDirective | Play
Tempo: TypeAlias = PaceDirective | Wait | ChunkDirective | PingDirective | Raw
Remark: TypeAlias = UsageDirective | UsageTwice | StopDirective | Repeat
Directive: TypeAlias = Content | Ending | Tempo | Remark
