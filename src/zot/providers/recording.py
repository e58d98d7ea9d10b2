"""Recordings: a transport that records a service, and one that replays the recording."""

from __future__ import annotations

import asyncio
import base64
import errno
import logging
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, TypeAlias

import msgspec

from zot.config.vendors import ApiName
from zot.encoding import UNREADABLE, encode
from zot.errors import (
    BadRequest,
    ConfigError,
    ConnectionFailed,
    ConnectionImpossible,
    MalformedFile,
    ProviderError,
    Stalled,
    StreamBroken,
)
from zot.files import decoded, read_chunks, read_content
from zot.providers.base import Deadlines, HttpRequest, HttpResponse, Transport
from zot.providers.mask import Mask, StreamMask

VERSION = 1

log = logging.getLogger("zot")

#: Response headers that identify the account.
_PRIVATE = frozenset({"set-cookie", "authorization", "openai-organization", "anthropic-organization-id"})

#: Non-blocking, since a pipe is refused later, and without acquiring a controlling terminal.
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NO_FILE = "not a regular file"

#: Further differences are only counted.
_MAX_SHOWN = 5
_MAX_VALUE = 60
_VARYING = r"(?<=\[still running: )\d+|(?<=/spill/)[0-9a-f]{12}/[^/\s]*?[0-9a-f]{16}(?=\.txt)"

#: Errors a transport may raise, by their recorded name.
_KINDS: Mapping[str, type[ProviderError]] = {
    kind.__name__: kind for kind in (ConnectionFailed, ConnectionImpossible, Stalled, StreamBroken)
}


class RecordingHeader(msgspec.Struct, frozen=True, tag="recording", tag_field="type"):
    """The first line: the service, so that replies can be decoded and priced again."""

    version: int
    provider: str
    api: ApiName
    model: str


class RecordedRequest(msgspec.Struct, frozen=True, tag="request", tag_field="type"):
    """A request. ``exchange`` counts from 1; the response's lines carry the same number."""

    exchange: int
    method: str
    url: str
    headers: dict[str, str]
    body: str


class RecordedResponse(msgspec.Struct, frozen=True, tag="response", tag_field="type"):
    """The head of the response, ``at_ms`` after the request."""

    exchange: int
    at_ms: float
    status: int
    headers: dict[str, str]


class RecordedChunk(msgspec.Struct, frozen=True, tag="chunk", tag_field="type", omit_defaults=True):
    """Bytes of the response as read: as text if they are UTF-8, else in base64."""

    exchange: int
    at_ms: float
    text: str = ""
    base64: str = ""

    @classmethod
    def of(cls, exchange: int, at_ms: float, data: bytes) -> RecordedChunk:
        """Return the line for ``data``."""
        try:
            return cls(exchange, at_ms, text=data.decode())
        except UnicodeDecodeError:  # Cut inside a character, or not text.
            return cls(exchange, at_ms, base64=base64.b64encode(data).decode())

    @property
    def data(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()


class RecordedEnd(msgspec.Struct, frozen=True, tag="end", tag_field="type", omit_defaults=True):
    """The end of the response. ``error`` is the class of an error, or "closed" if zot closed the connection."""

    exchange: int
    at_ms: float
    error: str = ""
    message: str = ""


Line: TypeAlias = RecordingHeader | RecordedRequest | RecordedResponse | RecordedChunk | RecordedEnd
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Exchange(msgspec.Struct):
    """One request and its response."""

    asked: RecordedRequest
    answered: RecordedResponse | None = None
    chunks: list[RecordedChunk] = []
    ended: RecordedEnd | None = None


class Recording(msgspec.Struct, frozen=True):
    """The decoded content of a file, in the order of requests."""

    header: RecordingHeader
    exchanges: tuple[Exchange, ...]

    @classmethod
    def load(cls, path: str) -> Recording:
        """Read a file. Raise ConfigError, with file and line, if it is invalid; an incomplete last line is ignored."""
        try:
            lines = read_content(path).split(b"\n")
        except OSError as problem:
            raise ConfigError(f"{path}: {problem.strerror}") from None
        whole = [(number, line) for number, line in enumerate(lines[:-1], 1) if line.strip()]
        return cls._of(path, [_decoded(path, number, line) for number, line in whole])

    @classmethod
    def _of(cls, path: str, lines: list[Line]) -> Recording:
        match lines:
            case [RecordingHeader(version=version) as header, *rest] if version == VERSION:
                return cls(header, _exchanges(path, rest))
            case [RecordingHeader(version=version), *_]:
                raise ConfigError(f"{path}: a recording of version {version}; this zot reads version {VERSION}")
            case _:
                raise ConfigError(f"{path}: not a recording; make one with: --record FILE")


def header_of(path: str) -> RecordingHeader:
    """Read only the first line of a recording. Raise ConfigError if it is not a recording."""
    try:
        first = next(read_chunks(path), b"").partition(b"\n")[0]
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    line = _decoded(path, 1, first)
    if not isinstance(line, RecordingHeader):
        raise ConfigError(f"{path}: not a recording; make one with: --record FILE")
    return line


def plain_headers(headers: Mapping[str, str], secret: frozenset[str]) -> dict[str, str]:
    """Return headers safe to record: secret ones by name only."""
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
            case RecordedRequest(exchange=number):
                found[number] = Exchange(line, chunks=[])
            case RecordedResponse(exchange=number) | RecordedChunk(exchange=number) | RecordedEnd(exchange=number) if (
                number in found
            ):
                _take(found[number], line)
            case _:
                raise ConfigError(f"{path}: an answer to a request that was never recorded")
    return tuple(found.values())


def _take(exchange: Exchange, line: RecordedResponse | RecordedChunk | RecordedEnd) -> None:
    match line:
        case RecordedResponse():
            exchange.answered = line
        case RecordedChunk():
            exchange.chunks.append(line)
        case RecordedEnd():
            exchange.ended = line


class RecordingTransport:
    """Sends through ``inner`` and records every byte to a file as it arrives.

    If writing fails, the failure is logged and the conversation continues unrecorded.
    """

    def __init__(self, inner: Transport, path: str, header: RecordingHeader, *, secrets: Iterable[str] = ()) -> None:
        self._inner = inner
        self._path = path
        self._secrets = tuple(secrets)
        self._file: int | None = _created(path)
        self._exchange = 0
        self.write(header)

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> HttpResponse:
        """Send a request and record the exchange."""
        self._exchange += 1
        mask = Mask([*self._secrets, *request.secrets()])
        writer = _ExchangeWriter(self, self._exchange, mask)
        headers = _masked(plain_headers(request.headers, request.secret_headers), mask)
        body = mask(request.body.decode("utf-8", "replace"))
        self.write(
            RecordedRequest(writer.exchange, request.method, mask(_without_password(request.url)), headers, body)
        )
        try:
            response = await self._inner.send(request, deadlines)
        except ProviderError as error:
            writer.end(type(error).__name__, str(error))
            raise
        except BaseException:
            writer.end("closed")
            raise
        headers = _masked(plain_headers(response.headers, _PRIVATE), mask)
        self.write(RecordedResponse(writer.exchange, writer.now(), response.status, headers))
        return _RecordedResponse(response, writer)

    async def close(self) -> None:
        """Close every connection, and the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        await self._inner.close()

    def write(self, line: Line) -> None:
        """Write one line at once: it must survive a crash."""
        if self._file is None:
            return
        data = encode(line) + b"\n"
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as problem:
            log.warning("%s: recording ends here: %s", self._path, problem.strerror)
            os.close(self._file)
            self._file = None


class _ExchangeWriter:
    """Recorder of one exchange, with the time since its request."""

    def __init__(self, recorder: RecordingTransport, exchange: int, mask: Mask) -> None:
        self._recorder = recorder
        self.exchange = exchange
        self._mask = mask
        self._bytes = StreamMask(mask)
        self._began_s = asyncio.get_running_loop().time()
        self._ended = False

    def now(self) -> float:
        """Return the milliseconds since the request."""
        return round((asyncio.get_running_loop().time() - self._began_s) * 1000, 3)

    def chunk(self, data: bytes) -> None:
        """Record bytes of the response with secrets masked, even across pieces."""
        self._write(self._bytes.feed(data))

    def end(self, error: str = "", message: str = "") -> None:
        """Record the end, once."""
        if not self._ended:
            self._ended = True
            self._write(self._bytes.finish())
            self._recorder.write(RecordedEnd(self.exchange, self.now(), error, self._mask(message)))

    def _write(self, data: bytes) -> None:
        if data:
            self._recorder.write(RecordedChunk.of(self.exchange, self.now(), data))


class _RecordedResponse:
    """A response that is recorded while it is read."""

    def __init__(self, inner: HttpResponse, writer: _ExchangeWriter) -> None:
        self.status = inner.status
        self.headers = inner.headers
        self._inner = inner
        self._writer = writer
        self._refused = False

    async def read(self) -> bytes:
        """Return the next bytes after recording them."""
        try:
            data = await self._inner.read()
        except ProviderError as error:
            self._end(type(error).__name__, str(error))
            raise
        if not data:
            self._end()
        else:
            self._refused = self.status != 200
            self._writer.chunk(data)
        return data

    def close(self) -> None:
        """Release the response; before its end, record that it was closed."""
        self._end("" if self._refused else "closed")
        self._inner.close()

    def _end(self, error: str = "", message: str = "") -> None:
        self._writer.end(error, message)


def _masked(headers: Mapping[str, str], mask: Mask) -> dict[str, str]:
    return {name: mask(value) for name, value in headers.items()}


def _created(path: str) -> int:
    """Create a private file. Raise ConfigError if that fails or would overwrite a file that is not a recording."""
    try:
        if os.path.exists(path) and os.path.getsize(path):
            header_of(path)
        fd = os.open(path, _CREATE, 0o600)
    except ConfigError:
        raise ConfigError(f"cannot record to {path}: the file is not a recording, so it is not overwritten") from None
    except OSError as problem:
        reason = _NO_FILE if problem.errno == errno.ENXIO else problem.strerror
        raise ConfigError(f"cannot record to {path}: {reason}") from None
    try:
        _prepare_file(fd)
    except OSError as problem:
        os.close(fd)
        raise ConfigError(f"cannot record to {path}: {problem.strerror}") from None
    return fd


def _prepare_file(fd: int) -> None:
    """Truncate the file and make it private. Raise OSError if it is a pipe or the like."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)
    elif not stat.S_ISCHR(mode):
        raise OSError(errno.EINVAL, _NO_FILE)
    os.set_blocking(fd, True)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    address, slash, path = rest.partition("/")
    return f"{scheme}{separator}{address.rpartition('@')[2]}{slash}{path}"


class ReplayTransport:
    """Replays recorded responses in order.

    ``paced`` waits as long as the service did. ``checked`` refuses a request that differs from the recorded one,
    and says where.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        paced: bool = False,
        checked: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._left = list(reversed(recording.exchanges))
        self._count = len(recording.exchanges)
        self._paced = paced
        self._checked = checked
        self._sleep = sleep

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> ReplayedResponse:
        """Return the recorded response. Raise the recorded error, or BadRequest if the recording has no more."""
        if not self._left:
            raise BadRequest(f"the recording ends after {self._count} requests; this one was never recorded")
        exchange = self._left.pop()
        if self._checked and (found := difference(exchange.asked, request)):
            raise BadRequest(f"request {exchange.asked.exchange} is not the recorded one: {found}")
        if exchange.answered is None:
            await self._pace(exchange.ended.at_ms if exchange.ended else 0)
            raise _failure(exchange)
        await self._pace(exchange.answered.at_ms)
        return ReplayedResponse(exchange, exchange.answered.status, exchange.answered.headers, self._pace)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _pace(self, milliseconds: float) -> None:
        # Yields even at full speed, so that other tasks run.
        await self._sleep(milliseconds / 1000 if self._paced else 0)


class ReplayedResponse:
    """A recorded response."""

    def __init__(
        self,
        exchange: Exchange,
        status: int,
        headers: Mapping[str, str],
        pace: Callable[[float], Awaitable[None]],
    ) -> None:
        self.status = status
        self.headers = headers
        self._exchange = exchange
        self._chunks: Iterator[RecordedChunk] = iter(exchange.chunks)
        self._pace = pace
        self._elapsed_ms = exchange.answered.at_ms if exchange.answered else 0.0
        self._closed = False

    async def read(self) -> bytes:
        """Return the next recorded bytes. Raise the recorded error."""
        if self._closed:
            raise StreamBroken("the response was closed")
        chunk = next(self._chunks, None)
        ended = self._exchange.ended
        at_ms = chunk.at_ms if chunk is not None else ended.at_ms if ended is not None else self._elapsed_ms
        await self._pace(max(0.0, at_ms - self._elapsed_ms))
        self._elapsed_ms = at_ms
        if chunk is not None:
            return chunk.data
        if ended is not None and not ended.error:
            return b""
        raise _failure(self._exchange)

    def close(self) -> None:
        """Stop reading."""
        self._closed = True


def difference(asked: RecordedRequest, request: HttpRequest) -> str:
    """Return where a request's body differs from the recorded one; "" if it does not. The address may differ."""
    body = request.body.decode("utf-8", "replace")
    if asked.body == body:
        return ""
    try:
        found = list(_differences(msgspec.json.decode(asked.body), msgspec.json.decode(body), "body"))
    except UNREADABLE:
        return "one of the two bodies is not JSON"
    more = f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    return "; ".join(found[:_MAX_SHOWN]) + more


def _differences(then: Any, now: Any, place: str) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in [*then, *(name for name in now if name not in then)]:
            yield from _differences(then.get(name, ...), now.get(name, ...), f"{place}.{name}")
    elif isinstance(then, list) and isinstance(now, list):
        for index, (old, new) in enumerate(zip_longest(then, now, fillvalue=...)):
            yield from _differences(old, new, f"{place}[{index}]")
    elif _settled(then) != _settled(now):
        yield f"{place} was {_short(then)}, is {_short(now)}"


def _settled(value: Any) -> Any:
    """Return a value without parts that vary between runs: process ids and names of spill files."""
    return re.sub(_VARYING, "", value) if isinstance(value, str) else value


def _short(value: Any) -> str:
    if value is ...:
        return "not there"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ... ({len(text)} characters)"


def _failure(exchange: Exchange) -> ProviderError:
    """Return the recorded error of an exchange."""
    ended = exchange.ended
    if ended is None or ended.error == "closed":
        return StreamBroken("the recording ends here: it was not read any further when it was made", code="recording")
    return _KINDS.get(ended.error, StreamBroken)(ended.message)
