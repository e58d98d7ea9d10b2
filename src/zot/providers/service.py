"""One vendor's API over a transport: retries, deadlines and decoding."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from zot.errors import (
    AuthFailed,
    ConnectionFailed,
    ConnectionImpossible,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
    Stalled,
    StreamBroken,
)
from zot.providers.api_errors import advise, attribute_error, not_a_stream, response_error
from zot.providers.base import (
    Api,
    Deadlines,
    HttpRequest,
    HttpResponse,
    KeySource,
    ModelReply,
    ModelRequest,
    OnRetry,
    Provider,
    ReplyStream,
    StreamEvent,
    Transport,
)
from zot.providers.mask import Mask

ATTEMPTS = 3
_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
#: Temporary errors that a service sends instead of an answer.
TEMPORARY = (RateLimited, Overloaded, ServiceFailed)
_FIRST_DELAY_S = 0.5
_LONGEST_WAIT_S = 60.0

log = logging.getLogger("zot")

#: Marks a log record that an event reports too.
REPORTED = {"is_reported": True}
_MAX_REPLY_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BODY = 64 * 1024
#: Beginning of a response kept for the error message if it is not a stream.
_OPENING_BYTES = 4096
_EVENTS = "text/event-stream"
#: Wait for the end of the HTTP response after the last event: the connection is reused only with it.
_EPILOGUE_S = 1.0
_BAD_REQUEST = 400
_UNAUTHORIZED = 401


def retry_delay(error: ProviderError, *, attempt: int, jitter: float) -> float | None:
    """Return the seconds to wait after the failed ``attempt`` (1 is the first); None if a retry is no use.

    ``jitter`` is a random number from 0 to 1. Only for failures before the first delta: a later retry would show
    the answer twice. An error without a status came as the first event of a stream. If a service asks for more than
    a minute, its error is reported instead.
    """
    if attempt >= ATTEMPTS or isinstance(error, ConnectionImpossible | AuthFailed):
        return None
    if not isinstance(error, ConnectionFailed) and not _is_passing(error):
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= _LONGEST_WAIT_S else None
    return float(_FIRST_DELAY_S * 2 ** (attempt - 1) * (0.5 + jitter))


def _is_passing(error: ProviderError) -> bool:
    """True if the error may be temporary."""
    if error.status:
        return error.status in _STATUSES
    return isinstance(error, TEMPORARY)


def _random() -> float:
    """Return a random number from 0 to 1, without the module `random`, which loads OpenSSL."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def _forever() -> float:
    return math.inf


class RetryTiming(msgspec.Struct, frozen=True):
    """The time that retries take.

    ``now`` returns seconds since the epoch: a service may name a time for the retry. ``jitter`` returns a random number
    from 0 to 1, ``left_s`` how long an answer is still useful.
    """

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = _random
    now: Callable[[], float] = time.time
    left_s: Callable[[], float] = _forever


class Service:
    """A model service. Its errors name the provider, contain no key and are short.

    ``secrets`` are further secrets that it might quote.
    """

    def __init__(
        self,
        name: str,
        api: Api,
        transport: Transport,
        *,
        key: KeySource,
        secrets: Sequence[str] = (),
        deadlines: Deadlines | None = None,
        retries: RetryTiming | None = None,
    ) -> None:
        self.name = name
        self.api = api
        self.transport = transport
        self.key = key
        self.secrets = secrets
        self.deadlines = deadlines or Deadlines()
        self.retries = retries or RetryTiming()

    def call(self, request: ModelRequest, on_retry: OnRetry) -> _Call:
        """Prepare one model call; nothing is sent before `open`."""
        return _Call(self, request, on_retry)

    async def close(self) -> None:
        """Close idle connections."""
        await self.transport.close()


class _Call:
    """One model call in progress; a `ReplyStream`."""

    def __init__(self, service: Service, request: ModelRequest, on_retry: OnRetry) -> None:
        self._service = service
        self._request = request
        self._on_retry = on_retry
        self._mask = Mask(service.secrets)
        self._response: HttpResponse | None = None
        self._decoder = service.api.decoder(request)
        self._quiet_since = 0.0
        self._deadline = ReadDeadline()
        self._first_events: list[StreamEvent] = []
        self._failure: ProviderError | None = None
        self._opening = b""
        self._received_bytes = 0
        self._ended = False

    async def open(self) -> None:
        """Send the request, with retries where safe, until an answer begins. Raise ProviderError."""
        key, retries = await self._read_key(), self._service.retries
        http, attempt, may_renew = self._prepared(key), 1, True
        while True:
            try:
                await self._begin(http)
            except ProviderError as error:
                self._sign(error)
                if may_renew and _is_about_the_key(error) and (renewed := await self._renewed(key)):
                    log.warning("%s (once more, with a new key)", error)
                    http, may_renew = self._prepared(renewed), False
                    self._decoder = self._service.api.decoder(self._request)
                    continue
                delay_s = retry_delay(error, attempt=attempt, jitter=retries.jitter())
                if delay_s is None or delay_s >= retries.left_s():
                    advise(error, self._service.name)
                    raise
                log.warning("%s (attempt %d; the next one in %.2f s)", error, attempt, delay_s, extra=REPORTED)
                self._on_retry(str(error), attempt=attempt, delay_s=delay_s)
                await retries.sleep(delay_s)
                attempt += 1
                self._decoder = self._service.api.decoder(self._request)
            else:
                return

    async def read(self) -> list[StreamEvent]:
        """Return the next events; an empty list at the end. Raise ProviderError."""
        assert self._response is not None, "read before open"
        if self._first_events:
            events, self._first_events = self._first_events, []
            return events
        try:
            if (failure := self._failure or self._decoder.failure) is not None:
                raise failure
            return await self._listen(self._response)
        except ProviderError as error:
            if not error.provider:  # Signed once: reading again raises the same error.
                self._sign(error)
                advise(error, self._service.name)
            raise

    def reply(self) -> ModelReply:
        """Return the reply so far."""
        return msgspec.structs.replace(self._decoder.reply(), origin=self._service.name)

    def close(self) -> None:
        """Release the connection; it is reused only if the answer was read to its end."""
        self._deadline.close()
        if self._response is not None:
            self._response.close()

    def _sign(self, error: ProviderError) -> None:
        """Add the provider's name, mask keys and shorten the error."""
        attribute_error(error, provider=self._service.name, mask=self._mask)

    async def _read_key(self) -> str:
        try:
            return await self._service.key.read()
        except ProviderError as error:
            self._sign(error)
            raise

    async def _renewed(self, refused: str) -> str:
        """Return a key other than the refused one; "" if there is none."""
        if not self._service.key.renew(refused):
            return ""
        key = await self._read_key()
        return key if key != refused else ""

    def _prepared(self, key: str) -> HttpRequest:
        """Return the request, and mask its secrets in errors: services quote the key they refuse."""
        http = self._service.api.request(self._request, key)
        self._mask.add(http.secrets())
        return http

    async def _attempt(self, http: HttpRequest) -> HttpResponse:
        response = await self._service.transport.send(http, self._service.deadlines)
        if response.status == 200:
            return response
        try:
            body = await self._error_body(response)
        finally:
            response.close()
        raise response_error(response.status, response.headers, body, now=self._service.retries.now())

    async def _begin(self, http: HttpRequest) -> None:
        """Send the request and wait for the first event: some services answer 200 and then report an overload."""
        self._opening, self._received_bytes, self._ended = b"", 0, False
        self._response = await self._attempt(http)
        try:
            self._first_events = await self._listen(self._response, until_begun=True)
        except ProviderError as problem:
            error = self._explained(problem, self._response)
            if isinstance(error, TEMPORARY) and not self._decoder.progress:
                self._response.close()
                raise error from None
            self._failure = error  # Raised by `read`, like any failure after an answer has begun.

    def _explained(self, problem: ProviderError, response: HttpResponse) -> ProviderError:
        """Return a clearer error if the response is not an event stream. The content type alone may be wrong."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if not isinstance(problem, StreamBroken) or self._decoder.progress or kind.lower() in ("", _EVENTS):
            return problem
        return not_a_stream(kind, self._opening, self._mask)

    async def _listen(self, response: HttpResponse, *, until_begun: bool = False) -> list[StreamEvent]:
        """Return the next events; with ``until_begun`` possibly none, as soon as anything but pings has arrived."""
        decoder, now = self._decoder, asyncio.get_running_loop().time
        # From here, not from the last event: our own processing time is no silence of the service.
        self._quiet_since = now()
        while not self._ended and not (until_begun and decoder.progress):
            seen = decoder.progress
            data = await self._next_bytes(response)
            if data:
                events = decoder.feed(data)
            else:
                self._ended = True
                events = decoder.finish()
            if events:
                return events
            if decoder.progress != seen:
                self._quiet_since = now()
        return []

    async def _next_bytes(self, response: HttpResponse) -> bytes:
        # Bytes after the last event are no part of the answer.
        silence_s = _EPILOGUE_S if self._decoder.is_complete else self._service.deadlines.silence_s
        try:
            data = await self._deadline.read(response, self._quiet_since + silence_s)
        except (TimeoutError, StreamBroken) as problem:
            if self._decoder.is_complete:
                return b""
            if isinstance(problem, StreamBroken):
                raise
            raise Stalled(f"the answer stalled: nothing new for {silence_s:g} s") from None
        if len(self._opening) < _OPENING_BYTES:
            self._opening += data[:_OPENING_BYTES]
        self._received_bytes += len(data)
        if self._received_bytes > _MAX_REPLY_BYTES:
            raise StreamBroken(f"the answer is longer than {_MAX_REPLY_BYTES // 1024**2} MiB")
        return data

    async def _error_body(self, response: HttpResponse) -> bytes:
        """Read the body of an error response: bounded, and possibly incomplete."""
        body = b""
        try:
            async with asyncio.timeout(self._service.deadlines.connect_s):
                while len(body) < _MAX_ERROR_BODY and (data := await response.read()):
                    body += data
        except (TimeoutError, ProviderError):
            pass  # The status is enough; a missing explanation must not hide it.
        return body[:_MAX_ERROR_BODY]


class ReadDeadline:
    """A deadline for reads that follow each other. One timer serves them all, moved only when it fires: a stream has
    thousands of reads, and `asyncio.timeout` starts and cancels a timer for each."""

    def __init__(self) -> None:
        self._at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: The task that waits for a read, and whether the deadline has cancelled it.
        self._reader: asyncio.Task[Any] | None = None
        self._has_passed = False

    async def read(self, response: HttpResponse, at: float) -> bytes:
        """Return the next bytes of ``response``. Raise TimeoutError if they do not arrive by ``at``, a time of the
        event loop."""
        # No variable here has the task: with an error, which keeps this frame, it would refer to itself.
        self._at, self._reader, self._has_passed = at, asyncio.current_task(), False
        assert self._reader is not None
        if self._timer is None or at < self._timer.when():
            self._start(at)
        others = self._reader.cancelling()
        try:
            return await response.read()
        except asyncio.CancelledError:
            if self._has_passed and self._reader.cancelling() <= others + 1:
                raise TimeoutError from None
            raise
        finally:
            if self._has_passed:
                self._reader.uncancel()
            self._reader = None

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, at: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._reader is None:
            return  # The next read starts it again.
        if asyncio.get_running_loop().time() < self._at:
            self._start(self._at)
        else:
            self._has_passed = True
            self._reader.cancel()


def _is_about_the_key(error: ProviderError) -> bool:
    """True if another key may help: it does not against missing permission or credit."""
    return error.status == _UNAUTHORIZED or (type(error) is AuthFailed and error.status == _BAD_REQUEST)


class ModelRouter:
    """A `Provider` that uses ``elsewhere`` for the models named there, and ``usual`` for all others."""

    def __init__(self, usual: Provider, elsewhere: Mapping[str, Provider]) -> None:
        #: The name of the usual provider: for a conversation they are the same.
        self.name = usual.name
        self._usual = usual
        self._elsewhere = elsewhere

    def call(self, request: ModelRequest, on_retry: OnRetry) -> ReplyStream:
        """Prepare one model call at the provider of its model."""
        return self._elsewhere.get(request.model, self._usual).call(request, on_retry)

    async def close(self) -> None:
        """Close idle connections."""
        for provider in (self._usual, *self._elsewhere.values()):
            await provider.close()
