"""A transport that writes down what another one sends and receives, without the keys."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Iterable, Mapping

from zot.encoding import encode
from zot.errors import ConfigError, ProviderError
from zot.providers.base import Deadlines, HttpRequest, HttpResponse, Transport
from zot.providers.mask import Mask, StreamMask
from zot.providers.recording_part import Answered, Asked, Chunk, Ended, Header, Line, header_of, plain_headers

log = logging.getLogger("zot")

#: What of an answer's head says more about the account than about the answer.
_PRIVATE = frozenset({"set-cookie", "authorization", "openai-organization", "anthropic-organization-id"})

#: Without waiting for the reader of a pipe, which is refused, and without taking a terminal for ours.
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NO_FILE = "not a regular file"


class RecordingTransport:
    """Sends through ``inner`` and writes every byte of it to a file, as it comes.

    If that stops being possible, the log says so and the conversation goes on unrecorded.
    """

    def __init__(self, inner: Transport, path: str, header: Header, *, secrets: Iterable[str] = ()) -> None:
        self._inner = inner
        self._path = path
        self._secrets = tuple(secrets)
        self._file: int | None = _created(path)
        self._exchange = 0
        self.write(header)

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> HttpResponse:
        """Send a request, and write down how it went."""
        self._exchange += 1
        mask = Mask([*self._secrets, *request.secrets()])
        story = _Story(self, self._exchange, mask)
        headers = _masked(plain_headers(request.headers, request.secret_headers), mask)
        body = mask(request.body.decode("utf-8", "replace"))
        self.write(Asked(story.exchange, request.method, mask(_without_password(request.url)), headers, body))
        try:
            response = await self._inner.send(request, deadlines)
        except ProviderError as error:
            story.end(type(error).__name__, str(error))
            raise
        except BaseException:
            story.end("closed")
            raise
        headers = _masked(plain_headers(response.headers, _PRIVATE), mask)
        self.write(Answered(story.exchange, story.now(), response.status, headers))
        return _RecordedResponse(response, story)

    async def close(self) -> None:
        """Close every connection, and the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        await self._inner.close()

    def write(self, line: Line) -> None:
        """Write one line, at once: what was recorded must survive whatever comes next."""
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


class _Story:
    """What is written of one exchange, with the time since it began."""

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
        """Write bytes of the answer; if they have a key in them, without it, also if it comes in two pieces."""
        self._write(self._bytes.feed(data))

    def end(self, error: str = "", message: str = "") -> None:
        """Write how it ended; only the first time."""
        if not self._ended:
            self._ended = True
            self._write(self._bytes.finish())
            self._recorder.write(Ended(self.exchange, self.now(), error, self._mask(message)))

    def _write(self, data: bytes) -> None:
        if data:
            self._recorder.write(Chunk.of(self.exchange, self.now(), data))


class _RecordedResponse:
    """An answer that is written down while it is read."""

    def __init__(self, inner: HttpResponse, story: _Story) -> None:
        self._inner = inner
        self._story = story
        self._refused = False

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._inner.headers

    async def read(self) -> bytes:
        """Return the next bytes, written down before."""
        try:
            data = await self._inner.read()
        except ProviderError as error:
            self._end(type(error).__name__, str(error))
            raise
        if not data:
            self._end()
        else:
            self._refused = self.status != 200
            self._story.chunk(data)
        return data

    def close(self) -> None:
        """Let go of it; before its end, that is an end of its own."""
        self._end("" if self._refused else "closed")
        self._inner.close()

    def _end(self, error: str = "", message: str = "") -> None:
        self._story.end(error, message)


def _masked(headers: Mapping[str, str], mask: Mask) -> dict[str, str]:
    return {name: mask(value) for name, value in headers.items()}


def _created(path: str) -> int:
    """Open a new file for us alone. Raise ConfigError if that cannot be, or if it would overwrite another file."""
    try:
        if os.path.exists(path) and os.path.getsize(path):
            header_of(path)
        fd = os.open(path, _CREATE, 0o600)
    except ConfigError:
        raise ConfigError(f"--record {path}: there is a file that is not a recording; it is not overwritten") from None
    except OSError as problem:
        reason = _NO_FILE if problem.errno == errno.ENXIO else problem.strerror
        raise ConfigError(f"--record {path}: {reason}") from None
    try:
        _take(fd)
    except OSError as problem:
        os.close(fd)
        raise ConfigError(f"--record {path}: {problem.strerror}") from None
    return fd


def _take(fd: int) -> None:
    """Make what was opened empty, and ours alone whatever its mode was. Raise OSError if it is a pipe or the like."""
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
