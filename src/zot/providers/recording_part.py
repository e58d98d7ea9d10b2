"""A recording: what was asked of a model service and what it answered, as lines of JSON. Does no I/O but `load`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from zot.config.vendors import ApiName
from zot.errors import ConfigError, MalformedFile
from zot.files import content, decoded, slices

VERSION = 1


class Header(msgspec.Struct, frozen=True, tag="recording", tag_field="type"):
    """The first line: whose answers these are, so that they can be understood and priced again."""

    version: int
    provider: str
    api: ApiName
    model: str


class Asked(msgspec.Struct, frozen=True, tag="request", tag_field="type"):
    """A request was sent. ``exchange`` counts from 1; the answer's lines carry the same number."""

    exchange: int
    method: str
    url: str
    headers: dict[str, str]
    body: str


class Answered(msgspec.Struct, frozen=True, tag="response", tag_field="type"):
    """The head of the answer came ``at_ms`` after the request."""

    exchange: int
    at_ms: float
    status: int
    headers: dict[str, str]


class Chunk(msgspec.Struct, frozen=True, tag="chunk", tag_field="type", omit_defaults=True):
    """Bytes of the answer, as they were read: as text where they are, else in base64."""

    exchange: int
    at_ms: float
    text: str = ""
    base64: str = ""

    @classmethod
    def of(cls, exchange: int, at_ms: float, data: bytes) -> Chunk:
        """Return the line for ``data``."""
        try:
            return cls(exchange, at_ms, text=data.decode())
        except UnicodeDecodeError:  # Cut inside a character, or no text at all.
            return cls(exchange, at_ms, base64=base64.b64encode(data).decode())

    @property
    def data(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()


class Ended(msgspec.Struct, frozen=True, tag="end", tag_field="type", omit_defaults=True):
    """The answer is over. ``error`` names the class of what ended it early, or is "closed" if we hung up."""

    exchange: int
    at_ms: float
    error: str = ""
    message: str = ""


Line: TypeAlias = Header | Asked | Answered | Chunk | Ended
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Exchange(msgspec.Struct):
    """One request and what came of it."""

    asked: Asked
    answered: Answered | None = None
    chunks: list[Chunk] = []
    ended: Ended | None = None


class Recording(msgspec.Struct, frozen=True):
    """Everything a file holds, in the order in which it was asked."""

    header: Header
    exchanges: tuple[Exchange, ...]

    @classmethod
    def load(cls, path: str) -> Recording:
        """Read a file. Raise ConfigError, with file and line, if it is none; a last line cut short is left out."""
        try:
            lines = content(path).split(b"\n")
        except OSError as problem:
            raise ConfigError(f"{path}: {problem.strerror}") from None
        whole = [(number, line) for number, line in enumerate(lines[:-1], 1) if line.strip()]
        return cls._of(path, [_decoded(path, number, line) for number, line in whole])

    @classmethod
    def _of(cls, path: str, lines: list[Line]) -> Recording:
        match lines:
            case [Header(version=version) as header, *rest] if version == VERSION:
                return cls(header, _exchanges(path, rest))
            case [Header(version=version), *_]:
                raise ConfigError(f"{path}: a recording of version {version}; this zot reads version {VERSION}")
            case _:
                raise ConfigError(f"{path}: not a recording; --record FILE makes one")


def header_of(path: str) -> Header:
    """Read only the first line of a recording. Raise ConfigError if it is none."""
    try:
        first = next(slices(path), b"").partition(b"\n")[0]
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    line = _decoded(path, 1, first)
    if not isinstance(line, Header):
        raise ConfigError(f"{path}: not a recording; --record FILE makes one")
    return line


def plain_headers(headers: Mapping[str, str], secret: frozenset[str]) -> dict[str, str]:
    """Return headers as they may be kept: the secret ones by name only."""
    return {name: "[secret]" if name in secret else value for name, value in headers.items()}


def _decoded(path: str, number: int, line: bytes) -> Line:
    try:
        return decoded(line, _decoder.decode, f"{path}, line {number}")
    except MalformedFile as problem:
        raise ConfigError(f"{problem.place}: not a line of a recording: {problem.reason}") from None


def _exchanges(path: str, lines: list[Line]) -> tuple[Exchange, ...]:
    found: dict[int, Exchange] = {}
    for line in lines:
        match line:
            case Asked(exchange=number):
                found[number] = Exchange(line, chunks=[])
            case Answered(exchange=number) | Chunk(exchange=number) | Ended(exchange=number) if number in found:
                _take(found[number], line)
            case _:
                raise ConfigError(f"{path}: an answer to a request that was never recorded")
    return tuple(found.values())


def _take(exchange: Exchange, line: Answered | Chunk | Ended) -> None:
    match line:
        case Answered():
            exchange.answered = line
        case Chunk():
            exchange.chunks.append(line)
        case Ended():
            exchange.ended = line
